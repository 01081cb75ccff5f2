"""koordletctl restore: without a daemon, from what the journal says."""

import json
import os

import pytest

from koord.api.qos import KubeQoS
from koord.util.ownedfiles import OwnedDirectory
from koordlet.cli.koordletctl import main
from koordlet.daemon.environment import RunDir
from koordlet.executor.claims.claim import DesiredValue, Key, Target
from koordlet.executor.journal import Journal, JournalRecord, header_line, set_line
from koordlet.executor.kernel.writer import Writer
from koordlet.host.files import Descriptors
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
def restore(host, run_dir, capsys, monkeypatch):
    """Run the command; return its exit status and what it printed.

    With laid_out=False as its users do: nothing but the kernel's files is written.
    """

    def run(*more, laid_out=True):
        paths = host.paths
        if laid_out:
            monkeypatch.setattr("koordlet.cli.ctl.restore.host_paths", lambda _: paths)
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
    writer = Writer(kernel, Journal(OwnedDirectory.open(run_dir), BOOT), SimulatedClock())
    desired_values = [DesiredValue(Key(be, row), value, None, ("P",)) for row, value in VALUES]
    return lambda: writer.apply(desired_values)


VALUES = ((CPU_QUOTA, 50_000), (CPU_SHARES, 2))


def test_a_killed_daemons_values_are_restored(host, restore, squeeze):
    """Values that another agent has changed since stay; a second time there is nothing to do."""
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
    assert (code, text) == (0, "nothing to restore\n")


def test_the_table_says_what_is_there_now(restore, squeeze):
    """One row per value."""
    squeeze()

    code, text = restore()

    assert code == 0
    assert "cpu_quota of kubepods/besteffort" in text
    assert "2 restored, 0 were not ours any more or gone, 0 failed" in text


def test_a_long_restore_shows_how_far_it_is(restore, squeeze, monkeypatch):
    """Thousands of values take seconds; the response itself stays what it is."""
    monkeypatch.setattr("koord.component.terminal.AFTER", 0.0)
    squeeze()

    _, text = restore("--output=json")

    answer, _, progress = text.partition("\n}\n")
    assert len(json.loads(f"{answer}}}")["values"]) == 2
    assert progress.splitlines()[-1] == "restoring 2 values: 100 %"


def test_nothing_is_done_while_a_daemon_runs(host, run_dir, restore, squeeze):
    """It looks after its values itself; the message says what to do."""
    squeeze()
    with RunDir.open(run_dir):
        code, text = restore()

    assert code == 1
    assert "found koordlet at work" in text
    assert "the plugin's gate is switched off" in text
    assert host.qos_group(KubeQoS.BEST_EFFORT).read("cpu/cpu.shares") == "2"


def test_a_damaged_journal_is_reported(run_dir, restore, squeeze):
    """What could be read of it is used."""
    squeeze()
    with (run_dir / "journal").open("ab") as file:
        file.write(b"0000")

    code, text = restore()

    assert code == 1
    assert "1 damaged lines; kept as journal.damaged" in text
    assert "2 restored" in text


@pytest.mark.parametrize("more", [[], ["--var-run-root-dir=/run"]])
def test_groups_that_are_out_of_sight_are_not_taken_for_gone(
    run_dir, capsys, monkeypatch, squeeze, more
):
    """In a cgroup namespace nothing is forgotten, unless the place of the cgroups is given."""
    squeeze()
    monkeypatch.setattr("koordlet.cli.ctl.restore._ROOT_INODE", -1)

    assert main(["restore", f"--run-dir={run_dir}", *more]) == 1
    assert "run this on the host, or give --cgroup-root-dir" in capsys.readouterr().err


def test_a_host_without_a_journal_needs_nothing(tmp_path, capsys, monkeypatch):
    """Where daemons usually are; no run directory is made."""
    places = [tmp_path / "none", tmp_path]
    monkeypatch.setattr("koordlet.cli.koordletctl.default_run_dirs", lambda *_: places)

    assert main(["restore"]) == 0
    assert capsys.readouterr().out == "nothing to restore\n"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", ["none", "empty", "file/below"])
