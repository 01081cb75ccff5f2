"""Read the kernel for one tick: each file at most once, for all collectors.

A thread that hangs in the kernel loses its lease; files that hung are skipped for a while.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from koord.api.nodeslo import NodeSLO
from koord.util.clock import Clock, Stamp
from koord.util.logs import LogState, get_logger
from koord.util.timebudget import Backoff
from koordlet.collectors.engine.rounds import CollectorMetrics, RoundOutcome
from koordlet.host.cgroups.layout import Layout
from koordlet.host.errors import Hung, KernelFileError, Unsupported, Vanished
from koordlet.host.files import DescriptorStats
from koordlet.host.host import BoundFile, Host
from koordlet.host.resource import Resource, Support
from koordlet.host.resources import RESOURCES
from koordlet.statesinformer.podmeta import PodMeta

T = TypeVar("T")


class LeaseRevoked(BaseException):
    """Ends a thread that was given up, at the moment its kernel read returns.

    Not an Exception, so that no collector and no isolation of collectors holds it up.
    """


class ReadLease:
    """The right of one thread to work, which can be taken away while it waits for the kernel.

    The thread does every kernel read with `during`. The watching side may revoke the lease only in
    one, so from then on exactly one of both works with the shared objects: the one that took the
    announcement off the list, which is atomic and much cheaper than a lock.
    """

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._reading: list[tuple[str, float]] = []  # the read that goes on, if any

    def during(self, what: str, read: Callable[[], T]) -> tuple[T, float]:
        """Read, announced as what. Return what was read, and the monotonic time before.

        Raises:
            LeaseRevoked: the lease was revoked meanwhile.
        """
        now = self._monotonic()
        self._reading.append((what, now))
        try:
            return read(), now
        finally:
            try:
                self._reading.pop()
            except IndexError:
                raise LeaseRevoked from None

    def revoke_if_hung(self, limit: float) -> str | None:
        """Revoke the lease if one read lasts longer than limit seconds; return what it reads."""
        try:
            _, began = self._reading[0]
            if self._monotonic() - began < limit:
                return None
            return self._reading.pop()[0]
        except IndexError:  # there is none, or it has just returned
            return None


INITIAL_BACKOFF = 30.0  # seconds between the return of a read that hung and the next attempt
MAX_BACKOFF = 3600.0


class SkippedReads:
    """Reads to leave out, by the name under which the reading was announced.

    Asked by the sampling thread, changed by the event loop.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}
        self._pauses: dict[str, Backoff] = {}

    def add(self, what: str) -> None:
        """Leave it alone while a thread still waits for it."""
        self._until[what] = float("inf")

    def release(self, what: str) -> None:
        """The thread came back: try again after a pause, longer each time."""
        now = self._clock.monotonic()
        for old in [name for name, until in self._until.items() if until < now - MAX_BACKOFF]:
            del self._until[old]
            self._pauses.pop(old, None)
        pause = self._pauses.setdefault(what, Backoff(INITIAL_BACKOFF, MAX_BACKOFF))
        self._until[what] = now + pause.next()

    def check(self, what: str) -> None:
        """Raise Hung when it is to be left alone."""
        until = self._until.get(what)
        if until is not None and self._clock.monotonic() < until:
            raise Hung(
                what,
                wanted="to read it",
                found="that an earlier read did not return",
                hint="look at the kernel log; it is tried again when that read returns",
            )

    def __bool__(self) -> bool:
        return bool(self._until)


log = get_logger("koordlet.collectors")

_OUTCOMES: tuple[tuple[type[KernelFileError], str], ...] = (
    (Unsupported, "unsupported"),
    (Vanished, "vanished"),
    (Hung, "hung"),
    (KernelFileError, "failed"),
)


