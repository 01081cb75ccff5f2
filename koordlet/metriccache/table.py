"""All series of one kind: rows, columns, the size of the ring, and read access."""

import heapq
import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from koord.util.clock import Stamp
from koord.util.ownedfiles import OwnedPath
from koordlet.metriccache.aggregate import Aggregate, Window
from koordlet.metriccache.keys import UnknownSeries
from koordlet.metriccache.kinds import AnyKind, Sample
from koordlet.metriccache.ring import (
    DamagedRing,
    Ring,
    RingDiscarded,
    RingGeometry,
    RingIdentity,
    SeriesKey,
    TableLimits,
    decode_key,
    encode_key,
    key_bytes_with_headroom,
    rows_with_headroom,
)


class Rows:
    """Rows by key. Low rows are given out first, so that columns stay short."""

    def __init__(self) -> None:
        self.by_key: dict[SeriesKey, int] = {}
        self.created: list[float] = []  # per row: boot time of the first sample of its series
        self._free: list[int] = []  # heap

    @property
    def height(self) -> int:
        """Rows ever given out; columns are that long."""
        return len(self.created)

    @property
    def free(self) -> int:
        """Rows below height that no series owns."""
        return len(self._free)

    def take(self, key: SeriesKey, created: float) -> int:
        if self._free:
            row = heapq.heappop(self._free)
        else:
            row = len(self.created)
            self.created.append(created)
        self.created[row] = created
        self.by_key[key] = row
        return row

    def release(self, key: SeriesKey) -> int:
        row = self.by_key.pop(key)
        heapq.heappush(self._free, row)
        return row

    def compact(self) -> list[int]:
        """Give the series the lowest rows, in their order; return the old row of each."""
        by_row = sorted((row, key) for key, row in self.by_key.items())
        old = [row for row, _ in by_row]
        self.created = [self.created[row] for row in old]
        self.by_key = {key: row for row, (_, key) in enumerate(by_row)}
        self._free = []
        return old

    def restore(self, found: dict[int, tuple[float, SeriesKey]]) -> None:
        """Start from the (born, key) of the rows in use that a file names."""
        self.created = [0.0] * (max(found, default=-1) + 1)
        for row, (created, key) in found.items():
            self.created[row] = created
            self.by_key[key] = row
        used = set(self.by_key.values())
        self._free = [row for row in range(self.height) if row not in used]


_HALF_MILLISECOND = 0.0005  # windows include both ends, to the millisecond


