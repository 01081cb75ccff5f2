"""The metric cache: what was measured on this node lately, kept over restarts of the daemon."""

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import cast

from koord.api.nodemetric import DEFAULT_SPEC, NodeMetricSpec
from koord.util.clock import Clock, Stamp
from koord.util.logs import LogState, get_logger
from koord.util.ownedfiles import OwnedDirectory, OwnedPath
from koord.util.text import nearest
from koordlet.metriccache.aggregate import Aggregate
from koordlet.metriccache.keys import UnknownSeries
from koordlet.metriccache.kinds import KINDS, AnyKind, Cadence, K, Kind, P, RetentionClass, Sample
from koordlet.metriccache.ring import RingDiscarded, TableLimits
from koordlet.metriccache.table import SeriesTable


def retentions(spec: NodeMetricSpec = DEFAULT_SPEC) -> dict[RetentionClass, float]:
    """Return the seconds that samples are kept for reports of this spec."""
    return {
        RetentionClass.NODE: max(spec.aggregate_duration, *spec.durations),
        RetentionClass.POD: spec.aggregate_duration,
    }


MAX_RETENTION = 3600.0  # seconds; longer windows asked for are cut to this
MAX_KIND_BYTES = 16 * 1024 * 1024
_SUFFIX = ".ring"


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Size of the cache, and what it had to leave out since the start."""

    series: int
    file_bytes: int
    dropped: Mapping[str, int]  # by reason: the fields of Dropped, and "unknown_kind"


class MetricCache:
    """One table per kind; any thread may call anything.

    Windows are [end - seconds, end] in seconds since boot, both ends included; without `end` they
    end now. Series without a sample in the window are absent from results, never 0.

    The values of a key follow the kind, in the order of its properties or by name. A kind, a
    property or a value that cannot exist raises UnknownSeries, from every query.
    """

    def __init__(
        self,
        directory: OwnedPath | None,
        boot_id: str,
        clock: Clock,
        *,
        intervals: Mapping[Cadence, float],
        retentions: Mapping[RetentionClass, float],
        kinds: Iterable[AnyKind] = tuple(KINDS.values()),
        max_kind_bytes: int = MAX_KIND_BYTES,
    ) -> None:
        """Open the cache in `directory`, which it makes and owns; None keeps it in memory.

        What an earlier process of this boot left there is taken over. Anything unusable is
        dropped with a log line; without a usable directory the cache works in memory and
        `problems` says so.
        """
        self._log = get_logger("koordlet.metriccache")
        self._clock = clock
        self._lock = threading.Lock()
        self._values: dict[str, object] = {}
        self._unknown_kind = 0
        self._trouble = LogState(self._log)
        self._directory_error = ""
        kinds = list(kinds)
        self._directory = usable = self._prepared(
            directory, {f"{kind.name}{_SUFFIX}" for kind in kinds}
        )
        self._tables = {
            kind.name: SeriesTable(
                kind,
                boot_id,
                TableLimits(
                    intervals[kind.cadence],
                    _cap_retention(retentions[kind.retention_class]),
                    max_kind_bytes,
                ),
                None if usable is None else usable / f"{kind.name}{_SUFFIX}",
            )
            for kind in kinds
        }
        self._load()

    def append(self, at: Stamp, samples: Iterable[Sample]) -> None:
        """Store what one tick measured: per kind one column, so call it once per tick and kind.

        A sample that is not finite or does not fit its kind is left out alone; a tick that is not
        newer than the newest one of a kind is left out for that kind. `stats` counts both.
        """
        batches: dict[str, list[Sample]] = {}
        for sample in samples:
            name = sample[0].name
            if name in batches:
                batches[name].append(sample)
            else:
                batches[name] = [sample]
        with self._lock:
            for name, batch in batches.items():
                table = self._tables.get(name)
                if table is None:
                    self._unknown_kind += len(batch)
                else:
                    table.write(at, batch)
            self._log_problems()

    def last(self, kind: Kind[P, K], /, *key: P.args, **named: P.kwargs) -> float | None:
        """Newest value of a series; None when there is none within two intervals."""
        with self._lock:
            wanted = _key(kind, key, named)
            view = self._table_of(kind, wanted).view
            return view.last(wanted, self._clock.boottime()) if view else None

    def last_values(self, kind: Kind[P, K]) -> dict[K, float]:
        """Newest value of each series that has one within two intervals."""
        with self._lock:
            view = self._table(kind).view
            found = view.last_values(self._clock.boottime()) if view else {}
            return cast("dict[K, float]", found)

    def newest(self, kind: Kind[P, K], /, *key: P.args, **named: P.kwargs) -> Stamp | None:
        """Time of the newest sample of a series, however old it is."""
        with self._lock:
            wanted = _key(kind, key, named)
            view = self._table_of(kind, wanted).view
            return view.newest(wanted) if view else None

    def aggregate(
        self, kind: Kind[P, K], key: K, seconds: float, end: float | None = None
    ) -> Aggregate | None:
        """Aggregate of one series; None when it has no sample in the window.

        `kind.key(...)` makes the key.
        """
        with self._lock:
            view = self._table_of(kind, key).view
            return view.aggregate(key, seconds, self._end(end)) if view else None

    def aggregate_all(
        self, kind: Kind[P, K], seconds: float, end: float | None = None
    ) -> dict[K, Aggregate]:
        """Aggregates of all series of a kind that have a sample in the window."""
        with self._lock:
            view = self._table(kind).view
            found = view.aggregate_all(seconds, self._end(end)) if view else {}
            return cast("dict[K, Aggregate]", found)

    def series(
        self, kind: Kind[P, K], key: K, seconds: float, end: float | None = None
    ) -> list[tuple[float, float]]:
        """(seconds since boot, value) of each sample of one series, oldest first."""
        found = self.aggregate(kind, key, seconds, end)
        return found.points() if found else []

    def keys(self, kind: Kind[P, K]) -> list[K]:
        """The series of a kind; one leaves when it had no sample for about the retention."""
        with self._lock:
            return cast("list[K]", self._table(kind).keys())

    def match(self, kind: Kind[P, K], **properties: str) -> list[K]:
        """The series of a kind that have these property values."""
        wanted = kind.chosen(properties)
        return [key for key in self.keys(kind) if all(key[i] == value for i, value in wanted)]

    def put(self, name: str, value: object) -> None:
        """Keep something that has no history, for example NUMA information; the last one wins."""
        with self._lock:
            self._values[name] = value

    def get(self, name: str) -> object | None:
        """Return the object that was put under that name; None: not collected yet."""
        with self._lock:
            return self._values.get(name)

    def kinds(self) -> dict[str, AnyKind]:
        """Return the kinds that have a table, by name: koordlet's and those of plugins."""
        return {name: table.kind for name, table in self._tables.items()}

    def interval(self, kind: AnyKind) -> float:
        """Seconds between two samples of a kind, as configured."""
        with self._lock:
            return self._table(kind).interval

    def set_retention(self, retention_class: RetentionClass, seconds: float) -> None:
        """Keep that much history of these kinds from now on, at most MAX_RETENTION."""
        with self._lock:
            for table in self._tables.values():
                if table.kind.retention_class is retention_class:
                    table.set_retention(_cap_retention(seconds))

    def problems(self) -> list[str]:
        """Return what the cache does without at present, for /healthz; empty when all is well."""
        with self._lock:
            return self._problems()

    def stats(self) -> CacheStats:
        with self._lock:
            dropped: Counter[str] = Counter(unknown_kind=self._unknown_kind)
            for table in self._tables.values():
                dropped.update(asdict(table.dropped))
            return CacheStats(
                series=sum(len(table.keys()) for table in self._tables.values()),
                file_bytes=sum(table.file_bytes for table in self._tables.values()),
                dropped=dict(dropped),
            )

    def close(self) -> None:
        """Unmap the files; they stay for the next process. No calls after this one."""
        with self._lock:
            for table in self._tables.values():
                table.close()
            if self._directory is not None:
                self._directory.close()

    def _table(self, kind: AnyKind) -> SeriesTable:
        table = self._tables.get(kind.name)
        if table is None:
            raise UnknownSeries(
                f"wanted a registered metric kind, found {kind.name!r}; "
                f"the nearest is {nearest(kind.name, self._tables)!r}"
            )
        return table

    def _table_of(self, kind: AnyKind, key: object) -> SeriesTable:
        """The table in which the key has a row, or may have one; it was checked when it got it."""
        table = self._table(kind)
        if not table.has(key):
            kind.check(key)
        return table

    def _end(self, end: float | None) -> float:
        return self._clock.boottime() if end is None else end

    def _prepared(self, place: OwnedPath | None, ours: set[str]) -> OwnedDirectory | None:
        """Make the directory and clear it of files that no kind owns; None when it cannot be."""
        if place is None:
            return None
        try:
            directory = place.make_directory()
            for name in directory.names():
                file = directory / name
                if name not in ours and _SUFFIX in file.path.suffixes:
                    self._log.info("ring.deleted", path=str(file), reason="of no metric kind")
                    file.unlink()
        except OSError as err:
            self._directory_error = f"{place}: {err.strerror}"
            return None
        return directory

    def _load(self) -> None:
        now = self._clock.boottime()
        for table in self._tables.values():
            try:
                table.load(now)
            except RingDiscarded as err:
                (self._log.info if err.expected else self._log.warning)(
                    "ring.discarded", kind=table.kind.name, error=str(err)
                )
                table.remove_file()
            except FileNotFoundError:
                continue
            except OSError as err:
                self._log.warning("ring.read_failed", kind=table.kind.name, error=str(err))
            lost = table.dropped
            if lost.columns or lost.rows:
                self._log.warning(
                    "ring.damaged",
                    kind=table.kind.name,
                    columns_dropped=lost.columns,
                    series_dropped=lost.rows,
                )

    def _problems(self) -> list[str]:
        problems = [self._directory_error] if self._directory_error else []
        for table in self._tables.values():
            if table.disk_error:
                problems.append(f"{table.kind.name} is kept in memory only: {table.disk_error}")
            if table.full:
                problems.append(f"{table.kind.name} is full: {table.full} series left out")
        return problems

    def _log_problems(self) -> None:
        if problems := self._problems():
            self._trouble.failed("metriccache.degraded", problems=problems[:5])
        else:
            self._trouble.ended("metriccache.recovered")


def _cap_retention(seconds: float) -> float:
    return min(seconds, MAX_RETENTION)


def _key(kind: Kind[P, K], key: tuple[object, ...], named: Mapping[str, object]) -> K:
    """The key as the caller spelled it; it is checked where it has no row."""
    return kind.made(*key, **named) if named else cast("K", key)
