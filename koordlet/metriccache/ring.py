"""A ring of columns in one memory-mapped file, which a kill at any moment leaves readable."""

import math
import mmap
import os
from array import array
from collections.abc import Iterator
from typing import NamedTuple

from koord.util.clock import Stamp
from koord.util.errors import KoordError, UnsafeFile
from koord.util.ownedfiles import FILE_MODE, OwnedPath
from koordlet.metriccache.layout import (
    HEADER_BYTES,
    STAMP_BYTES,
    ColumnStamp,
    DamagedRing,
    RingGeometry,
    RingIdentity,
    pack_entry,
    pack_header,
    pack_stamp,
    unpack_entry,
    unpack_header,
    valid_columns,
)


class RingDiscarded(KoordError):
    """A ring file that cannot be used; its history is lost, nothing else."""

    def __init__(self, path: OwnedPath, found: str, *, expected: bool = False) -> None:
        super().__init__(f"{path}: wanted a ring file of this boot, found {found}; starting empty")
        self.found = found
        self.expected = expected  # a reboot or nothing wrong with the disk


class RingLosses(NamedTuple):
    """The losses of a file when it was opened."""

    columns: int = 0
    rows: int = 0


class Ring:
    """The columns of one kind, newest overwrites oldest, and the directory of its rows.

    Columns are numbered from 0, the oldest kept, to count - 1. Stores go through a shared mapping,
    so a killed process loses at most the column it was writing, which its checksum then betrays.
    """

    def __init__(self, memory: mmap.mmap, geometry: RingGeometry, path: OwnedPath | None) -> None:
        self.geometry = geometry
        self.path = path  # None: in memory only
        self.losses = RingLosses()
        self.boots: array[float] = array("d")  # seconds since boot, per column
        self.walls: array[float] = array("d")  # Unix seconds, per column
        self._slots: array[int] = array("L")  # where each column lies
        self._next = 1  # sequence of the next column
        self._memory = memory
        self._bytes = memoryview(memory)
        self._cells = self._bytes[geometry.cells_at : geometry.file_bytes].cast("d")

    @classmethod
    def create(
        cls, path: OwnedPath | None, identity: RingIdentity, geometry: RingGeometry
    ) -> "Ring":
        """An empty ring, in memory when path is None. Appears under its name with `publish`.

        Raises:
            OSError: the file cannot be made, for example because the disk is full.
        """
        if path is None:
            memory = mmap.mmap(-1, geometry.file_bytes)
        else:
            memory = _map_new(_draft(path), geometry.file_bytes)
        ring = cls(memory, geometry, path)
        memory[:HEADER_BYTES] = pack_header(identity, geometry)
        return ring

    @classmethod
    def open(cls, path: OwnedPath, identity: RingIdentity, max_bytes: int) -> "Ring":
        """The ring that an earlier process left.

        Damaged columns and rows are left out and counted in `losses`.

        Raises:
            RingDiscarded: not usable as a whole.
            OSError: the file cannot be read.
        """
        try:
            descriptor = path.open(os.O_RDWR)
        except UnsafeFile as err:
            raise RingDiscarded(path, err.strerror or str(err)) from err
        try:
            geometry = _checked_geometry(path, descriptor, identity, max_bytes)
            os.posix_fallocate(descriptor, 0, geometry.file_bytes)  # holes would be SIGBUS later
            memory = mmap.mmap(descriptor, geometry.file_bytes)
        finally:
            os.close(descriptor)
        ring = cls(memory, geometry, path)
        ring._find_columns()
        if not ring.count:
            ring.close()
            raise RingDiscarded(path, "no readable column", expected=not ring.losses.columns)
        return ring

    def publish(self) -> None:
        """Give a created file its name, in place of an older one.

        Raises:
            OSError: the directory is gone or read-only.
        """
        if self.path is not None:
            _draft(self.path).rename(self.path.name)

    def close(self) -> None:
        """Unmap. The file stays."""
        self._cells.release()
        self._bytes.release()
        self._memory.close()

    @property
    def count(self) -> int:
        return len(self.boots)

    @property
    def newest_boot(self) -> float:
        """Boot time of the newest column, minus infinity when there is none."""
        return self.boots[-1] if self.boots else -math.inf

    def append(self, at: Stamp, cells: "array[float]") -> None:
        """Write the column of a tick; cells holds at most one value per row."""
        slot = self._next % self.geometry.columns
        if self._slots and self._slots[0] == slot:
            del self._slots[0], self.boots[0], self.walls[0]
        start = slot * self.geometry.rows
        self._cells[start : start + len(cells)] = memoryview(cells)
        stamp = ColumnStamp(self._next, at.boot, at.wall, len(cells))
        self._store(self._stamp_at(slot), pack_stamp(stamp, memoryview(cells).cast("B")))
        self._remember(stamp)

    def copy(self, first: int, end: int) -> "array[float]":
        """Cells of columns first to end - 1, oldest first, `geometry.rows` apart."""
        cells: array[float] = array("d")
        at, width = self.geometry.cells_at, self.geometry.rows * 8
        for start, stop in self._runs(first, end):
            cells.frombytes(self._bytes[at + start * width : at + stop * width])
        return cells

    def copy_row(self, row: int, first: int, end: int) -> "array[float]":
        """Cells of one row in columns first to end - 1, oldest first."""
        cells: array[float] = array("d")
        rows = self.geometry.rows
        for start, stop in self._runs(first, end):
            cells.extend(self._cells[start * rows + row : stop * rows : rows].tolist())
        return cells

    def cell(self, column: int, row: int) -> float:
        return self._cells[self._slots[column] * self.geometry.rows + row]

    def set_row(self, row: int, created: float, key: bytes) -> None:
        """Record that a row holds this series from boot time born on."""
        self._store(self._entry_at(row), pack_entry(created, key))

    def free_row(self, row: int) -> None:
        self._store(self._entry_at(row), bytes(self.geometry.entry_bytes))

    def entries(self) -> Iterator[tuple[int, float, bytes]]:
        """(row, born, key) of the rows in use; damaged ones are counted and left out."""
        for row in range(self.geometry.rows):
            start = self._entry_at(row)
            try:
                entry = unpack_entry(self._memory[start : start + self.geometry.entry_bytes])
            except DamagedRing:
                self.losses = self.losses._replace(rows=self.losses.rows + 1)
                continue
            if entry:
                yield row, *entry

    def _find_columns(self) -> None:
        columns, damaged = valid_columns(self._bytes, self.geometry)
        for stamp in columns:
            self._remember(stamp)
        self.losses = RingLosses(columns=damaged)

    def _remember(self, stamp: ColumnStamp) -> None:
        self.boots.append(stamp.boot)
        self.walls.append(stamp.wall)
        self._slots.append(stamp.sequence % self.geometry.columns)
        self._next = stamp.sequence + 1

    def _runs(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """The same columns as runs of adjacent slots: the ring's seam and lost columns part."""
        if first >= end:
            return
        start, last = self._slots[first], self._slots[end - 1]
        if last - start == end - 1 - first:
            yield start, last + 1
        else:
            middle = (first + end) // 2
            yield from self._runs(first, middle)
            yield from self._runs(middle, end)

    def _stamp_at(self, slot: int) -> int:
        return self.geometry.stamps_at + slot * STAMP_BYTES

    def _entry_at(self, row: int) -> int:
        return HEADER_BYTES + row * self.geometry.entry_bytes

    def _store(self, at: int, data: bytes) -> None:
        self._memory[at : at + len(data)] = data


def _draft(path: OwnedPath) -> OwnedPath:
    return path.sibling(f"{path.name}.new")


def _map_new(path: OwnedPath, size: int) -> mmap.mmap:
    """Map a new file whose space is reserved: a full disk is an error here, not a SIGBUS later."""
    path.unlink()
    descriptor = path.open(os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        os.fchmod(descriptor, FILE_MODE)
        os.posix_fallocate(descriptor, 0, size)
        return mmap.mmap(descriptor, size)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(descriptor)


def _checked_geometry(
    path: OwnedPath, descriptor: int, identity: RingIdentity, max_bytes: int
) -> RingGeometry:
    """Geometry from the header, believed only where the size of the file agrees."""
    status = os.fstat(descriptor)
    if status.st_size > max_bytes:
        raise RingDiscarded(path, f"{status.st_size} bytes, more than {max_bytes}")
    try:
        owner, geometry = unpack_header(os.pread(descriptor, HEADER_BYTES, 0))
    except DamagedRing as err:
        raise RingDiscarded(path, str(err)) from err
    if owner.boot_id != identity.boot_id:
        raise RingDiscarded(path, f"data of boot {owner.boot_id}", expected=True)
    if owner.kind != identity.kind:
        raise RingDiscarded(path, f"data of {owner.kind}")
    if geometry.file_bytes != status.st_size:
        wanted = f"{status.st_size} bytes instead of {geometry.file_bytes}"
        raise RingDiscarded(path, wanted)
    return geometry
