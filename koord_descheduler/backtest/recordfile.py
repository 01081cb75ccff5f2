"""Files of blocks: appended to, each block with its checksum, readable up to where one is damaged.

magic, then for each block: length (4 bytes, little endian), CRC-32 of the data, data (zlib)
"""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from koord.util.errors import InvalidObject, KoordError

MAGIC = b"koord-record\x00\x00\x00\x01"  # the last byte is the version
LARGEST_BLOCK = 256 << 20  # bytes, decompressed
_HEAD = struct.Struct("<II")
_LEVEL = 6


class RecordFull(KoordError):
    """The file has reached its size; what was appended before is whole."""


class RecordWriter:
    """Appends blocks. Blocks: each append is a write of some hundred kB at most."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        """Create the file.

        Raises:
            OSError: it is there already, or cannot be created.
        """
        self.size = len(MAGIC)
        self._path = path
        self._most = most_bytes
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o640)
        _write_all(self._fd, MAGIC)

    def append(self, data: bytes) -> None:
        """Append a block.

        Raises:
            RecordFull: there is no room for it.
            OSError: it was not written, or not all of it; a reader ends before it.
        """
        packed = zlib.compress(data, _LEVEL)
        block = _HEAD.pack(len(packed), zlib.crc32(packed)) + packed
        if self.size + len(block) > self._most:
            raise RecordFull(
                f"{self._path}: wanted at most {self._most} bytes, found {self.size} and "
                f"{len(block)} more; raise --max-size, or record in several files"
            )
        _write_all(self._fd, block)
        self.size += len(block)

    def close(self) -> None:
        """Make it durable and close it."""
        os.fsync(self._fd)
        os.close(self._fd)


class RecordReader:
    """Reads blocks in their order."""

    def __init__(self, path: Path) -> None:
        self.damage = ""  # why reading has ended before the end of the file; "": it has not
        self._path = path

    def blocks(self) -> Iterator[bytes]:
        """Yield each block; ends before the first one that is damaged or cut off, see damage.

        Raises:
            OSError: the file cannot be read.
            InvalidObject: it is no record, or one of another version.
        """
        self.damage = ""
        with self._path.open("rb") as file:
            found = file.read(len(MAGIC))
            if found[:-1] != MAGIC[:-1]:
                wanted = "a file of koord-descheduler record"
                raise InvalidObject(str(self._path), wanted=wanted, found=found[:12])
            if found != MAGIC:
                wanted = f"version {MAGIC[-1]}"
                raise InvalidObject(str(self._path), wanted=wanted, found=found[-1])
            while head := file.read(_HEAD.size):
                at = file.tell() - len(head)
                if len(head) < _HEAD.size:
                    self._end(at, "cut off")
                    return
                length, checksum = _HEAD.unpack(head)
                packed = file.read(min(length, LARGEST_BLOCK))
                if len(packed) < length:
                    self._end(at, "cut off")
                    return
                data = _unpacked(packed) if zlib.crc32(packed) == checksum else None
                if data is None:
                    self._end(at, "damaged")
                    return
                yield data

    def _end(self, at: int, why: str) -> None:
        self.damage = f"{self._path}: the block at byte {at} is {why}; what is before it counts"


def _unpacked(packed: bytes) -> bytes | None:
    """The data of a block; None: it is none, or too large."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(packed, LARGEST_BLOCK)
    except zlib.error:
        return None
    return data if stream.eof else None


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
