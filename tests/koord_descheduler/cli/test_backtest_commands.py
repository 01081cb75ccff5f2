"""The commands record and replay: what they print, and how they end."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from koord_descheduler.cli.record import main as record
from koord_descheduler.cli.replay import main as replay
from tests.support.clusters import node
from tests.support.descheduler.backtest import ScriptedCluster, config_text, scripted_registry
from tests.support.kube.apiserver import ApiServer


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An hour and a half of a scripted cluster."""
    path = tmp_path_factory.mktemp("record") / "file"
    cluster = ScriptedCluster(path, config_text(75), scripted_registry())
    asyncio.run(cluster.live(1.5))
    return path


def test_the_recorded_configuration_by_default(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As JSON: all evictions are the record's."""
    assert replay([str(recorded), "--output=json", "--hot=cpu=75"], scripted_registry()) == 0

    report = json.loads(capsys.readouterr().out)
    evictions = report["evictions"]
    assert evictions["recorded"] == evictions["replayed"] == evictions["same"] > 3
    assert evictions["byPlugin"] == {"Cool": evictions["replayed"]}
    assert report["hotNodeMinutes"]["recorded"] == report["hotNodeMinutes"]["replayed"] > 0
    assert (report["hours"], report["nodes"], report["cycles"]) == (1.5, 6, 45)
    assert len(report["evicted"]) == evictions["replayed"]
    assert all(one["recorded"] for one in report["evicted"])
    assert (report["errors"], report["damage"]) == ([], "")


def test_another_configuration_as_a_table(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was, beside what would have been."""
    config = tmp_path / "config.yaml"
    config.write_text(config_text(65))
    assert replay([str(recorded), f"--config={config}", "--hot=cpu=75"], scripted_registry()) == 0

    printed = capsys.readouterr()
    assert "1.5 hours from 2023-11-14T22:13:20Z, 6 nodes, 45 cycles" in printed.out
    assert "RECORDED" in printed.out
    assert "hot node minutes" in printed.out
    assert "as recorded" in printed.out
    assert "Cool" in printed.out
    assert printed.err == ""


def test_a_damaged_record_is_played_up_to_there(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the report says so."""
    path = tmp_path / "cut"
    data = recorded.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    assert replay([str(path), "--output=json"], scripted_registry()) == 0

    report = json.loads(capsys.readouterr().out)
    assert "cut off; what is before it counts" in report["damage"]
    assert 0 < report["hours"] < 1.5


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none", None, "No such file or directory'; name a file of `koord-descheduler record`"),
        ("other", b"PK", "wanted a file of koord-descheduler record"),
        ("empty", b"koord-record\x00\x00\x00\x01", "wanted a record of a cluster"),
    ],
)
def test_files_that_are_no_record(
    tmp_path: Path,
    name: str,
    text: bytes | None,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit status 2, one line."""
    if text is not None:
        (tmp_path / name).write_bytes(text)
    assert replay([str(tmp_path / name)], scripted_registry()) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_configuration_without_interval_cannot_be_played(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would have a single cycle."""
    config = tmp_path / "config.yaml"
    config.write_text(config_text(65).replace('"2m"', '"0s"'))
    assert replay([str(recorded), f"--config={config}"], scripted_registry()) == 2
    assert "set deschedulingInterval" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--out=/nowhere/file", "--kubeconfig={}"], "--out: found '/nowhere/file: No such file"),
        (["--out=x", "--config=/nowhere"], "/nowhere"),
    ],
)
def test_unusable_options_of_record(
    argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2, and nothing was asked."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(_kubeconfig("http://127.0.0.1:1"))
    assert record([one.format(kubeconfig) for one in argv], scripted_registry()) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--out=x", "--max-size=0"], ["--out=x", "--for=soon"], []])
def test_a_wrong_command_line_of_record(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """As argparse ends: 2."""
    with pytest.raises(SystemExit) as end:
        record(argv, scripted_registry())
    assert end.value.code == 2


async def test_record_as_a_process(server: ApiServer, tmp_path: Path) -> None:
    """It follows the cluster until SIGTERM; the file can be read."""
    kubeconfig, out = tmp_path / "kubeconfig", tmp_path / "out"
    kubeconfig.write_text(_kubeconfig(server.url))
    server.objects.create("/api/v1/nodes", node("n1"))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "koord_descheduler.cli.descheduler", "record"),
        *(f"--out={out}", f"--kubeconfig={kubeconfig}"),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    async with asyncio.timeout(120):
        while b" evictions, " not in (first := await process.stderr.readline()):
            assert first, "it has ended"
        process.send_signal(signal.SIGTERM)
        rest = await process.stderr.read()
        assert await process.wait() == 0, rest.decode()
    assert first.startswith(b"0s: 1 nodes, 0 reports, 0 evictions, ")
    assert b"1 nodes" in rest
    assert out.stat().st_size > 100


def _kubeconfig(url: str) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "c", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        }
    )
