"""The cgroup driver that the kubelet is configured with."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from koordlet.host.cgroups.layout import Driver
from koordlet.host.cgroups.tree import MAX_CONFIG, _log_unknown_driver, driver_of_kubelet

CONFIG = "/var/lib/kubelet/config.yaml"


ROOT = "0\t0\t0\t0" if os.geteuid() == 0 else "\t".join([str(os.geteuid())] * 4)
OTHER = os.geteuid() + 1000  # whoever runs these tests, it is another user
STATUS = f"Name:\tkubelet\nUid:\t{ROOT}\nGid:\t0\t0\t0\t0\nNSpid:\t4711\n"


@pytest.fixture(autouse=True)
def forget_warnings():
    _log_unknown_driver.cache_clear()


def run_kubelet(proc, *arguments, config=None, comm="kubelet", status=STATUS, pid=4711):
    """Make the /proc files of a process, with a config file in its mount namespace."""
    process = proc / str(pid)
    (process / "root/var/lib/kubelet").mkdir(parents=True)
    (process / "cwd").mkdir()
    (process / "comm").write_text(f"{comm}\n")
    (process / "status").write_text(status)
    (process / "cmdline").write_bytes("\0".join(["/usr/bin/kubelet", *arguments, ""]).encode())
    if config is not None:
        (process / "root" / CONFIG[1:]).write_text(config)
        (process / "cwd/relative.yaml").write_text(config)


@pytest.mark.parametrize(
    ("arguments", "driver"),
    [
        (["--cgroup-driver", "systemd"], Driver.SYSTEMD),
        (["--cgroup-driver=systemd", "--v=2"], Driver.SYSTEMD),
        (["--cgroup-driver=systemd", "--cgroup-driver=cgroupfs"], Driver.CGROUPFS),
        (["--v=2"], Driver.CGROUPFS),
        (["--cgroup-driver"], Driver.CGROUPFS),
        (["--cgroup-driver=other"], None),
    ],
)
def test_the_flag_decides(tmp_path, arguments, driver):
    """Without flag and config file the kubelet's default holds; an unknown driver is none."""
    run_kubelet(tmp_path, *arguments)

    assert driver_of_kubelet(tmp_path) is driver


@pytest.mark.parametrize(
    ("config", "driver"),
    [
        ("kind: KubeletConfiguration\ncgroupDriver: systemd\n", Driver.SYSTEMD),
        ('cgroupDriver: "systemd"\n', Driver.SYSTEMD),
        (json.dumps({"cgroupDriver": "systemd"}), Driver.SYSTEMD),
        ("   \ncgroupDriver: cgroupfs\n", Driver.CGROUPFS),
        ("kind: KubeletConfiguration\n", Driver.CGROUPFS),
        ("", None),  # the kubelet does not start with these two
        ("- a\n- b\n", None),
        ("cgroupDriver: [", None),
        ("cgroupDriver: 3\n", None),
    ],
)
@pytest.mark.parametrize("path", [CONFIG, "relative.yaml"])
def test_else_the_config_file_decides(tmp_path, config, driver, path):
    """It is YAML or JSON, quoted or not, and read as the kubelet sees it."""
    run_kubelet(tmp_path, f"--config={path}", config=config)

    assert driver_of_kubelet(tmp_path) is driver


def test_a_missing_config_file_gives_no_driver(tmp_path):
    """The kubelet would not run with it, so no default is assumed."""
    run_kubelet(tmp_path, "--config", "/nowhere")

    assert driver_of_kubelet(tmp_path) is None


@pytest.mark.parametrize("proc", [".", "missing"])
def test_no_kubelet(tmp_path, proc):
    """Processes of other names, and no processes at all."""
    run_kubelet(tmp_path, "--cgroup-driver=systemd", comm="kubelet-helper")
    (tmp_path / "4712").mkdir()

    assert driver_of_kubelet(tmp_path / proc) is None