@dataclass(frozen=True, slots=True)
class SeriesView:
    """Queries on a ring and its rows; all times are seconds since boot.

    A cell older than the birth of its row's series belongs to an earlier owner of the row, or to
    none, and is never shown.
    """

    ring: Ring
    rows: Rows
    interval: float  # seconds between columns as configured

    def last(self, key: SeriesKey, now: float) -> float | None:
        """Newest value of a series, None when it is older than two intervals."""
        column = self.newest_column(key, now - 2 * self.interval)
        return None if column is None else self.ring.cell(column, self.rows.by_key[key])

    def last_values(self, now: float) -> dict[SeriesKey, float]:
        """Newest value of each series that has one within two intervals."""
        ring, created = self.ring, self.rows.created
        values: dict[SeriesKey, float] = {}
        oldest = now - 2 * self.interval - _HALF_MILLISECOND
        for column in range(bisect_left(ring.boots, oldest), ring.count):
            cells, boot = ring.copy(column, column + 1), ring.boots[column]
            for key, row in self.rows.by_key.items():
                value = cells[row]
                if value == value and created[row] <= boot:
                    values[key] = value
        return values

    def newest(self, key: SeriesKey) -> Stamp | None:
        """Time of the newest sample of a series."""
        column = self.newest_column(key)
        return None if column is None else Stamp(self.ring.walls[column], self.ring.boots[column])

    def newest_column(self, key: SeriesKey, oldest: float = 0.0) -> int | None:
        """Column of the newest sample of a series, if that is not older than `oldest`."""
        row = self.rows.by_key.get(key)
        if row is None:
            return None
        oldest = max(oldest - _HALF_MILLISECOND, self.rows.created[row])
        for column in range(self.ring.count - 1, -1, -1):
            if self.ring.boots[column] < oldest:
                return None
            value = self.ring.cell(column, row)
            if value == value:
                return column
        return None

    def idle(self, since: float) -> list[SeriesKey]:
        """The series without a sample since then."""
        if self.ring.newest_boot < since:
            return list(self.rows.by_key)
        newest = self.ring.copy(self.ring.count - 1, self.ring.count)
        missing = [key for key, row in self.rows.by_key.items() if newest[row] != newest[row]]
        return [key for key in missing if self.newest_column(key, since) is None]

    def aggregate(self, key: SeriesKey, seconds: float, end: float) -> Aggregate | None:
        """Aggregate of one series over [end - seconds, end], None without a sample in it."""
        row = self.rows.by_key.get(key)
        span = self._span(seconds, end)
        if row is None or span is None:
            return None
        first, opens, closes = span
        window = Window(
            boots=self.ring.boots[first:closes],
            context=opens - first,
            cells=self.ring.copy_row(row, first, closes),
            stride=1,
            interval=self.interval,
        )
        return _aggregate(window, 0, self.rows.created[row])

    def aggregate_all(self, seconds: float, end: float) -> dict[SeriesKey, Aggregate]:
        """Aggregates of all series that have a sample in [end - seconds, end]."""
        span = self._span(seconds, end)
        if span is None:
            return {}
        first, opens, closes = span
        window = Window(
            boots=self.ring.boots[first:closes],
            context=opens - first,
            cells=self.ring.copy(first, closes),
            stride=self.ring.geometry.rows,
            interval=self.interval,
        )
        created = self.rows.created
        found = (
            (key, _aggregate(window, row, created[row])) for key, row in self.rows.by_key.items()
        )
        return {key: aggregate for key, aggregate in found if aggregate}

    def _span(self, seconds: float, end: float) -> tuple[int, int, int] | None:
        """(first, opens, closes): columns opens to closes - 1 are in the window, None if none is.

        Columns from first on show when each series was seen last before the window, as far as
        weights depend on it.
        """
        boots = self.ring.boots
        opens = bisect_left(boots, end - seconds - _HALF_MILLISECOND)
        closes = bisect_right(boots, end + _HALF_MILLISECOND)
        if opens >= closes:
            return None
        near = bisect_left(boots, boots[opens] - 2 * self.interval, 0, opens)
        return min(near, max(opens - 1, 0)), opens, closes


def _aggregate(window: Window, row: int, created: float) -> Aggregate | None:
    aggregate = Aggregate(window, row, created)
    newest = window.cells[(len(window.boots) - 1) * window.stride + row]
    if (newest == newest and created <= window.boots[-1]) or aggregate.count:
        return aggregate
    return None


_BLANK = array("d", [math.nan])


@dataclass(slots=True)
class DroppedSamples:
    """Samples that were not stored, and what damaged files lost, since the start."""

    invalid: int = 0  # not finite, or a key that does not fit the kind
    late: int = 0  # of a tick not newer than the newest column
    refused: int = 0  # of new series, while the table was full
    columns: int = 0  # torn, or changed on disk
    rows: int = 0  # series whose directory entry was changed on disk