def test_a_wrong_run_directory_is_a_failure(tmp_path, capsys, name):
    """Else "nothing to restore" would be believed. Nothing is made there either."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()

    assert main(["restore", f"--run-dir={tmp_path / name}"]) == 1
    error = capsys.readouterr().err
    assert f"{tmp_path / name}: " in error
    assert "wanted a run directory with the journal" in error or "in place of a dir" in error
    assert not (tmp_path / "none").exists()
    assert not list((tmp_path / "empty").iterdir())


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


SHARES = ("cpu_shares", "qos", "kubepods/besteffort", "1024")  # a record that would be restored
PLANTED = {
    "above the root": ("cpu_shares", "qos", "../../../../victim", "1024", "its place"),
    "with dots on the way": ("cpu_shares", "pod", "kubepods/../../victim", "1024", "its place"),
    "absolute": ("cpu_shares", "pod", "/etc/cron.d/x", "1024", "its place"),
    "with an empty step": ("cpu_shares", "pod", "kubepods//x", "1024", "its place"),
    "with a line end": ("cpu_shares", "pod", "kubepods/x\ny", "1024", "its place"),
    "a text of lines": (*SHARES[:3], "5\n* * * * * root sh\n", "its original"),
    "a text": (*SHARES[:3], "root::0:0::/:/bin/sh", "its original"),
    "an escape": (*SHARES[:3], "1\x1b[2J", "its original"),
    "out of range": (*SHARES[:3], "99999999", "its original"),
    "a process of no number": ("oom_score_adj", "process", "../1", "0", "its place"),
    "a sysctl of a group": ("min_free_kbytes", "pod", "kubepods", "20000", "has no such value"),
    "a process of a group": ("oom_score_adj", "pod", "kubepods", "0", "has no such value"),
    "a cgroup value of a process": ("cpu_shares", "process", "1", "2", "has no such value"),
    "what is read only": ("cpu_usage", *SHARES[1:], "its original"),
}


def plant(run_dir, *rows):
    """A journal as whoever may write it makes it: what is there now is "ours"."""
    planted = [
        JournalRecord(name, level, place, 0, 0, ("P",), original, "5", "5")
        for name, level, place, original in rows
    ]
    lines = [set_line(number, record) for number, record in enumerate(planted, 1)]
    (run_dir / "journal").write_bytes(header_line(BOOT) + b"".join(lines))


LIMIT = '{"unit":"tasks","form":"number or max","low":1,"high":4194304}'
PLANTED_FILES = {
    "a file that moves processes": ("cgroup.procs", "1", LIMIT, "only the kubelet may"),
    "a program that the kernel runs": (
        "/proc/sys/kernel/core_pattern",
        "1",
        LIMIT,
        "the kernel runs what it names as root",
    ),
    "a file above": ("../../victim", "1", LIMIT, "wanted a setting of a cgroup controller"),
    "a file of the table": ("cpu.shares", "1024", LIMIT, "CPU_SHARES of koordlet.plugin.resources"),
    "a row of the table": ("cpu_shares", "1024", LIMIT, "found cpu_shares, which is neither"),
    "another file in the definition": (
        "pids.max",
        "7",
        LIMIT[:-1] + ',"file":"cgroup.procs"}',
        "wanted a form of value",
    ),
    "no definition": ("pids.max", "7", "[", "wanted its definition as a JSON object"),
    "a definition without end": (
        "pids.max",
        "7",
        LIMIT + " " * 9000,
        "wanted its definition as a JSON object",
    ),
    "a form that is not known": ("pids.max", "7", LIMIT.replace("max", "x"), "wanted a form"),
    "an original of another form": ("pids.max", "a;b", LIMIT, "its original"),
}


def plant_file(run_dir, be, name, original, definition):
    """What is there now is "ours"."""
    inode = os.stat(be).st_ino
    row = (name, "qos", "kubepods/besteffort", 0, inode, ("P",), original, "5", "5", (), definition)
    (run_dir / "journal").write_bytes(header_line(BOOT) + set_line(1, JournalRecord(*row)))


@pytest.mark.parametrize("name", PLANTED_FILES)
def test_a_planted_definition_is_refused_by_name_and_left(host, run_dir, restore, name):
    """It goes through what a plugin's declaration goes through."""
    *row, why = PLANTED_FILES[name]
    for file in ("pids.max", "cgroup.procs", "cpu.shares"):
        host.qos_group(KubeQoS.BEST_EFFORT).write(f"pids/{file}", "5\n")
    plant_file(run_dir, host.paths.cgroup / "pids/kubepods/besteffort", *row)
    trees = [host.paths.cgroup, host.paths.proc]
    before = {p: p.read_bytes() for tree in trees for p in tree.rglob("*") if p.is_file()}

    code, out = restore("-o", "json")

    assert code == 1
    [value] = json.JSONDecoder().raw_decode(out)[0]["values"]  # the log follows
    assert (value["outcome"], why in value["message"]) == ("refused", True), value
    assert row[0] in value["value"]
    assert {path: path.read_bytes() for path in before} == before