@pytest.mark.parametrize(
    "status",
    [
        STATUS.replace(ROOT, f"{OTHER}\t{OTHER}\t{OTHER}\t{OTHER}"),
        STATUS.replace(ROOT, f"{OTHER}\t0\t0\t0"),  # a setuid program that a user has started
        STATUS.replace(ROOT, f"0\t{OTHER}\t0\t0"),
        pytest.param(  # root of another user namespace
            STATUS.replace(ROOT, "65534\t65534\t65534\t65534"),
            marks=pytest.mark.skipif(os.geteuid() == 65534, reason="this user is us"),
        ),
        STATUS.replace("NSpid:\t4711", "NSpid:\t4711\t1"),  # root of a container
        STATUS.replace("Uid", "Gone"),
        "",
    ],
)
def test_only_the_node_s_own_kubelet_counts(tmp_path, status):
    """Everybody can call a process kubelet; the real one counts beside it."""
    run_kubelet(tmp_path, "--cgroup-driver=systemd", status=status)
    assert driver_of_kubelet(tmp_path) is None

    run_kubelet(tmp_path, "--cgroup-driver=cgroupfs", pid=4712)
    assert driver_of_kubelet(tmp_path) is Driver.CGROUPFS


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_owner_of_the_process_s_directory_counts(tmp_path):
    """As the kernel has it."""
    run_kubelet(tmp_path, "--cgroup-driver=systemd")
    os.chown(tmp_path / "4711", 1000, 1000)

    assert driver_of_kubelet(tmp_path) is None


def fifo(path):
    path.unlink()
    os.mkfifo(path)


def anothers(path):
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(path, 1000, 0)


def link_to_anothers(path):
    """A link of root's, into a directory of another user."""
    target = path.with_name("target")
    path.rename(target)
    path.symlink_to(target)
    anothers(target)


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda path: path.chmod(0o664), "mode 0664"),
        (lambda path: path.chmod(0o646), "mode 0646"),
        (anothers, "user 1000"),
        (link_to_anothers, "user 1000"),
        (fifo, "a regular file"),
        (lambda path: path.write_text("a: 1\n" + "#" * MAX_CONFIG), "at most 65536 bytes"),
        (lambda path: path.write_text("a: " + "[" * 5000), "nesting too deep"),
        (lambda path: path.write_text("a: &a [x]\nb: *a\n"), "the alias *a"),
        (lambda path: path.write_text("<<: {a: b}\n"), "the merge key <<"),
    ],
    ids=range(9),
)
@pytest.mark.parametrize("path", [CONFIG, "relative.yaml"])
def test_a_config_file_that_cannot_be_trusted_gives_no_driver(tmp_path, path, spoil, found):
    """It is logged, once however often it is asked."""
    run_kubelet(tmp_path, f"--config={path}", config="cgroupDriver: systemd\n")
    place = tmp_path / "4711/root" / CONFIG[1:] if path == CONFIG else tmp_path / "4711/cwd" / path
    spoil(place)
    with capture_logs() as logs:
        drivers = [driver_of_kubelet(tmp_path) for _ in range(3)]

    assert drivers == [None] * 3
    [entry] = logs
    assert entry["event"] == "kubelet_driver.not_found"
    assert found in entry["error"]


@given(data=st.binary(max_size=300) | st.text("cgroupDriver: systemd[]{}&*<\n-", max_size=80))
def test_any_config_is_a_driver_or_nothing(tmp_path_factory, data):
    """Never an exception."""
    proc = tmp_path_factory.mktemp("proc")
    run_kubelet(proc, f"--config={CONFIG}", config="")
    content = data if isinstance(data, bytes) else data.encode()
    (proc / "4711/root" / CONFIG[1:]).write_bytes(content)

    assert driver_of_kubelet(proc) in (None, Driver.SYSTEMD, Driver.CGROUPFS)
