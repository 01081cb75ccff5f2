"""A ring of columns in one memory-mapped file, which a kill at any moment leaves readable."""

import math
import mmap
import os
import struct
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from koord.util.clock import Stamp
from koord.util.errors import KoordError, UnsafeFile
from koord.util.ownedfiles import FILE_MODE, OwnedPath

MAGIC = b"KOORDRNG"
VERSION = 1
MAX_KEY_BYTES = 1024

_HEADER = struct.Struct("=8sI64s64sIII")
_ENTRY = struct.Struct("=dH")
_STAMP = struct.Struct("=QddI")
_STAMP_CRC = struct.Struct("=QddII")
_CRC = struct.Struct("=I")
_ENTRY_PREFIX = 16  # _ENTRY and _CRC, padded so that all parts start on 8 bytes
STAMP_BYTES = 32
HEADER_BYTES = 192

SeriesKey = tuple[str, ...]


class DamagedRing(ValueError):
    """Bytes that were never written like this: the message names what does not fit."""


@dataclass(frozen=True, slots=True)
class RingIdentity:
    """The identity of a file: data of another boot or kind must not be taken for ours."""

    boot_id: str
    kind: str


@dataclass(frozen=True, slots=True)
class RingGeometry:
    """Numbers of columns (ticks kept) and rows (series), and bytes for a row's encoded key."""

    columns: int
    rows: int
    key_bytes: int  # a multiple of 8

    @property
    def entry_bytes(self) -> int:
        return _ENTRY_PREFIX + self.key_bytes

    @property
    def stamps_at(self) -> int:
        return HEADER_BYTES + self.rows * self.entry_bytes

    @property
    def cells_at(self) -> int:
        return self.stamps_at + self.columns * STAMP_BYTES

    @property
    def file_bytes(self) -> int:
        return self.cells_at + self.columns * self.rows * 8


class ColumnStamp(NamedTuple):
    """Head of one column. sequence counts from 1; 0 means never written."""

    sequence: int
    boot: float  # seconds since boot
    wall: float  # Unix seconds
    rows: int  # cells written; the rest of the column is not ours to read


def round_up(number: int, step: int) -> int:
    """The next multiple of step."""
    return -(-number // step) * step


def pack_header(identity: RingIdentity, geometry: RingGeometry) -> bytes:
    body = _HEADER.pack(
        MAGIC,
        VERSION,
        identity.boot_id.encode(),
        identity.kind.encode(),
        geometry.columns,
        geometry.rows,
        geometry.key_bytes,
    )
    return (body + _CRC.pack(zlib.crc32(body))).ljust(HEADER_BYTES, b"\0")


def unpack_header(data: bytes) -> tuple[RingIdentity, RingGeometry]:
    """Read a header. The geometry is what the file claims: compare it with the file's size.

    Raises:
        DamagedRing: truncated, not a ring file, of another version, or changed since the write.
    """
    if len(data) < HEADER_BYTES:
        raise DamagedRing(f"only {len(data)} bytes")
    magic, version, boot_id, kind, columns, rows, key_bytes = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise DamagedRing("not a ring file")
    if version != VERSION:
        raise DamagedRing(f"version {version} instead of {VERSION}")
    if _CRC.unpack_from(data, _HEADER.size)[0] != zlib.crc32(data[: _HEADER.size]):
        raise DamagedRing("header checksum differs")
    if not (columns and rows and key_bytes and key_bytes % 8 == 0):
        raise DamagedRing(f"geometry {columns} x {rows}, keys of {key_bytes} bytes")
    return RingIdentity(_text(boot_id), _text(kind)), RingGeometry(columns, rows, key_bytes)


def pack_entry(created: float, key: bytes) -> bytes:
    """A directory entry: this row holds the series from boot time born on."""
    head = _ENTRY.pack(created, len(key))
    crc = zlib.crc32(key, zlib.crc32(head))
    return (head + _CRC.pack(crc)).ljust(_ENTRY_PREFIX, b"\0") + key


def unpack_entry(data: bytes) -> tuple[float, bytes] | None:
    """Return (born, key) of a directory entry, None for a free row.

    Raises:
        DamagedRing: torn or changed.
    """
    created, length = _ENTRY.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _ENTRY.size)
    if not (created or length or crc):
        return None
    key = data[_ENTRY_PREFIX : _ENTRY_PREFIX + length]
    if len(key) != length or crc != zlib.crc32(key, zlib.crc32(data[: _ENTRY.size])):
        raise DamagedRing("row checksum differs")
    return created, key


