"""All series of one kind: gives them rows, writes their columns, keeps the ring the right size."""

import math
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from koord.util.clock import Stamp
from koord.util.owneddir import OwnedPath
from koordlet.metriccache.keys import UnknownSeries
from koordlet.metriccache.kinds import AnyKind
from koordlet.metriccache.layout import (
    DamagedRing,
    Geometry,
    Identity,
    SeriesKey,
    decode_key,
    encode_key,
)
from koordlet.metriccache.limits import TableLimits, key_bytes_ahead, rows_ahead
from koordlet.metriccache.ring import Ring, RingDiscarded
from koordlet.metriccache.rows import Rows
from koordlet.metriccache.sample import Sample
from koordlet.metriccache.view import View

_BLANK = array("d", [math.nan])


@dataclass(slots=True)
class Dropped:
    """Samples that were not stored, and what damaged files lost, since the start."""

    invalid: int = 0  # not finite, or a key that does not fit the kind
    late: int = 0  # of a tick not newer than the newest column
    refused: int = 0  # of new series, while the table was full
    columns: int = 0  # torn, or changed on disk
    rows: int = 0  # series whose directory entry was changed on disk


class Table:
    """Rows are given to series as they appear and taken back when idle for the retention.

    The ring is made with the first sample. Not thread-safe: MetricCache holds the lock.
    """

    def __init__(
        self, kind: AnyKind, boot_id: str, limits: TableLimits, path: OwnedPath | None
    ) -> None:
        self.kind = kind
        self.dropped = Dropped()
        self.disk_error = ""  # why the ring is in memory although there is a path
        self.full = 0  # new series that found no row at the last tick
        self.view: View | None = None  # None: no sample yet
        self._identity = Identity(boot_id, kind.name)
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
        """Give up a file that `load` refused; what cannot be removed is replaced later."""
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
            stored = self._sort_out(at.boot, batch, column)
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

    def _sort_out(self, boot: float, batch: Sequence[Sample], column: "array[float]") -> bool:
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
        """Give rows to new series as far as there is room, and return how many got one."""
        candidates = list(new)[: self._room(self._key_bytes)]
        encoded = self._encoded(candidates)
        longest = max(map(len, encoded.values()), default=0)
        key_bytes = max(self._key_bytes, key_bytes_ahead(longest))
        admitted = list(encoded.items())[: self._room(key_bytes)]  # long keys leave less room
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
        return self.view.ring.geometry.key_bytes if self.view else key_bytes_ahead(0)

    def _room(self, key_bytes: int) -> int:
        """How many more series fit."""
        return max(self._limits.max_rows(key_bytes) - self._rows.height, 0) + self._rows.free

    def _ring_for(self, more: int, key_bytes: int) -> Ring:
        """A ring with room for that many more series."""
        needed = self._rows.height + max(more - self._rows.free, 0)
        if self.view is None:
            return self._rebuild(self._limits.fit(rows_ahead(needed), key_bytes, used=needed))
        old = self.view.ring
        if needed <= old.geometry.rows and key_bytes <= old.geometry.key_bytes:
            return old
        rows = old.geometry.rows if needed <= old.geometry.rows else rows_ahead(needed)
        return self._rebuild(self._limits.fit(rows, key_bytes, used=needed))

    def _refit(self, ring: Ring) -> None:
        now = ring.geometry
        wanted = self._limits.fit(now.rows, now.key_bytes, used=self._rows.height)
        if wanted != now:
            self._rebuild(wanted)

    def _rebuild(self, geometry: Geometry) -> Ring:
        """Move to a new ring of that geometry, on disk if that works, else in memory."""
        ring = self._on_disk(geometry)
        if ring is None:
            ring = Ring.create(None, self._identity, geometry)
            self._fill(ring)
        self._use(ring)
        return ring

    def _on_disk(self, geometry: Geometry) -> Ring | None:
        if self._path is None:
            return None
        try:
            ring = Ring.create(self._path, self._identity, geometry)
            self._fill(ring)
            ring.publish()
        except OSError as err:
            self.disk_error = f"{self._path}: {err.strerror}"
            return None
        self.disk_error = ""
        return ring

    def _fill(self, new: Ring) -> None:
        """Copy rows and the newest columns from the ring in use."""
        for key, row in self._rows.by_key.items():
            data = encode_key(key, len(self.kind.properties))
            new.set_row(row, self._rows.born[row], data)
        if self.view:
            old = self.view.ring
            for column in range(max(old.count - new.geometry.columns, 0), old.count):
                at = Stamp(old.walls[column], old.boots[column])
                new.append(at, old.copy(column, column + 1)[: self._rows.height])

    def _use(self, ring: Ring) -> None:
        if self.view:
            self.view.ring.close()
        self.view = View(ring, self._rows, self._limits.interval)

    def _restore_rows(self, ring: Ring) -> None:
        found: dict[int, tuple[float, SeriesKey]] = {}
        for row, born, data in ring.entries():
            try:
                key = decode_key(data, len(self.kind.properties))
                found[row] = born, self.kind.made(*key)
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
        if self._path is not None and ring.path is None:
            moved = self._on_disk(ring.geometry)
            if moved:
                self._use(moved)
