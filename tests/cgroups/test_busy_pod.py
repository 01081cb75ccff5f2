"""The pod of docs/examples/busy-pod.sh, on a real kernel."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from koord.util.clock import SystemClock
from koordlet.host.cgroups.tree import CgroupTree

from .conftest import Tree

SCRIPT = Path(__file__).parents[2] / "docs/examples/busy-pod.sh"
UID = "11111111-2222-3333-4444-555555555555"


def groups(tree: Tree) -> set[Path]:
    """All groups of a tree, in all hierarchies."""
    return {
        Path(directory) / name
        for top in tree.hierarchies
        for directory, names, _ in os.walk(top)
        for name in names
    }


@pytest.mark.parametrize(
    "there",
    [
        (),
        ("kubepods/besteffort/podneighbour/c", "kubepods/burstable"),
        ("kubepods/besteffort",),
        (
            "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podneighbour.slice/c",
            "kubepods.slice/kubepods-burstable.slice",
        ),
    ],
    ids=["empty", "cgroupfs", "idle", "systemd"],
)
def test_the_busy_pod_comes_and_goes(tree: Tree, there: tuple[str, ...]) -> None:
    """koordlet sees it beside the pods that are there; an interrupt removes it and nothing else."""
    groups_there = [tree.make(path) for path in there]
    neighbours = [group.run() for group in groups_there if group.path.endswith("/c")]
    before = groups(tree)
    environ = {**os.environ, "CGROUP_ROOT": str(tree.paths.cgroup)}

    with subprocess.Popen([SCRIPT], stdout=subprocess.PIPE, text=True, env=environ) as script:
        assert script.stdout is not None
        said = script.stdout.readline().split()
        try:
            pods = {pod.uid: pod for pod in CgroupTree(tree.base, SystemClock()).scan().pods}
            members = [
                (group / "cgroup.procs").read_text().split()
                for group in groups(tree) - before
                if group.name == "busy"
            ]
        finally:
            script.send_signal(signal.SIGINT)
            script.wait(60)

    assert said[0] == "process"
    assert [container.name for container in pods[UID].containers] == ["busy"]
    assert members
    assert sum(said[1] in pids for pids in members) == len(members)
    assert groups(tree) == before
    for neighbour in neighbours:
        neighbour.do("pass")


def test_one_that_is_there_already_is_left_alone(tree: Tree) -> None:
    """Two of them would share processes and cgroups."""
    tree.make(f"kubepods/besteffort/pod{UID}/busy")
    before = groups(tree)

    ended = subprocess.run(
        [SCRIPT],
        env={**os.environ, "CGROUP_ROOT": str(tree.paths.cgroup)},
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 1
    assert groups(tree) == before