def pack_stamp(stamp: ColumnStamp, cells: bytes | memoryview) -> bytes:
    head = _STAMP.pack(*stamp)
    return head + _CRC.pack(zlib.crc32(cells, zlib.crc32(head)))


def valid_columns(data: memoryview, geometry: RingGeometry) -> tuple[list[ColumnStamp], int]:
    """The columns of a file that are as they were written, in time order, and how many are not."""
    heads = data[geometry.stamps_at : geometry.cells_at]
    whole: list[ColumnStamp] = []
    damaged = 0
    height, start = geometry.rows * 8, geometry.cells_at
    for slot, (sequence, boot, wall, rows, crc) in enumerate(_STAMP_CRC.iter_unpack(heads)):
        if sequence:
            head = heads[slot * STAMP_BYTES : slot * STAMP_BYTES + _STAMP.size]
            cells = data[start + slot * height : start + slot * height + rows * 8]
            if rows <= geometry.rows and crc == zlib.crc32(cells, zlib.crc32(head)):
                whole.append(ColumnStamp(sequence, boot, wall, rows))
            else:
                damaged += 1
    return sorted(whole), damaged


def encode_key(key: SeriesKey, properties: int) -> bytes:
    """Key of a series as stored: its values joined by NUL.

    Raises:
        ValueError: not one string for each property, a NUL inside, or too long to store.
    """
    if len(key) != properties or any("\0" in value for value in key):
        raise ValueError("not one plain string per property")
    data = "\0".join(key).encode("utf-8", "surrogatepass")
    if len(data) > MAX_KEY_BYTES:
        raise ValueError(f"longer than {MAX_KEY_BYTES} bytes")
    return data


def decode_key(data: bytes, properties: int) -> SeriesKey:
    """Inverse of encode_key.

    Raises:
        DamagedRing: not a key of that many properties.
    """
    try:
        key = tuple(data.decode("utf-8", "surrogatepass").split("\0")) if properties else ()
    except UnicodeDecodeError as err:
        raise DamagedRing("key is not text") from err
    if len(key) != properties or (not properties and data):
        raise DamagedRing(f"key has {len(key)} values instead of {properties}")
    return key


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode("utf-8", "replace")


SPARE_COLUMNS = 4  # the sample before a window's first, both its ends, an early tick
_ROW_STEP = 16


@dataclass(frozen=True, slots=True)
class TableLimits:
    """The limits of one table."""

    interval: float  # seconds between columns
    retention: float  # seconds of history that readers ask for
    max_bytes: int  # of the whole ring

    @property
    def columns(self) -> int:
        return math.ceil(self.retention / self.interval) + SPARE_COLUMNS

    def with_retention(self, seconds: float) -> "TableLimits":
        return replace(self, retention=seconds)

    def max_rows(self, key_bytes: int) -> int:
        """Rows that fit with all columns."""
        per_row = RingGeometry(0, 1, key_bytes).entry_bytes + self.columns * 8
        return max((self._room - self.columns * STAMP_BYTES) // per_row, 1)

    def fit(self, rows: int, key_bytes: int, *, used: int) -> RingGeometry:
        """The largest geometry up to these rows and all columns.

        Rows in use are never given up: where they do not fit, there are fewer columns.
        """
        rows = max(min(rows, self.max_rows(key_bytes)), used)
        per_column = STAMP_BYTES + rows * 8
        entries = rows * RingGeometry(0, rows, key_bytes).entry_bytes
        columns = min(self.columns, max((self._room - entries) // per_column, 1))
        return RingGeometry(columns, rows, key_bytes)

    @property
    def _room(self) -> int:
        return self.max_bytes - HEADER_BYTES


def rows_with_headroom(needed: int) -> int:
    """Rows to make when that many are needed: an eighth more, so that growing is rare."""
    return needed if needed == 1 else round_up(needed + needed // 8, _ROW_STEP)


def key_bytes_with_headroom(needed: int) -> int:
    return round_up(max(needed, 1), 8)


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
