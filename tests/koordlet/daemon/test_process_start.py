"""Starting the real process: what it accepts, and with which word it refuses."""

import http.client
import ssl
import urllib.request
from pathlib import Path

import pytest

from koordlet.plugin.testing import FakeHost
from tests.support.kube.certificates import Authority


def roots(host):
    """The flags that put the daemon on a fake host."""
    paths = host.paths
    return [
        f"-cgroup-root-dir={paths.cgroup}/",
        f"-proc-root-dir={paths.proc}/",
        f"-sys-root-dir={paths.sys}/",
        f"-sys-fs-root-dir={paths.sysfs}/",
        f"-var-run-root-dir={paths.var_run}/",
    ]


@pytest.fixture
def host(tmp_path):
    return FakeHost(tmp_path / "host")


@pytest.fixture
def first(koordlet, host):
    """A daemon that runs already."""
    first = koordlet("--standalone", *roots(host))
    first.wait_ready()
    return first


def test_a_start_that_fails_says_why(koordlet, host, first, tmp_path):
    """Status 2 for an option that cannot be used, 1 for a world that is not as it should be.

    The message names what was found and what to do; whatever runs already goes on.
    """
    (tmp_path / "link").symlink_to("/tmp")
    (tmp_path / "empty").mkdir()
    _, port = first.address
    cases = [  # arguments, run directory, status, parts of the message
        (
            ["--report-intervall=1s"],
            None,
            2,
            "report-intervall",
            "the nearest is --report-interval",
        ),
        (["--feature-gates=PSIColector=true"], None, 2, "PSIColector", "PSICollector"),
        (["--log-level=inof"], None, 2, "inof", "the nearest is info"),
        ([f"--addr=127.0.0.1:{port}"], None, 1, f"port {port} in use", f"{first.process.pid}"),
        ([], first.run_dir, 1, f"held by process {first.process.pid}", "its own --run-dir"),
        ([], tmp_path / "link", 1, "cannot be the run directory", "a link, which is not followed"),
        ([], Path("/proc/koordlet"), 1, "wanted a writable run directory", "create it writable"),
        (["--tls-cert-file=/x.crt"], None, 2, "/x.crt", "give --tls-private-key-file as well"),
        (["--tls-private-key-file=/x.key"], None, 2, "/x.key", "give --tls-cert-file as well"),
        (
            [f"--tls-cert-file={tmp_path}/x.crt", f"--tls-private-key-file={tmp_path}/x.key"],
            None,
            1,
            f"{tmp_path}/x.crt",
            "No such file",
        ),
        (
            [f"--proc-root-dir={tmp_path}/none/"],
            None,
            1,
            f"{tmp_path}/none: wanted",
            "No such file",
            "give --proc-root-dir",
        ),
        (
            [f"--cgroup-root-dir={tmp_path}/none/"],
            None,
            1,
            f"{tmp_path}/none: wanted",
            "No such file",
            "give --cgroup-root-dir",
        ),
        (
            [f"--cgroup-root-dir={tmp_path}/empty/"],
            None,
            1,
            f"{tmp_path}/empty: wanted",
            "found none",
            "give --cgroup-root-dir",
        ),
    ]
    ended = [
        koordlet("--standalone", *roots(host), *args, run_dir=run_dir)
        for args, run_dir, *_ in cases
    ]

    for daemon, (_, run_dir, status, *parts) in zip(ended, cases, strict=True):
        assert daemon.wait() == status, daemon.stderr
        assert daemon.stderr.startswith("koordlet: ")
        assert "Traceback" not in daemon.stderr
        for part in parts:
            assert part in daemon.stderr
        if run_dir is None:
            assert not (daemon.run_dir / "ctl.sock").exists()
            assert status == 1 or not daemon.run_dir.exists()
    assert first.ctl("status")["pid"] == first.process.pid
    assert first.stop() == 0


def test_help_lists_the_flags_of_plugins_too(koordlet):
    ended = koordlet("--help")

    assert ended.wait() == 0
    assert "--feature-gates" in ended.stderr
    assert "--pressure-watch-levels" in ended.stderr


def enabled_plugins(daemon):
    return [plugin["name"] for plugin in daemon.ctl("plugins") if plugin["enabled"]]


def test_the_arguments_of_koordinator_s_daemonset_start_it(koordlet, host):
    """Unchanged but for the mount points; the supervisor is notified that it is ready."""
    daemon = koordlet(
        *roots(host),
        "-feature-gates=AllAlpha=true,AllBeta=true",
        "-runtime-hooks-network=unix",
        "-runtime-hooks-addr=/host-var-run-koordlet/koordlet.sock",
        "-runtime-hooks-host-endpoint=/var/run/koordlet//koordlet.sock",
        "--logtostderr=true",
        "--v=4",
        NODE_NAME="node-7",
    )
    assert daemon.wait_ready() == ["READY=1", "STATUS=measuring node-7"]

    status = daemon.ctl("status")
    assert (status["node"], status["mode"]) == ("node-7", "standalone")
    assert "PSICollector" in status["gates_on"]
    daemon.until(lambda: "PressureWatch" in enabled_plugins(daemon))
    [inert] = daemon.events("flags.without_effect")
    assert {"runtime-hooks-addr", "logtostderr", "v"} <= set(inert["flags"])
    assert daemon.events("gates.not_built") == []
    assert daemon.stop() == 0


def test_https_and_no_plain_http_beside_it(koordlet, host, tmp_path):
    """With a certificate the port speaks TLS only; koordletctl's socket is not concerned."""
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    daemon = koordlet(
        "--standalone",
        *roots(host),
        f"--tls-cert-file={pair.certificate}",
        f"--tls-private-key-file={pair.key}",
    )
    daemon.wait_ready()
    context = ssl.create_default_context(cafile=str(authority.certificate))
    name, port = daemon.address

    with urllib.request.urlopen(f"https://{name}:{port}/livez", context=context) as answer:
        assert answer.read() == b"ok"
    with pytest.raises((http.client.HTTPException, OSError)):
        daemon.get("/livez")
    assert daemon.ctl("status")["node"]
    assert daemon.stop() == 0
