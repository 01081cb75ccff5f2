"""Counters of cgroups on a real kernel: software events, which virtual machines have, too."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.host.perf import GroupCounters, PerfEvent

from .conftest import REAL, VERSION, Tree, burn

TASK_CLOCK, CONTEXT_SWITCHES = (
    PerfEvent(1, 1),
    PerfEvent(1, 3),
)  # PERF_TYPE_SOFTWARE; the first in ns


@pytest.fixture
def hierarchy(tmp_path: Path) -> Iterator[Path]:
    """The directory of the root group; few v1 hosts without a container runtime have it mounted."""
    mounted = REAL.cgroup / "perf_event"
    if VERSION == 2 or mounted.is_dir():
        yield REAL.cgroup if VERSION == 2 else mounted
        return
    own = tmp_path / "perf_event"
    own.mkdir()
    subprocess.run(["mount", "-t", "cgroup", "-o", "perf_event", "none", own], check=True)
    yield own
    subprocess.run(["umount", own], check=True)


@pytest.fixture
def groups(tree: Tree, hierarchy: Path) -> Iterator[tuple[Path, Path]]:
    """Two groups, of which the first has what runs in the group busy of the tree."""
    names = [f"koordlet-perf-{os.getpid()}-{name}" for name in ("busy", "idle")]
    busy, idle = (hierarchy / name for name in names)
    for group in (busy, idle):
        group.mkdir()
    yield busy, idle
    for group in (busy, idle):
        for pid in (group / "cgroup.procs").read_text().split():
            (hierarchy / "cgroup.procs").write_text(pid)
        group.rmdir()


@pytest.mark.parametrize("grouped", [False, True])
def test_a_group_is_charged_what_its_processes_use(tree, groups, grouped):
    """Work of 0.3 s, and none in the group beside it."""
    busy, idle = groups
    tree.make("pod")
    process = tree.run("pod", "pass")
    (busy / "cgroup.procs").write_text(str(process.pid))
    cpus = sorted(os.sched_getaffinity(0))
    events = [TASK_CLOCK, CONTEXT_SWITCHES]
    counters = [GroupCounters(group, cpus, events, grouped=grouped) for group in (busy, idle)]

    before = process.cpu_seconds
    used = process.do(burn(0.3)).cpu_seconds - before

    (clock, switches), (none, _) = (each.read() for each in counters)
    for each in counters:
        each.close()
        each.close()
    assert used >= 0.3
    assert 0.29e9 <= clock <= 1.2e9 * used
    assert switches >= 0
    assert none == 0
