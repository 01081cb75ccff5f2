"""Pods and their cgroups: from a list (file, API server), else from the cgroup tree alone."""

import asyncio
import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from koord.api.pod import PodList, parse_pod_list
from koord.util.clock import Clock
from koord.util.health import PartHealth
from koord.util.logs import LogState, get_logger
from koord.util.stop import Alarm, Stop
from koordlet.host.cgroups.layout import Driver, Layout
from koordlet.host.cgroups.tree import CgroupTree, TreeScan
from koordlet.statesinformer.file_sources import ObjectFile, SourceHealth
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.podmeta import PodMeta, discovered_pod, join_pod, main_layout


class CgroupEvents(Protocol):
    """Notifies of new and removed pod cgroups; see koord.util.filewatch.

    problem is the reason why it cannot; "": it works.
    """

    problem: str

    def open(self) -> None: ...

    def follow(self, directories: Iterable[Path]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PodChangeNotifiers:
    """The alarms by which the listing and PodSource wake each other."""

    rescan: Alarm = field(default_factory=Alarm)  # cgroups or the list may have changed: PodSource
    repoll: Alarm = field(
        default_factory=Alarm
    )  # cgroups have changed, the list is old: the listing


SCAN_INTERVAL = 1.0  # seconds between two scans
SCAN_OFFSET = (
    0.5  # seconds from the start to the first of them: sampling has its turns at full seconds,
)
# so a new pod is sampled after 1.5 s at the latest, and the two do not compete for the interpreter
SETTLE_DELAY = 0.2  # seconds for what comes together, as the cgroups of all pods of a Job

log = get_logger("koordlet.statesinformer")


class PodListing(Protocol):
    """A list of this node's pods. problem is the reason why it cannot be read now; "": it can."""

    problem: str

    def poll(self) -> PodList | None:
        """Return the list if it is a new one; None: nothing new. May block."""


class PodSource:
    """Publishes the pods of this node whenever they or their cgroups change.

    With a file these are its pods, finished ones included; none is published before the first good
    reading. A bad pod is left out, a bad file keeps the pods of the last good one. The same goes
    for any other listing, but until its first list, pods are measured as the cgroup tree shows
    them: an API server may be away for long.

    Scans come once a second, and sooner when alarms.rescan is set. events, when given, set it;
    without them, or while they fail, the scan of each second finds all changes.
    """

    name = "pods"

    def __init__(
        self,
        tree: CgroupTree,
        informer: StatesInformer,
        clock: Clock,
        *,
        pods_file: Path | None = None,
        listing: PodListing | None = None,
        default_layout: Layout | None = None,
        alarms: PodChangeNotifiers | None = None,
        events: CgroupEvents | None = None,
    ) -> None:
        self._tree = tree
        self._informer = informer
        self._listing = listing
        self._measures_unlisted = pods_file is None
        if pods_file is not None:
            self._listing = ObjectFile(pods_file, parse_pod_list, half_characters=True)
        self._default_layout = default_layout or Layout.default(Driver.SYSTEMD)
        self._alarms = alarms or PodChangeNotifiers()
        self._events = events
        self._no_events = LogState(log)
        self._clock = clock
        self._condition = SourceHealth(self.name, clock)
        self._scan: TreeScan | None = None
        self._listed: PodList | None = None

    async def run(self, stop: Stop) -> None:
        """Scan and watch until stop."""
        self._condition.begin()
        try:
            await self._rescan_until(stop)
        finally:
            if self._events is not None:
                self._events.close()

    async def _rescan_until(self, stop: Stop) -> None:
        await self._round()
        due = self._clock.monotonic() + SCAN_OFFSET
        while not stop.is_set():
            if await self._alarms.rescan.wait(stop, due - self._clock.monotonic()):
                await stop.sleep(SETTLE_DELAY)
            if stop.is_set():
                return
            late = self._clock.monotonic() - due
            if late >= 0:
                due += SCAN_INTERVAL * (math.floor(late / SCAN_INTERVAL) + 1)
            await self._round()

    @property
    def layout(self) -> Layout:
        """The naming of pods' cgroups on this host, as the latest scan found it."""
        layouts = () if self._scan is None else self._scan.layouts
        return main_layout(layouts, self._default_layout)

    def health(self) -> PartHealth:
        """Degraded while a pod is left out; unhealthy when a scan never returns."""
        found = self._condition.health()
        if self._events is None:
            return found
        found_by = self._events.problem or "inotify"
        return dataclasses.replace(found, detail={**found.detail, "new_cgroups_found_by": found_by})

    async def _round(self) -> None:
        self._open_events()
        scan = self._scan
        pods = await asyncio.to_thread(self._refresh)
        if scan is not None and self._scan is not scan:
            self._alarms.repoll.set()
        if pods is not None:
            is_listed = self._listing is None or self._listed is not None
            self._informer.set_pods(pods, provisional=not is_listed)
        self._condition.finish(self._problems())

    def _open_events(self) -> None:
        if self._events is None:
            return
        self._events.open()
        if self._events.problem:
            self._no_events.failed(
                "cgroup_events.missing",
                reason=self._events.problem,
                note=f"new pods are looked for every {SCAN_INTERVAL:g} s",
            )
        else:
            self._no_events.ended("cgroup_events.restored")

    def _refresh(self) -> tuple[PodMeta, ...] | None:
        """Return all pods; None: nothing has changed, or the file was never readable."""
        scan = self._tree.scan()
        if self._events is not None:
            self._events.follow(self._tree.class_dirs())
        listed = None if self._listing is None else self._listing.poll()
        if scan is self._scan and listed is None:
            return None
        self._scan = scan
        self._listed = listed or self._listed
        if self._listed is None:
            if not self._measures_unlisted:
                return None
            return tuple(discovered_pod(pod) for pod in scan.pods)
        tree = {pod.uid: pod for pod in scan.pods}
        return tuple(join_pod(pod, tree, self.layout) for pod in self._listed[0])

    def _problems(self) -> tuple[str, ...]:
        problems = () if self._scan is None else self._scan.problems
        if self._listing is not None and self._listing.problem:
            problems += (self._listing.problem,)
        if self._listed is not None and self._listed[1]:
            bad = self._listed[1]
            problems += (f"pod list: {len(bad)} pods left out, the first because of {bad[0]}",)
        if self._listed is not None:
            odd = [text for pod in self._listed[0] for text in pod.left_out]
            if odd:
                problems += (f"pod list: {len(odd)} parts of pods left out, the first: {odd[0]}",)
        return problems
