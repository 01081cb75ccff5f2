"""Koordinator's koordlet among processes: told from ourselves by what runs, not by the name."""

import pytest

from koordlet.host.otheragent import other_agent_process
from koordlet.host.procfiles import parse_pid_depth


def run(proc, pid, *arguments, comm="koordlet", nspid="{pid}"):
    """Make the /proc files of a process."""
    process = proc / str(pid)
    process.mkdir()
    (process / "comm").write_text(f"{comm}\n")
    (process / "cmdline").write_bytes("".join(f"{argument}\0" for argument in arguments).encode())
    (process / "status").write_text(f"Name:\t{comm}\nNSpid:\t{nspid.format(pid=pid)}\nCapEff:\t0\n")


@pytest.mark.parametrize("program", ["/koordlet", "koordlet", "/usr/local/bin/koordlet"])
def test_koordinators_koordlet(tmp_path, program):
    """The command of its DaemonSet, or of a unit."""
    run(tmp_path, 1, "/sbin/init", comm="systemd")
    run(tmp_path, 4711, program, "-cgroup-root-dir=/host-cgroup/", "--v=4")

    assert other_agent_process(tmp_path) == 4711


@pytest.mark.parametrize(
    ("arguments", "other"),
    [
        (["/opt/koordlet/bin/python3", "/koordlet", "--v=4"], {}),  # ourselves, or a pod before us
        (["/usr/bin/python3", "-m", "koordlet.cli.koordlet"], {"comm": "python3"}),
        ([], {}),  # it has crashed, and nobody has reaped it
        (["/koordlet"], {"nspid": "{pid}\t1"}),  # of a kind node on this host
        (["koordlet"], {"comm": "grep"}),
        (["/bin/sh", "/koordlet"], {}),
        (["/usr/bin/koordletctl", "status"], {"comm": "koordletctl"}),
    ],
)
def test_not_koordinators_koordlet(tmp_path, arguments, other):
    """What bears its name, or holds it in its arguments."""
    run(tmp_path, 4711, *arguments, **other)

    assert other_agent_process(tmp_path) is None


def test_processes_that_end_while_they_are_looked_at(tmp_path):
    """Cost nothing but themselves."""
    (tmp_path / "7").mkdir()
    (tmp_path / "8").mkdir()
    (tmp_path / "8/comm").write_text("koordlet\n")
    run(tmp_path, 9, "/koordlet")

    assert other_agent_process(tmp_path) == 9
    assert other_agent_process(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("status", "depth"),
    [
        (b"Name:\tx\nNSpid:\t12\nNSpgid:\t12\n", 1),
        (b"Name:\tx\nNSpid:\t4711\t12\t1\n", 3),
        (b"Name:\tx\nNSpid:\n", 1),
        (b"Name:\tx\nPid:\t1\n", 1),
        (b"", 1),
    ],
)
def test_depth_of_pid_namespaces(status, depth):
    """One number for each namespace, the outermost first."""
    assert parse_pid_depth(status) == depth