class ReadErrors:
    """Errors of reads, one tick after the other.

    Names are those of resources or calls, not of single cgroups: what fails for one pod often
    fails for all pods, and one log line is enough.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._failed: dict[str, KernelFileError] = {}
        self._calls: set[str] = set()
        self._lasting: dict[str, LogState] = {}
        self._reads = 0

    def record(self, name: str, err: KernelFileError) -> None:
        """Note an error. Only the unexpected ones are going to be logged."""
        outcome = next(outcome for kind, outcome in _OUTCOMES if isinstance(err, kind))
        self._counts[outcome] += 1
        if outcome == "failed":
            self._failed[name] = err

    def succeeded(self, call: str) -> None:
        """Note that a call returned."""
        self._calls.add(call)

    def report(
        self, metrics: CollectorMetrics, stats: DescriptorStats, well: Callable[[], set[str]]
    ) -> None:
        """Count and log the outcome of a tick. well returns the resources that were read well."""
        metrics.held_descriptors.set(stats.held)
        metrics.reads.labels("ok").inc(stats.reads - self._reads)
        self._reads = stats.reads
        for outcome, count in self._counts.items():
            metrics.reads.labels(outcome).inc(count)
        for name, err in self._failed.items():
            state = self._lasting.setdefault(name, LogState(log))
            state.failed("kernel_read.failed", what=name, error=str(err))
        if self._lasting:
            for name in self._lasting.keys() & ((well() | self._calls) - self._failed.keys()):
                self._lasting.pop(name).ended("kernel_read.recovered", what=name)
        self._counts.clear()
        self._failed.clear()
        self._calls.clear()


RETAINED_TICKS = 64  # an entry that was not requested for so long is forgotten


class _ReaderEntry:
    """A file of a group, as the pass knows it from tick to tick."""

    __slots__ = ("error", "file", "found", "name", "shares", "tick")

    def __init__(self, name: str, file: BoundFile[Any] | None, *, shares: bool) -> None:
        """file None: this cgroup version has none."""
        self.name = name  # of the resource
        self.file = file
        self.shares = shares  # other resources are in the same file
        self.tick = 0  # in which it was read last; 0: not yet
        self.found: tuple[Any, float] | None = None  # value, and monotonic seconds of the reading
        self.error: KernelFileError | None = None  # why there is no value


class _ReaderColumn:
    """The entries of one resource for many groups."""

    __slots__ = ("entries", "tick")

    def __init__(self, entries: list[_ReaderEntry]) -> None:
        self.entries = entries
        self.tick = 0  # in which it was requested last


class Reader:
    """Implements Tick, one tick after the other, for one sampling thread.

    Its host's descriptors are used by this thread alone, so that it can be given up with all that
    it holds. Most files are read in every tick; what is known about each is kept in an entry.
    """

    def __init__(self, host: Host, lease: ReadLease, skips: SkippedReads, clock: Clock) -> None:
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
        self._entries: dict[tuple[Resource[Any], str], _ReaderEntry] = {}
        self._columns: dict[tuple[Resource[Any], tuple[str, ...]], _ReaderColumn] = {}
        self._sharing = _sharing_files(host)
        self._texts: dict[str, tuple[bytes, float]] = {}  # of files with several resources
        self._read_errors = ReadErrors()
        self._good = 0
        self._bad: list[KernelFileError] = []

    def get(self, resource: Resource[T], group: str = "") -> T | None:
        found = self.get_at(resource, group)
        return None if found is None else found[0]

    def get_at(self, resource: Resource[T], group: str = "") -> tuple[T, float] | None:
        entry = self._entries.get((resource, group)) or self._enter(resource, group)
        if entry.tick != self._number:
            self._refresh(entry)
        if entry.error is not None:
            self._bad.append(entry.error)
            return None
        self._good += 1
        return entry.found

    def get_all(
        self, resource: Resource[T], groups: tuple[str, ...]
    ) -> list[tuple[T, float] | None]:
        column = self._columns.get((resource, groups))
        if column is None:
            entries = self._entries
            column = self._columns[resource, groups] = _ReaderColumn(
                [entries.get((resource, g)) or self._enter(resource, g) for g in groups]
            )
        column.tick = number = self._number
        found: list[tuple[T, float] | None] = []
        for entry in column.entries:
            if entry.tick != number:
                self._refresh(entry)
            if entry.error is None:
                found.append(entry.found)
            else:
                self._bad.append(entry.error)
                found.append(None)
        self._good += len(found) - found.count(None)
        return found

    def call(self, what: str, read: Callable[[], T]) -> tuple[T, float] | None:
        try:
            self._skips.check(what)
            found = self._lease.during(what, read)
        except KernelFileError as err:
            self._read_errors.record(what, err)
            self._bad.append(err)
            return None
        self._read_errors.succeeded(what)
        self._good += 1
        return found

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
        if self._number % RETAINED_TICKS == 0:
            self._forget_entries()

    def start_round(self) -> None:
        """Begin to look at how the reads of one collector go."""
        self._good = 0
        self._bad = []

    def outcome(self, *, sampled: bool) -> tuple[RoundOutcome, str]:
        """Return the outcome of a round that raised nothing; sampled: it has samples."""
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
        self._read_errors.report(metrics, self.host.descriptors.stats(), self._succeeded)

    def abandon_if_hung(self, limit: float) -> str | None:
        """Take the thread's right to read away if one read lasts longer than limit seconds.

        Returns what hangs: a path, or the name of a call. All files but that one are closed then.
        For the event loop.
        """
        what = self._lease.revoke_if_hung(limit)
        if what is not None:
            self.host.descriptors.abandon(what)
            self.host.descriptors.close()
        return what

    def close(self) -> None:
        """Close all files."""
        self.host.descriptors.close()

    def _enter(self, resource: Resource[Any], group: str) -> _ReaderEntry:
        try:
            file = self.host.bind(resource, group, if_supported=True)
            # Few files are of the root group, so all of those may be of several resources.
            entry = _ReaderEntry(resource.name, file, shares=not group or resource in self._sharing)
        except Unsupported as err:
            entry = _ReaderEntry(resource.name, None, shares=False)
            entry.error = err
        self._entries[resource, group] = entry
        return entry

    def _refresh(self, entry: _ReaderEntry) -> None:
        """Read a file. Runs 1500 times a second on a full node, hence the few calls in it."""
        entry.tick = self._number
        file = entry.file
        try:
            if file is not None:
                if entry.shares:
                    text, at = self._shared(file)
                elif self._skipping:
                    text, at = self._text(file)
                else:
                    text, at = self._lease.during(file.path, file.text)
                entry.found = file.parse(text), at
                entry.error = None
        except KernelFileError as err:
            entry.error = err
        if entry.error is not None:
            self._read_errors.record(entry.name, entry.error)

    def _shared(self, file: BoundFile[Any]) -> tuple[bytes, float]:
        """Return the text of a file, and when it was read; each file is read once per tick.

        Raises KernelFileError.
        """
        known = self._texts.get(file.path)
        if known is None:
            known = self._texts[file.path] = self._text(file)
        return known

    def _text(self, file: BoundFile[Any]) -> tuple[bytes, float]:
        """Return the text of a file, and when it was read. Raises KernelFileError."""
        if self._skipping:
            self._skips.check(file.path)
        return self._lease.during(file.path, file.text)

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
            self._sharing = _sharing_files(self.host)
            self._entries.clear()
            self._columns.clear()

    def _forget_entries(self) -> None:
        oldest = self._number - RETAINED_TICKS
        kept = {key: entry for key, entry in self._entries.items() if entry.tick > oldest}
        self._entries = kept
        columns = self._columns
        self._columns = {key: used for key, used in columns.items() if used.tick > oldest}

    def _succeeded(self) -> set[str]:
        """Names of the resources that were read well in this tick, in one group at least."""
        entries = self._entries.values()
        return {e.name for e in entries if e.tick == self._number and e.error is None}


def _sharing_files(host: Host) -> frozenset[Resource[Any]]:
    """Return the resources whose files hold others too, as cpu.stat does on cgroup v2.

    Those of the root group alone are left out.
    """
    paths = {}
    for resource in RESOURCES:
        try:
            if host.file(resource).support is not Support.ROOT:
                paths[resource] = host.path(resource, "*")
        except Unsupported:
            continue
    count = Counter(paths.values())
    return frozenset(resource for resource, path in paths.items() if count[path] > 1)
