"""Settings of pods and of the node, and results that follow from them."""

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from koord.api.pod import Pod
from koord.util import goformat
from koord.util.errors import InvalidObject
from koordlet.executor.kernel.view import Kernel
from koordlet.host.resources import CGROUP_PROCS, PROCESS_START
from koordlet.plugin.base import ExtensionPlugin
from koordlet.plugin.extensions import Rejections
from koordlet.plugin.interfaces import States
from koordlet.statesinformer.podmeta import PodMeta

NORMALIZATION_RATIO = "node.koordinator.sh/cpu-normalization-ratio"  # annotation of a Node
NOTICEABLE = 0.01  # smaller changes of the ratio are none

W = TypeVar("W")


class PodSettings(Generic[W]):
    """Reads the settings of each version of a pod once."""

    def __init__(
        self,
        read: Callable[[Pod], W | None],
        rejections: Rejections,
        otherwise: W | None = None,
    ) -> None:
        """read: returns None for a pod that does not matter; raises InvalidObject.

        otherwise: the settings of a pod whose own could never be used.
        """
        self._read = read
        self._rejections = rejections
        self._otherwise = otherwise
        self._kept: dict[str, tuple[Pod, W | None]] = {}  # by UID

    def of(self, pod: Pod) -> W | None:
        """Return a pod's settings; the last good ones while the present ones cannot be used."""
        kept = self._kept.get(pod.uid)
        if kept is not None and kept[0] is pod:
            return kept[1]
        found = self._last_good(pod, self._otherwise if kept is None else kept[1])
        self._kept[pod.uid] = (pod, found)
        return found

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self._kept.pop(uid, None)
        self._rejections.forget(uid)

    def keep(self, uids: Iterable[str]) -> None:
        """Forget all pods but these."""
        for uid in self._kept.keys() - set(uids):
            self.forget(uid)

    def _last_good(self, pod: Pod, last: W | None) -> W | None:
        try:
            found = self._read(pod)
        except InvalidObject as err:
            self._rejections.reject(pod.uid, err, pod)
            return last
        self._rejections.accept(pod.uid)
        return found


S = TypeVar("S")
T = TypeVar("T")


class _CachedResult(NamedTuple, Generic[S, T]):
    pod: PodMeta
    settings: S
    result: T


class PerPod(Generic[S, T]):
    """Remembers a result for each pod of the latest round.

    A round then costs one comparison per pod, as pods and settings are replaced, never modified.
    """

    def __init__(self, work_out: Callable[[PodMeta, S], T], forget: Callable[[str], None]) -> None:
        """forget is called with the uid of a pod that is no longer among those of a round."""
        self._work_out = work_out
        self._forget = forget
        self._settings: S | None = None
        self._kept: dict[str, _CachedResult[S, T]] = {}

    async def of(self, pods: Iterable[PodMeta], settings: S) -> list[T]:
        """Return the results in the order of the pods; other tasks run between new ones."""
        if self._settings is not None and settings == self._settings:
            settings = self._settings  # so that comparing it again, for each pod, costs nothing
        self._settings = settings
        before, self._kept = self._kept, {}
        for pod in pods:
            kept = before.get(pod.uid)
            if kept is None or kept.settings is not settings or not _same(kept.pod, pod):
                kept = _CachedResult(pod, settings, self._work_out(pod, settings))
                await asyncio.sleep(0)
            self._kept[pod.uid] = kept
        for uid in before.keys() - self._kept.keys():
            self._forget(uid)
        return [kept.result for kept in self._kept.values()]


def _same(before: PodMeta, now: PodMeta) -> bool:
    return before is now or before == now  # comparing an object with itself field by field is dear


_KEY = "node cpu normalization"


class NodeRatio:
    """Follows the node's annotation; one that cannot be used, and a tiny change, change nothing."""

    def __init__(self, states: States, rejections: Rejections) -> None:
        self._states = states
        self._rejections = rejections
        self._ratio: float | None = None

    def now(self) -> float | None:
        """Return how many times faster the CPUs are than counted on; None: not normalized."""
        node = self._states.node()
        try:
            found = normalization_ratio(node.annotations) if node else None
        except InvalidObject as err:
            self._rejections.reject(_KEY, err)
            return self._ratio
        self._rejections.accept(_KEY)
        self._ratio = is_noticeable_change(found, self._ratio)
        return self._ratio


def normalization_ratio(annotations: Mapping[str, str]) -> float | None:
    """Return the ratio in a node's annotations; None: CPUs are not normalized.

    Raises:
        InvalidObject: it is no positive number.
    """
    text = annotations.get(NORMALIZATION_RATIO)
    if text is None:
        return None
    try:
        ratio = goformat.parse_float(text)
    except ValueError:
        ratio = math.nan
    if not 0 < ratio < math.inf:
        where = f"node: {NORMALIZATION_RATIO}"
        raise InvalidObject(where, wanted='a positive number like "1.25"', found=text)
    return ratio


def is_noticeable_change(ratio: float | None, previous: float | None) -> float | None:
    """Return the ratio in force: the previous one while the change is too small to matter."""
    if ratio is None or previous is None or abs(ratio - previous) >= NOTICEABLE:
        return ratio
    return previous


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
