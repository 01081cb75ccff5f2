"""The command as users run it: arguments, exit status, signals."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from koord.component.plugins.discovery import discover
from koord_descheduler.cli.descheduler import main
from koord_descheduler.daemon.run import load_settings
from tests.support.clusters import node
from tests.support.descheduler.replicas import SHIPPED
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.daemon_flags import kubeconfig
from tests.support.kube.replicas import free_port, holder

CONFIG = """\
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
clientConnection: {{kubeconfig: {kubeconfig}}}
healthzBindAddress: 127.0.0.1:{port}
metricsBindAddress: 127.0.0.1:{port}
deschedulingInterval: 1s
profiles:
- name: mine
  plugins:
    evict: {{disabled: [{{name: "*"}}], enabled: [{{name: DefaultEvictor}}]}}
    filter: {{disabled: [{{name: "*"}}], enabled: [{{name: DefaultEvictor}}]}}
"""


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def config(tmp_path: Path, port: int) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format(kubeconfig=tmp_path / "kubeconfig", port=port))
    return path


@pytest.fixture
def shipped(tmp_path: Path, port: int) -> Path:
    """Koordinator's configuration, on another port."""
    path = tmp_path / "koord-descheduler.config"
    path.write_text(SHIPPED.format(port=port, balance=""))
    return path


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["now"], "command line: found 'now'; only flags are expected, like --name=value"),
        (["--leader-elekt"], "--leader-elekt: found '--leader-elekt'; unknown flag; the nearest"),
        (["--port=70000"], "--port: found 70000; use 0 to 65535"),
        (["--address=here"], "--address: found 'here'; use an IP address"),
        (["--leader-elect-resource-lock=configmaps"], "use one of leases"),
        (["--feature-gates=Nonsense=true"], "unrecognized feature gate: Nonsense"),
        (["--tls-cert-file=/a"], "--tls-cert-file: found '/a'; give --tls-private-key-file"),
        (["--config=/nowhere/c.yaml"], "--config: found '/nowhere/c.yaml'; "),
        (["--v=-1"], "--v: found -1; use 0 or more"),
    ],
)
def test_unusable_options(argv: list[str], message: str, capsys) -> None:
    """Exit status 2, and one line that says what to do."""
    assert main(argv) == 2
    first, hint = capsys.readouterr().err.strip().splitlines()
    assert first.startswith("koord-descheduler: ")
    assert message in first
    assert hint == "koord-descheduler --help lists the flags"


def test_unusable_files_name_all_faults(tmp_path: Path, config: Path, capsys) -> None:
    config.write_text(config.read_text().replace("1s", "soon") + "unknown: 1\n")
    assert main([f"--config={config}"]) == 2
    found = capsys.readouterr().err
    assert "deschedulingInterval" in found
    assert 'unknown field "unknown"' in found


def test_no_api_server(tmp_path: Path, config: Path, capsys, monkeypatch) -> None:
    """A start that fails: exit status 1."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    text = config.read_text()
    config.write_text("\n".join(each for each in text.split("\n") if "kubeconfig" not in each))
    assert main([f"--config={config}"]) == 1
    assert "wanted an API server, found no kubeconfig" in capsys.readouterr().err


def test_help_and_version(capsys) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "--leader-elect-lease-duration duration" in out
    commands = re.findall(r"^  koord-descheduler (\w+) ", out, re.MULTILINE)
    assert commands == ["plan", "explain", "record", "replay"]
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: koord-descheduler {command}")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("koord-descheduler 0.")


def test_the_effective_configuration_is_written(tmp_path: Path, config: Path, capsys) -> None:
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
    server: ApiServer, tmp_path: Path, shipped: Path, port: int
) -> None:
    """Koordinator's configuration with the plugins of this tree; SIGTERM releases the lease."""
    log = tmp_path / "log"
    server.objects.create("/api/v1/nodes", node("n1"))
    server.objects.create("/api/v1/nodes", node("n2"))
    (tmp_path / "kubeconfig").write_text(kubeconfig(server.url))
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "koord_descheduler.cli.descheduler"),
            *(f"--config={shipped}", "--v=4", "--secure-port=0"),
            stdin=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig")},
        )
        try:
            async with asyncio.timeout(120):
                while b'"cycle.ended"' not in log.read_bytes():
                    assert process.returncode is None, log.read_text()
                    await asyncio.sleep(0.05)
                async with (
                    aiohttp.ClientSession() as session,
                    session.get(f"http://127.0.0.1:{port}/healthz") as answer,
                ):
                    assert (answer.status, await answer.text()) == (200, "ok")
                assert holder(server)
                process.send_signal(signal.SIGTERM)
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    assert holder(server) == ""
    ended = [json.loads(line) for line in log.read_text().splitlines() if "cycle.ended" in line]
    assert ended[0].keys() >= {"ts", "seconds", "cpu_seconds", "nodes", "evictions", "errors"}


def test_the_example_of_make_run_descheduler(tmp_path: Path) -> None:
    """It is usable with what is installed, without a warning, and evicts nothing."""
    example = Path(__file__).parents[3] / "docs/examples/descheduler.yaml"
    settings = load_settings([f"--config={example}"], {}, discover=discover)

    assert settings.read.warnings == ()
    assert settings.configuration.dry_run
    assert not settings.configuration.leader_election.leader_elect
