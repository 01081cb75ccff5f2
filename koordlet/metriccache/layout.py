"""The layout of a ring file: one kind, all its series, one column per tick; its limits."""

import math
import struct
import zlib
from dataclasses import dataclass, replace
from typing import NamedTuple

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