def test_a_file_that_a_plugin_declared_is_restored_without_the_plugin(host, run_dir, restore):
    """The journal has what is needed."""
    group = host.qos_group(KubeQoS.BEST_EFFORT)
    group.write("pids/pids.max", "5\n")
    plant_file(run_dir, host.paths.cgroup / "pids/kubepods/besteffort", "pids.max", "max", LIMIT)

    code, out = restore("-o", "json")

    assert code == 0
    [value] = json.loads(out)["values"]
    assert value["outcome"] == "restored"
    assert value["value"] == "pids.max of kubepods/besteffort"
    assert group.read("pids/pids.max") == "max"


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_record_is_refused_by_name_and_left(host, run_dir, restore, tmp_path, name):
    """The sound record beside it counts. Nothing is written that the table does not allow."""
    *row, why = PLANTED[name]
    be = host.qos_group(KubeQoS.BEST_EFFORT)
    be.write("cpu/cpu.shares", "5\n")
    (tmp_path / "victim").mkdir()
    victim = tmp_path / "victim" / "cpu.shares"
    victim.write_text("5\n")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    plant(run_dir, row)

    code, out = restore("-o", "json")

    assert code == 1
    [value] = json.JSONDecoder().raw_decode(out)[0]["values"]  # the log follows
    assert (value["outcome"], why in value["message"]) == ("refused", True)
    assert value["value"].startswith(row[0])
    after = {path: path.read_bytes() for path in before}
    assert after == before
    code, out = restore()
    assert code == 1
    assert "1 refused" in out


def test_a_sound_record_beside_a_planted_one_is_restored(host, run_dir, restore):
    be = host.qos_group(KubeQoS.BEST_EFFORT)
    be.write("cpu/cpu.shares", "5\n")
    inode = os.stat(host.paths.cgroup / "cpu/kubepods/besteffort").st_ino
    plant(run_dir, SHARES, PLANTED["absolute"][:4])
    text = (run_dir / "journal").read_bytes()
    sound = JournalRecord(*SHARES[:3], 0, inode, ("P",), SHARES[3], "5", "5")
    (run_dir / "journal").write_bytes(text + set_line(1, sound))

    code, out = restore()

    assert code == 1
    assert "1 restored, 0 were not ours any more or gone, 0 failed, 1 refused" in out
    assert be.read("cpu/cpu.shares") == "1024"


def test_a_file_that_is_not_the_kernels_is_refused_and_left(host, restore, squeeze):
    """Root flags that lead to plain files, as an attacker's would: nothing is written."""
    squeeze()
    be = host.qos_group(KubeQoS.BEST_EFFORT)

    code, out = restore("-o", "json", laid_out=False)

    assert code == 1
    assert {value["outcome"] for value in json.loads(out)["values"]} == {"failed"}
    assert "wanted a kernel file (cgroup or cgroup2), found one on a file system of type" in out
    assert be.read("cpu/cpu.shares") == "2"


@pytest.mark.parametrize("laid_out", [True, False])
def test_a_link_in_place_of_a_kernel_file_is_not_followed(
    host, run_dir, restore, squeeze, tmp_path, laid_out
):
    """It leads to a file that only root may read, with the text that is "ours"."""
    squeeze()
    victim = tmp_path / "victim"
    victim.write_text("2\n")
    victim.chmod(0o600)
    file = host.paths.cgroup / "cpu/kubepods/besteffort/cpu.shares"
    file.unlink()
    file.symlink_to(victim)

    code, out = restore(laid_out=laid_out)

    assert code == 1
    assert "cpu.shares: wanted to write '1024', found Too many levels of symbolic links" in out
    assert victim.read_text() == "2\n"


@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o775])
def test_a_run_directory_that_others_may_write_to_is_not_used(run_dir, restore, squeeze, mode):
    """A root-owned one, too: its journal may be anybody's."""
    squeeze()
    run_dir.chmod(mode)

    code, out = restore()

    assert code == 1
    assert f"{run_dir}: cannot be the run directory: {run_dir}: wanted what only root" in out
    assert f"mode {mode:04o}" in out


def test_a_link_is_no_run_directory(tmp_path, restore, squeeze, run_dir):
    squeeze()
    run_dir.rename(tmp_path / "real")
    run_dir.symlink_to("real")

    code, out = restore()

    assert code == 1
    assert "a link, which is not followed" in out


@pytest.mark.parametrize("file", ["lock", "journal"])
def test_a_link_in_the_run_directory_is_not_followed(tmp_path, run_dir, restore, squeeze, file):
    """Neither is what it leads to written, nor is anything restored because of it."""
    squeeze()
    if (run_dir / file).exists():
        (run_dir / file).rename(tmp_path / "victim")
    else:
        (tmp_path / "victim").write_text("precious")
    (run_dir / file).symlink_to(tmp_path / "victim")
    before = (tmp_path / "victim").read_bytes()

    code, out = restore()

    assert code == 1
    assert f"{run_dir}/{file}: wanted what only root and this user can change, found a link" in out
    assert (tmp_path / "victim").read_bytes() == before
