"""Koordinator's koordlet among processes: not this daemon, by the program, whatever the name."""

import os
from pathlib import Path

import pytest

from koordlet.host.processes import other_agent_process, system_processes
from koordlet.host.procfiles import parse_pid_depth, parse_pid_users

OURS = str(os.geteuid())


def run(proc, pid, *arguments, comm="koordlet", nspid="{pid}", users=(OURS,) * 4):
    """Make the /proc files of a process."""
    process = proc / str(pid)
    process.mkdir()
    (process / "comm").write_text(f"{comm}\n")
    (process / "cmdline").write_bytes("".join(f"{argument}\0" for argument in arguments).encode())
    (process / "status").write_text(
        "\n".join(
            (f"Name:\t{comm}", "\t".join(("Uid:", *users)), f"NSpid:\t{nspid.format(pid=pid)}", "")
        )
    )


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
        ([], {}),  # it has crashed, and was not reaped
        (["/koordlet"], {"nspid": "{pid}\t1"}),  # of a kind node on this host
        (["/koordlet"], {"users": ("1000",) * 4}),  # anybody's
        (["/koordlet"], {"users": ("1000", OURS, OURS, OURS)}),  # anybody's, by a setuid program
        (["/koordlet"], {"users": (OURS, OURS, "1000", OURS)}),
        (["/koordlet"], {"users": ()}),
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


def test_users_of_a_process():
    """All four ids, each once."""
    status = b"Name:\tx\nUmask:\t0022\nUid:\t1000\t0\t0\t0\nGid:\t5\t5\t5\t5\n"
    assert parse_pid_users(status) == {0, 1000}


@pytest.mark.parametrize("status", [b"", b"Uid:", b"x\nUid:\t0\t0\t0\n", b"x\nUid:\t0\t0\t0\t-1\n"])
def test_users_that_cannot_be_read(status):
    with pytest.raises(ValueError, match="wanted a line Uid with four user ids"):
        parse_pid_users(status)


def test_this_very_process():
    """The kernel's own files: our test runs as root or as the user that we are."""
    comm = Path("/proc/self/comm").read_text().strip()
    assert os.getpid() in [process.pid for process in system_processes(Path("/proc"), comm)]
