"""koordletctl restore: without a daemon, from what the journal says."""

import json

import pytest

from koordlet.api.qos import KubeQoS
from koordlet.cli.koordletctl import main
from koordlet.daemon.rundir import RunDir
from koordlet.executor.claim import Key
from koordlet.executor.journal import Journal
from koordlet.executor.target import Target
from koordlet.executor.wish import Wish
from koordlet.executor.writer import Writer
from koordlet.host.descriptors import Descriptors
from koordlet.host.host import Host
from koordlet.host.resources import CPU_QUOTA, CPU_SHARES
from koordlet.plugin.testing import FakeHost, SimulatedClock

BOOT = "da8d657c-8fa2-46c4-9aeb-64c0a40defa8"  # as FakeHost says


@pytest.fixture
def host(tmp_path):
    return FakeHost(tmp_path / "host", 1)


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def restore(host, run_dir, capsys):
    """Run the command; return its exit status and what it printed."""

    def run(*more):
        paths = host.paths
        roots = [f"--cgroup-root-dir={paths.cgroup}", f"--proc-root-dir={paths.proc}"]
        code = main(["restore", f"--run-dir={run_dir}", *roots, *more])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


@pytest.fixture
def squeeze(host, run_dir):
    """What a daemon did that was killed."""
    be = Target.qos_class(host.layout, KubeQoS.BEST_EFFORT)
    kernel = Host(host.paths, Descriptors(0))
    writer = Writer(kernel, Journal(run_dir, BOOT), SimulatedClock())
    wishes = [Wish(Key(be, row), value, None, ("P",)) for row, value in VALUES]
    return lambda: writer.apply(wishes)


VALUES = ((CPU_QUOTA, 50_000), (CPU_SHARES, 2))


def test_a_killed_daemons_values_are_put_back(host, restore, squeeze):
    """What somebody else has changed since stays; a second time there is nothing to do."""
    group = host.qos_group(KubeQoS.BEST_EFFORT)
    squeeze()
    group.write("cpu/cpu.shares", "77\n")

    code, text = restore("--output=json")
    assert code == 0
    found = {value["value"]: value["outcome"] for value in json.loads(text)["values"]}
    assert found == {
        "cpu_quota of kubepods/besteffort": "restored",
        "cpu_shares of kubepods/besteffort": "left",
    }
    assert group.read("cpu/cpu.cfs_quota_us") == "-1"
    assert group.read("cpu/cpu.shares") == "77"
    code, text = restore()
    assert (code, text) == (0, "nothing to put back\n")


def test_the_table_says_what_is_there_now(restore, squeeze):
    """One row per value."""
    squeeze()

    code, text = restore()

    assert code == 0
    assert "cpu_quota of kubepods/besteffort" in text
    assert "2 put back, 0 were not ours any more or gone, 0 failed" in text


def test_nothing_is_done_while_a_daemon_runs(host, run_dir, restore, squeeze):
    """It looks after its values itself; the message says what to do."""
    squeeze()
    with RunDir.open(run_dir):
        code, text = restore()

    assert code == 1
    assert "found koordlet at work" in text
    assert "the plugin's gate is switched off" in text
    assert host.qos_group(KubeQoS.BEST_EFFORT).read("cpu/cpu.shares") == "2"


def test_a_damaged_journal_is_told(run_dir, restore, squeeze):
    """What could be read of it is used."""
    squeeze()
    with (run_dir / "journal").open("ab") as file:
        file.write(b"0000")

    code, text = restore()

    assert code == 1
    assert "1 damaged lines; kept as journal.damaged" in text
    assert "2 put back" in text


def test_groups_that_are_out_of_sight_are_not_taken_for_gone(run_dir, capsys, monkeypatch, squeeze):
    """In a cgroup namespace nothing is forgotten."""
    squeeze()
    monkeypatch.setattr("koordlet.cli.ctl.restore._ROOT_INODE", -1)

    assert main(["restore", f"--run-dir={run_dir}"]) == 1
    assert "run this on the host, or give --cgroup-root-dir" in capsys.readouterr().err


def test_a_host_without_a_journal_needs_nothing(tmp_path, capsys):
    """Nor is a run directory made."""
    assert main(["restore", f"--run-dir={tmp_path / 'none'}"]) == 0
    assert capsys.readouterr().out == "nothing to put back\n"
    assert not (tmp_path / "none").exists()


def test_status_shows_what_a_daemon_left(run_dir, capsys, squeeze, monkeypatch):
    """Without one running; it fails all the same."""
    monkeypatch.setattr("koordlet.cli.ctl.status.boot_id", lambda: BOOT)
    squeeze()

    assert main(["status", f"--run-dir={run_dir}"]) == 1
    text = capsys.readouterr().out
    assert "wanted a running daemon" in text
    assert "2 kernel values are still changed; koordletctl restore ends that" in text
    rows = [line.split() for line in text.splitlines() if line.startswith("kubepods")]
    assert rows == [
        ["kubepods/besteffort", "cpu_quota", "50000", "-1"],
        ["kubepods/besteffort", "cpu_shares", "2", "1024"],
    ]
