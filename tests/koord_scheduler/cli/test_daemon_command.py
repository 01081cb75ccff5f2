"""The command as users run it: arguments, exit status, signals."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from koord_scheduler.command import main
from tests.support.clusters import node
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.daemon_flags import kubeconfig
from tests.support.kube.replicas import free_port, holder
from tests.support.scheduler.replicas import (
    KOORDINATORS_FLAGS,
    NODES,
    PODS,
    pending,
    placed,
)

CONFIG = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {{kubeconfig: {kubeconfig}}}
profiles:
- schedulerName: koord-scheduler
  plugins:
    queueSort: {{disabled: [{{name: "*"}}], enabled: [{{name: PrioritySort}}]}}
    filter: {{enabled: [{{name: Reservation}}]}}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format(kubeconfig=tmp_path / "kubeconfig"))
    return path


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["now"], "command line: found 'now'; only flags are expected, like --name=value"),
        (["--leader-elekt"], "--leader-elekt: found '--leader-elekt'; unknown flag; the nearest"),
        (["--port=70000"], "--port: found 70000; use 0 to 65535"),
        (["--address=here"], "--address: found 'here'; use an IP address"),
        (["--kube-api-burst=-1"], "--kube-api-burst: found -1; use 0 or more"),
        (["--feature-gates=Nonsense=true"], "unrecognized feature gate: Nonsense"),
        (["--tls-cert-file=/a"], "--tls-cert-file: found '/a'; give --tls-private-key-file"),
        (["--config=/nowhere/c.yaml"], "--config: found '/nowhere/c.yaml'; "),
    ],
)
def test_unusable_options(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2, and one line that says what to do."""
    assert main(argv) == 2
    first, hint = capsys.readouterr().err.strip().splitlines()
    assert first.startswith("koord-scheduler: ")
    assert message in first
    assert hint == "koord-scheduler --help lists the flags"


def test_unusable_files_name_all_faults(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(config.read_text().replace("Reservation", "Reservatoin") + "unknown: 1\n")
    assert main([f"--config={config}"]) == 2
    found = capsys.readouterr().err
    assert 'plugin "Reservatoin" does not exist' in found
    assert 'unknown field "unknown"' in found


def test_an_old_version_says_what_to_do(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(config.read_text().replace("k8s.io/v1\n", "k8s.io/v1beta2\n"))
    assert main([f"--config={config}"]) == 2
    assert "write kubescheduler.config.k8s.io/v1 here" in capsys.readouterr().err


def test_no_api_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that fails: exit status 1."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main([]) == 1
    assert "wanted an API server, found no kubeconfig" in capsys.readouterr().err


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "--leader-elect-lease-duration duration" in out
    assert "--kube-api-qps" in out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("koord-scheduler 0.")


def test_the_effective_configuration_is_written(
    tmp_path: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With defaults and flags, and such that it reads back."""
    out, again = tmp_path / "out.yaml", tmp_path / "again.yaml"
    flags = ["--leader-elect-resource-name=other", f"--write-config-to={out}"]
    assert main([f"--config={config}", *flags]) == 0
    assert "resourceName: other" in out.read_text()
    assert "renewDeadline: 10s" in out.read_text()
    assert main([f"--config={out}", f"--write-config-to={again}"]) == 0
    assert again.read_text() == out.read_text()
    assert main([f"--config={out}", f"--write-config-to={tmp_path}/no/where"]) == 1
    assert "--write-config-to: " in capsys.readouterr().err


async def test_a_process_leads_until_sigterm(
    server: ApiServer, tmp_path: Path, config: Path
) -> None:
    """With the plugins of this tree and Koordinator's flags; SIGTERM releases the lease."""
    log, port = tmp_path / "log", free_port()
    server.objects.create(NODES, node("n1"))
    server.objects.create(PODS, pending("first"))
    (tmp_path / "kubeconfig").write_text(kubeconfig(server.url))
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "koord_scheduler.command"),
            *(f"--config={config}", f"--port={port}", "--secure-port=0", *KOORDINATORS_FLAGS),
            stdin=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ},
        )
        try:
            async with asyncio.timeout(120):
                while "first" not in placed(server):
                    assert process.returncode is None, log.read_text()
                    await asyncio.sleep(0.05)
                async with (
                    aiohttp.ClientSession() as session,
                    session.get(f"http://127.0.0.1:{port}/healthz?verbose") as answer,
                ):
                    text = await answer.text()
                    assert (answer.status, "Reservation" in text) == (200, True), text
                assert holder(server)
                process.send_signal(signal.SIGTERM)
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    assert holder(server) == ""
    [ready] = [json.loads(line) for line in log.read_text().splitlines() if "r.ready" in line]
    assert ready.keys() >= {"ts", "seconds", "nodes", "pods"}
