"""The processes in cgroups, distinguished from later processes with the same pids."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from koordlet.executor.kernel.view import Kernel
from koordlet.host.resources import CGROUP_PROCS, PROCESS_START
from koordlet.plugin.base import ExtensionPlugin

MAX_PER_GROUP, MAX_PROCESSES = 200, 2000  # processes that are looked after


@dataclass(frozen=True, slots=True)
class Process:
    """A process. start_time is in ticks since boot: a pid alone may be reused."""

    pid: int
    start_time: int


class ProcessLists:
    """Lists processes round by round, for one plugin."""

    def __init__(self, plugin: ExtensionPlugin) -> None:
        self._plugin = plugin
        self._processes: dict[str, frozenset[Process]] = {}  # of the latest round, by cgroup
        self._full = False

    def begin(self) -> None:
        """Forget all rounds."""
        self._processes = {}

    async def of(self, groups: Collection[str]) -> dict[str, frozenset[Process]]:
        """The processes by cgroup; where one cannot be read now, those of the round before."""
        groups = tuple(groups)
        if not groups:
            self._processes = {}
            return {}
        kernel = self._plugin.kernel
        lists = await kernel.read_many([(CGROUP_PROCS, group) for group in groups])
        pids = {
            group: sorted(found.value)[:MAX_PER_GROUP]
            for group, found in zip(groups, lists, strict=True)
            if found is not None
        }
        started = await self._start_times(kernel, [pid for group in pids for pid in pids[group]])
        kept = {group: self._processes.get(group, frozenset()) for group in groups}
        self._processes = kept | {
            group: frozenset(Process(pid, started[pid]) for pid in members if pid in started)
            for group, members in pids.items()
        }
        return self._processes

    async def _start_times(self, kernel: Kernel, pids: list[int]) -> dict[int, int]:
        """Start times by pid; ended processes are absent."""
        full = len(pids) > MAX_PROCESSES
        if full and not self._full:
            self._plugin.log.warning(
                "processes.too_many", found=len(pids), looked_after=MAX_PROCESSES
            )
        self._full = full
        found = await kernel.read_many([(PROCESS_START, str(pid)) for pid in pids[:MAX_PROCESSES]])
        return {
            pid: reading.value
            for pid, reading in zip(pids, found, strict=False)
            if reading is not None
        }


def by_pid(processes: Iterable[Process]) -> list[Process]:
    """Sort processes by their pids."""
    return sorted(processes, key=lambda process: process.pid)
