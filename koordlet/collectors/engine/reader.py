"""Reads the kernel for one tick: each file at most once, for all collectors."""

from collections.abc import Callable
from typing import Any, TypeVar

from koord.api.nodeslo import NodeSLO
from koord.util.clock import Clock, Stamp
from koordlet.collectors.engine.entry import Entry, sharing_files
from koordlet.collectors.engine.lease import Lease
from koordlet.collectors.engine.metrics import CollectorMetrics
from koordlet.collectors.engine.readerrors import ReadErrors
from koordlet.collectors.engine.rounds import RoundOutcome
from koordlet.collectors.engine.skips import Skips
from koordlet.host.cgroups.layout import Layout
from koordlet.host.errors import KernelFileError, Unsupported, Vanished
from koordlet.host.host import Host
from koordlet.host.resource import Resource
from koordlet.statesinformer.model import PodMeta

T = TypeVar("T")

KEPT_TICKS = 64  # an entry that was not requested for so long is forgotten


class Reader:
    """Implements Tick, one tick after the other, for one sampling thread.

    Its host's descriptors are used by this thread alone, so that it can be given up with all that
    it holds. Most files are read in every tick; what is known about each is kept in an entry.
    """

    def __init__(self, host: Host, lease: Lease, skips: Skips, clock: Clock) -> None:
        self.host = host
        self.at = Stamp(0.0, 0.0)
        self.monotonic = 0.0
        self.pods: tuple[PodMeta, ...] = ()
        self.slo: NodeSLO | None = None
        self.layouts: tuple[Layout, ...] = host.layouts
        self.shared: dict[str, object] = {}
        self._lease = lease
        self._skips = skips
        self._skipping = False
        self._clock = clock
        self._number = 0
        self._entries: dict[tuple[Resource[Any], str], Entry] = {}
        self._sharing = sharing_files(host)
        self._texts: dict[str, tuple[bytes, float]] = {}  # of files with several resources
        self._read_errors = ReadErrors()
        self._good = 0
        self._bad: list[KernelFileError] = []

    def get(self, resource: Resource[T], group: str = "") -> T | None:
        found = self.get_at(resource, group)
        return None if found is None else found[0]

    def get_at(self, resource: Resource[T], group: str = "") -> tuple[T, float] | None:
        entry = self._entries.get((resource, group))
        if entry is None:
            entry = self._entries[resource, group] = self._enter(resource, group)
        if entry.tick != self._number:
            self._refresh(entry)
        if entry.error is not None:
            self._bad.append(entry.error)
            return None
        self._good += 1
        return entry.found

    def call(self, what: str, read: Callable[[], T]) -> tuple[T, float] | None:
        try:
            self._skips.check(what)
            at = self._lease.begin(what)
            try:
                value = read()
            finally:
                self._lease.end()
        except KernelFileError as err:
            self._read_errors.note(what, err)
            self._bad.append(err)
            return None
        self._read_errors.went_well(what)
        self._good += 1
        return value, at

    def begin(self, at: Stamp, pods: tuple[PodMeta, ...], slo: NodeSLO | None) -> None:
        """Start a tick: nothing is read yet."""
        self.at, self.monotonic = at, self._clock.monotonic()
        if pods != self.pods:
            self._take(pods)
        self.slo = slo
        self.shared = {}
        self._number += 1
        self._texts.clear()
        self._skipping = bool(self._skips)
        self.host.descriptors.begin_tick()
        if self._number % KEPT_TICKS == 0:
            self._forget_entries()

    def start_round(self) -> None:
        """Begin to look at how the reads of one collector go."""
        self._good = 0
        self._bad = []

    def outcome(self, *, sampled: bool) -> tuple[RoundOutcome, str]:
        """How the round of a collector went that raised nothing; sampled: it has samples."""
        if sampled or not self._bad:
            return RoundOutcome.OK, ""
        lacking = [err for err in self._bad if isinstance(err, Unsupported)]
        expected = (Unsupported, Vanished)
        failures = [err for err in self._bad if not isinstance(err, expected)]
        if failures:
            return RoundOutcome.FAILED, str(failures[0])
        if lacking and not self._good:
            return RoundOutcome.UNSUPPORTED, str(lacking[0])
        return RoundOutcome.OK, ""

    def finish(self, metrics: CollectorMetrics) -> None:
        """Count and log what the tick's reads came to."""
        self._read_errors.report(metrics, self.host.descriptors.stats(), self._well)

    def give_up_if_hung(self, limit: float) -> str | None:
        """Take the thread's right to read away if one read lasts longer than limit seconds.

        Returns what hangs: a path, or the name of a call. All files but that one are closed then.
        For the event loop.
        """
        what = self._lease.revoke_if_hung(limit)
        if what is not None:
            self.host.descriptors.give_up(what)
            self.host.descriptors.close()
        return what

    def close(self) -> None:
        """Close all files."""
        self.host.descriptors.close()

    def _enter(self, resource: Resource[Any], group: str) -> Entry:
        return Entry(self.host, resource, group, shares=resource in self._sharing)

    def _refresh(self, entry: Entry) -> None:
        """Read a file. Runs 1500 times a second on a full node, hence the few calls in it."""
        entry.tick = self._number
        try:
            if self._skipping:
                self._skips.check(entry.path)
            known = self._texts.get(entry.path) if entry.shares else None
            if known is None:
                at = self._lease.begin(entry.path)
                try:
                    text = entry.read(entry.path)
                finally:
                    self._lease.end()
                if entry.shares:
                    self._texts[entry.path] = text, at
            else:
                text, at = known
            entry.found = entry.parse(text), at
            entry.error = None
        except KernelFileError as err:
            self._failed(entry, err)
        except ValueError:
            self._failed(entry, entry.malformed(text))

    def _failed(self, entry: Entry, err: KernelFileError) -> None:
        entry.error = err
        self._read_errors.note(entry.resource.name, err)

    def _take(self, pods: tuple[PodMeta, ...]) -> None:
        """Forget the groups of pods that are gone, and look where new ones are."""
        groups = {pod.cgroup for pod in pods}
        for gone in {pod.cgroup for pod in self.pods} - groups:
            self.host.forget(gone)
        self.pods = pods
        roots = tuple(f"{layout.root}/" for layout in self.layouts)
        if not all(group.startswith(roots) for group in groups):
            self.host.detect()
            self.layouts = self.host.layouts
            self._sharing = sharing_files(self.host)
            self._entries.clear()

    def _forget_entries(self) -> None:
        oldest = self._number - KEPT_TICKS
        kept = {key: entry for key, entry in self._entries.items() if entry.tick > oldest}
        self._entries = kept

    def _well(self) -> set[str]:
        """Names of the resources that were read well in this tick, in one group at least."""
        entries = self._entries.values()
        return {e.resource.name for e in entries if e.tick == self._number and e.error is None}