class SeriesTable:
    """Rows are given to series as they appear and taken back when idle for the retention.

    The ring is made with the first sample. Not thread-safe: MetricCache holds the lock.
    """

    def __init__(
        self, kind: AnyKind, boot_id: str, limits: TableLimits, path: OwnedPath | None
    ) -> None:
        self.kind = kind
        self.dropped = DroppedSamples()
        self.disk_error = ""  # why the ring is in memory although there is a path
        self.full = 0  # new series that found no row at the last tick
        self.view: SeriesView | None = None  # None: no sample yet
        self._identity = RingIdentity(boot_id, kind.name)
        self._limits = limits
        self._path = path
        self._rows = Rows()
        self._sweep_after = 0.0  # boot time

    @property
    def interval(self) -> float:
        """Seconds between columns as configured."""
        return self._limits.interval

    def load(self, now: float) -> None:
        """Take over the file of an earlier process; now is the boot time.

        Raises:
            RingDiscarded: there is a file and it is unusable.
            OSError: there is none, or it cannot be read.
        """
        if self._path is None:
            return
        ring = Ring.open(self._path, self._identity, self._limits.max_bytes)
        if ring.newest_boot > now + self._limits.interval:
            ring.close()
            raise RingDiscarded(self._path, "samples from the future")
        self._restore_rows(ring)
        self.dropped.columns += ring.losses.columns
        self.dropped.rows += ring.losses.rows
        self._use(ring)
        self._refit(ring)

    def remove_file(self) -> None:
        """Give up a file that `load` rejected; what cannot be removed is replaced later."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()

    def write(self, at: Stamp, batch: Sequence[Sample]) -> None:
        """Store the samples of one tick as one column; of two for one series the later wins."""
        if self.view and at.boot <= self.view.ring.newest_boot:
            self.dropped.late += len(batch)
            return
        if at.boot >= self._sweep_after:
            self._sweep(at.boot)
        column = _BLANK * self._rows.height
        _, values, keys = zip(*batch, strict=True)
        rows = list(map(self._rows.by_key.get, keys))
        self.full = 0
        stored = True
        if None not in rows and math.isfinite(sum(values)):  # as a rule; twice as fast
            for row, value in zip(cast("list[int]", rows), values, strict=True):
                column[row] = value
        else:
            stored = self._split_samples(at.boot, batch, column)
        if stored and self.view:
            self.view.ring.append(at, column)

    def set_retention(self, seconds: float) -> None:
        """Keep that much history from now on; the newest of what is there stays."""
        self._limits = self._limits.with_retention(seconds)
        if self.view:
            self._refit(self.view.ring)

    def has(self, key: object) -> bool:
        """Whether there is a row for this key; False for what is no key."""
        try:
            return key in self._rows.by_key
        except TypeError:  # cannot be hashed
            return False

    def keys(self) -> list[SeriesKey]:
        return list(self._rows.by_key)

    @property
    def file_bytes(self) -> int:
        return self.view.ring.geometry.file_bytes if self.view else 0

    def close(self) -> None:
        if self.view:
            self.view.ring.close()
            self.view = None

    def _split_samples(self, boot: float, batch: Sequence[Sample], column: "array[float]") -> bool:
        """Fill a column with those samples that can be stored; return whether there are any."""
        rows = self._rows.by_key
        new: dict[SeriesKey, float] = {}
        stored = False
        for _, value, key in batch:
            if value - value != 0.0:  # NaN or infinite
                self.dropped.invalid += 1
            elif (row := rows.get(key)) is not None:
                column[row] = value
                stored = True
            else:
                new[key] = value
        if new and self._admit(boot, new, column):
            stored = True
        return stored

    def _admit(self, boot: float, new: dict[SeriesKey, float], column: "array[float]") -> int:
        """Give rows to new series while rows are free, and return how many got one."""
        candidates = list(new)[: self._free_rows(self._key_bytes)]
        encoded = self._encoded(candidates)
        longest = max(map(len, encoded.values()), default=0)
        key_bytes = max(self._key_bytes, key_bytes_with_headroom(longest))
        admitted = list(encoded.items())[: self._free_rows(key_bytes)]  # long keys: fewer rows
        self.full = len(new) - len(admitted) - (len(candidates) - len(encoded))
        self.dropped.invalid += len(candidates) - len(encoded)
        self.dropped.refused += self.full
        if admitted:
            ring = self._ring_for(len(admitted), key_bytes)
            for key, data in admitted:
                row = self._rows.take(key, boot)
                ring.set_row(row, boot, data)
                if row == len(column):
                    column.append(new[key])
                else:
                    column[row] = new[key]
        return len(admitted)

    def _encoded(self, keys: Iterable[SeriesKey]) -> dict[SeriesKey, bytes]:
        """Keys of the kind's key type as stored; those that do not fit the kind are left out."""
        encoded: dict[SeriesKey, bytes] = {}
        for key in keys:
            with suppress(UnknownSeries, ValueError):
                encoded[self.kind.made(*key)] = encode_key(key, len(self.kind.properties))
        return encoded

    @property
    def _key_bytes(self) -> int:
        return self.view.ring.geometry.key_bytes if self.view else key_bytes_with_headroom(0)

    def _free_rows(self, key_bytes: int) -> int:
        """Return the number of series that still fit."""
        return max(self._limits.max_rows(key_bytes) - self._rows.height, 0) + self._rows.free

    def _ring_for(self, more: int, key_bytes: int) -> Ring:
        """Return a ring that can hold that many more series."""
        needed = self._rows.height + max(more - self._rows.free, 0)
        if self.view is None:
            return self._rebuild(
                self._limits.fit(rows_with_headroom(needed), key_bytes, used=needed)
            )
        old = self.view.ring
        if needed <= old.geometry.rows and key_bytes <= old.geometry.key_bytes:
            return old
        rows = old.geometry.rows if needed <= old.geometry.rows else rows_with_headroom(needed)
        return self._rebuild(self._limits.fit(rows, key_bytes, used=needed))

    def _refit(self, ring: Ring) -> None:
        now = ring.geometry
        wanted = self._limits.fit(now.rows, now.key_bytes, used=self._rows.height)
        if wanted != now:
            self._rebuild(wanted)

    def _compact(self, now: RingGeometry) -> None:
        """Move to a smaller ring once most rows are free, as after many short-lived pods."""
        used = len(self._rows.by_key)
        if used and 2 * used < now.rows:
            rows = rows_with_headroom(used)
            old = self._rows.compact()
            self._rebuild(self._limits.fit(rows, now.key_bytes, used=used), old)

    def _rebuild(self, geometry: RingGeometry, old_rows: Sequence[int] | None = None) -> Ring:
        """Move to a new ring of that geometry, on disk if that works, else in memory.

        old_rows: the row that each row was in the ring in use; None: the same.
        """
        ring = self._on_disk(geometry, old_rows)
        if ring is None:
            ring = Ring.create(None, self._identity, geometry)
            self._fill(ring, old_rows)
        self._use(ring)
        return ring

    def _on_disk(
        self, geometry: RingGeometry, old_rows: Sequence[int] | None = None
    ) -> Ring | None:
        if self._path is None:
            return None
        try:
            ring = Ring.create(self._path, self._identity, geometry)
            self._fill(ring, old_rows)
            ring.publish()
        except OSError as err:
            self.disk_error = f"{self._path}: {err.strerror}"
            return None
        self.disk_error = ""
        return ring

    def _fill(self, new: Ring, old_rows: Sequence[int] | None) -> None:
        """Copy rows and the newest columns from the ring in use."""
        for key, row in self._rows.by_key.items():
            data = encode_key(key, len(self.kind.properties))
            new.set_row(row, self._rows.created[row], data)
        if self.view:
            old = self.view.ring
            for column in range(max(old.count - new.geometry.columns, 0), old.count):
                at = Stamp(old.walls[column], old.boots[column])
                cells = old.copy(column, column + 1)
                if old_rows is None:
                    new.append(at, cells[: self._rows.height])
                else:
                    new.append(at, array("d", map(cells.__getitem__, old_rows)))

    def _use(self, ring: Ring) -> None:
        if self.view:
            self.view.ring.close()
        self.view = SeriesView(ring, self._rows, self._limits.interval)

    def _restore_rows(self, ring: Ring) -> None:
        found: dict[int, tuple[float, SeriesKey]] = {}
        for row, created, data in ring.entries():
            try:
                key = decode_key(data, len(self.kind.properties))
                found[row] = created, self.kind.made(*key)
            except (DamagedRing, UnknownSeries):
                self.dropped.rows += 1
        self._rows.restore(found)

    def _sweep(self, now: float) -> None:
        """Take back the rows of idle series; return from memory to disk if that works now."""
        self._sweep_after = now + self._limits.retention / 4
        if self.view is None:
            return
        ring, since = self.view.ring, now - self._limits.retention
        for key in self.view.idle(since):
            ring.free_row(self._rows.release(key))
        self._compact(ring.geometry)
        ring = self.view.ring
        if self._path is not None and ring.path is None:
            moved = self._on_disk(ring.geometry)
            if moved:
                self._use(moved)
