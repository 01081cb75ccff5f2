"""`make cluster`: it starts, lets its user in, and ends without a trace."""

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import (
    CNI,
    CONTAINERD,
    CONTAINERD_SHIM,
    CRI_CLIENT,
    KUBERNETES,
    PAUSE,
    Program,
)
from tests.support.real_apiserver.control_plane import missing
from tests.support.real_cluster.inner_machine import InnerMachine, unusable
from tests.support.real_cluster.make_cluster import DIRECTORY
from tests.support.real_runtime.containerd_node import cgroup_mounts

TIMEOUT = 120.0


@pytest.fixture(autouse=True)
def usable(go_program: Callable[[Program], Path]) -> None:
    if reason := unusable() or missing():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    for program in (KUBERNETES, CONTAINERD, CONTAINERD_SHIM, CRI_CLIENT, PAUSE, *CNI):
        go_program(program)


@contextmanager
def cluster(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """As the target of the Makefile starts it."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "tests.support.real_cluster.make_cluster", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        yield process


def until_line(process: "subprocess.Popen[str]", begin: str) -> str:
    """All that it prints, up to a line that begins so."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith(begin):
            return "".join(lines)
    return pytest.fail(f"it ended with {''.join(lines)}")


def traces() -> dict[str, Any]:
    """What a cluster could leave on this machine."""
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    groups = [group for each in cgroup_mounts() for group in each.directory.glob("koord-cluster-*")]
    processes = []
    for each in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            processes += [each.parent.name] * ("koord-cluster-" in each.read_text())
        except OSError:
            continue  # it has just ended
    ours = [each for each in mounts if str(DIRECTORY) in each]
    return {"mounts": ours, "groups": groups, "processes": processes, "net": _interfaces()}


def _interfaces() -> str:
    return subprocess.run(["ip", "-o", "address"], capture_output=True, text=True).stdout


def test_its_user_comes_in_and_c_ends_it_without_a_trace() -> None:
    """By the scripts that it names; all nodes are ready, the real one and two without a kubelet."""
    before = traces()
    with cluster("--nodes=2") as process:
        said = until_line(process, "worker-1 ")
        assert {line.split()[0] for line in said.splitlines() if " Ready " in line} == {
            "hollow-1", "hollow-2", "worker-1",
        }  # fmt: skip
        for command in (
            [DIRECTORY / "kubectl"],
            [DIRECTORY / "enter", KUBERNETES.called("kubectl")],
        ):
            done = subprocess.run([*command, "auth", "whoami"], capture_output=True, text=True)
            assert "admin" in done.stdout, done.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 0
    assert traces() == before
    assert not DIRECTORY.exists()


def test_with_a_command_it_ends_as_that_does() -> None:
    with cluster("--nodes=0", "--", "sh", "-c", "exit 7") as process:
        assert process.wait(TIMEOUT) == 7


async def test_what_was_killed_leaves_groups_alone_which_the_next_removes(
    tmp_path: Path, eventually: Callable[[Callable[[], bool]], Awaitable[None]]
) -> None:
    """Neither a process nor a mount outlives the one who made the machine."""
    before = traces()
    with cluster("--nodes=0") as process:
        until_line(process, "worker-1 ")
        process.kill()
    with InnerMachine(tmp_path / "next"):
        pass
    await eventually(lambda: traces() == before)
