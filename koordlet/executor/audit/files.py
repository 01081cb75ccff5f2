"""Files of the audit log: events, lines, names, reading newest first, queries.

Light, as `koordletctl audit` imports it: no asyncio.
"""

import json
import os
import re
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any

from koord.util.errors import OptionError

MAX_TEXT_LENGTH = 1000  # characters of each text
MAX_LINE_LENGTH = 64 << 10  # bytes; what is longer is none of ours

EVICTION, CHANGE = 0, 3  # verbosities: how unimportant an event is


class AuditSubject(StrEnum):
    """The subject of an event; empty where the container says it."""

    NODE = "node"
    POD = "pod"
    GROUP = "group"
    NONE = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEvent:
    """Something that was changed, in Koordinator's words. Texts that are empty are left out."""

    reason: str  # one word, for example UpdateCgroups
    message: str
    verbosity: int = CHANGE
    type: AuditSubject = AuditSubject.NONE
    namespace: str = ""
    name: str = ""
    container: str = ""


def encode_event(event: AuditEvent, wall: float) -> bytes:
    """Return the line of an event at the time wall (Unix seconds), in ASCII."""
    texts = {
        "type": event.type.value,
        "namespace": event.namespace,
        "name": event.name,
        "container": event.container,
        "reason": event.reason,
        "message": event.message,
    }
    given = {name: text[:MAX_TEXT_LENGTH] for name, text in texts.items() if text}
    record = {"createdAt": created_at(wall)} | given
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def decode_event(line: bytes) -> dict[str, Any] | None:
    """Return the event of a line; None: it is none, for example half of one."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("createdAt"), str) else None


def created_at(wall: float) -> str:
    """RFC 3339 with nanoseconds and the local offset."""
    seconds, rest = divmod(wall, 1.0)
    text = datetime.fromtimestamp(seconds, UTC).astimezone().isoformat(timespec="seconds")
    date_and_time, offset = text[:19], text[19:]
    return f"{date_and_time}.{int(rest * 1e9):09}{'Z' if offset == '+00:00' else offset}"


MIB = 1 << 20
CURRENT = "audit.log"
FILE_BYTES = 2 * MIB  # at which a file is rotated, if the limit allows two

_ROTATED = re.compile(r"audit-\d{4}(-\d\d){5}-[0-8]\.log")
_LAST = 8  # of the numbers that distinguish rotations of one second

FileIdentity = tuple[int, int]  # device and inode


@dataclass(frozen=True, slots=True)
class LogBudget:
    """The disk budget of the log: files of file_bytes, the current one and the older ones."""

    file_bytes: int
    rotated: int

    @classmethod
    def of(cls, mebibytes: int) -> "LogBudget":
        """Files of 2 MiB; of half the budget where it is less than two of them.

        So a rotation never loses all there is.
        """
        file_bytes = min(FILE_BYTES, mebibytes * MIB // 2)
        return cls(file_bytes, mebibytes * MIB // file_bytes - 1)


def rotated_files(directory: Path) -> list[str]:
    """Names of the rotated files, newest first.

    Raises:
        OSError: the directory cannot be read.
    """
    names = (entry.name for entry in os.scandir(directory))
    return sorted(filter(_ROTATED.fullmatch, names), reverse=True)


def rotated_name(directory: Path, wall: float) -> str:
    """Return the name of a file rotated now; the ninth of one second replaces the eighth."""
    local = datetime.fromtimestamp(wall, UTC).astimezone()
    moment = local.strftime("%Y-%m-%d-%H-%M-%S")
    names = [f"audit-{moment}-{number}.log" for number in range(_LAST + 1)]
    return next((name for name in names if not (directory / name).exists()), names[-1])


def older_file(directory: Path, name: str, identity: FileIdentity | None) -> str:
    """Name of the next file before the one of that name; "": it is the oldest.

    identity finds the file although it has been rotated meanwhile; None: it is not open.

    Raises:
        OSError: the directory cannot be read.
    """
    names = [CURRENT, *rotated_files(directory)]
    identities = [_identity(directory / each) for each in names]
    if identity is not None and identity in identities:
        rest = names[identities.index(identity) + 1 :]
    else:
        rest = [each for each in names[1:] if name == CURRENT or each < name]
    return rest[0] if rest else ""


def _identity(path: Path) -> FileIdentity | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


CHUNK = 64 << 10  # bytes that are read at once
PAGE_BYTES = 4 << 20  # after which a page is full, whatever it may hold


class AuditReader:
    """Goes back through the log, page by page. Blocks: not for the event loop; any thread.

    Events that are written meanwhile are not its own: it starts where the log ends at first, and
    a rotation makes it neither repeat nor miss one.
    """

    def __init__(self, directory: Path) -> None:
        self._lock = threading.Lock()
        self._lines = _lines(directory)
        self._next: bytes | None = None  # read ahead
        self._begun = False

    @property
    def ended(self) -> bool:
        """Whether there is nothing more."""
        return self._begun and self._next is None

    def page(self, size: int) -> list[dict[str, Any]]:
        """Return the events of the next lines; what is no event is left out, but counts."""
        return [event for line in self._page(size) if (event := decode_event(line)) is not None]

    def events(self, most: int) -> Iterator[dict[str, Any]]:
        """All further events of that many lines at most."""
        for line in islice(self._lines, most):
            if (event := decode_event(line)) is not None:
                yield event

    def close(self) -> None:
        """Close what is open. There is nothing more then."""
        with self._lock:
            self._lines.close()
            self._begun, self._next = True, None

    def _page(self, size: int) -> list[bytes]:
        with self._lock:
            if not self._begun:
                self._begun, self._next = True, next(self._lines, None)
            found: list[bytes] = []
            remaining = PAGE_BYTES
            while self._next is not None and len(found) < size and remaining > 0:
                found.append(self._next)
                remaining -= len(self._next)
                self._next = next(self._lines, None)
            return found


def _lines(directory: Path) -> Generator[bytes]:
    """Lines of all files, last first. A file or directory that cannot be read has none."""
    name = CURRENT
    while name:
        fd = _opened(directory / name)
        try:
            with suppress(OSError):  # the lines that can be read are better than none
                yield from lines_backwards(fd, os.fstat(fd).st_size)
            name = _older(directory, name, fd)  # while it is open: no other file has its inode
        finally:
            if fd >= 0:
                os.close(fd)


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return -1


def _older(directory: Path, name: str, fd: int) -> str:
    identity = None
    with suppress(OSError):
        found = os.fstat(fd)
        identity = found.st_dev, found.st_ino
    try:
        return older_file(directory, name, identity)
    except OSError:
        return ""


def lines_backwards(fd: int, size: int, chunk: int = CHUNK) -> Iterator[bytes]:
    """Yield the lines of the first size bytes of a file, last first, blank ones left out.

    Text after the last newline counts as a line. For a line longer than MAX_LINE_LENGTH, only its
    last bytes are yielded, so nothing larger is ever in memory.

    Raises:
        OSError: the file cannot be read.
    """
    tail = b""  # of the line that begins further ahead
    while size > 0:
        start = max(size - chunk, 0)
        piece = os.pread(fd, size - start, start)
        size = start
        first, *rest = (piece + tail).split(b"\n")
        yield from filter(None, reversed(rest))
        tail = first[-MAX_LINE_LENGTH:]
    if tail:
        yield tail


DEFAULT, MAX_EVENTS = 50, 2048  # events in a response
MAX_LINES = 200_000  # looked at for it; the whole log has about as many


def parse_query(given: Mapping[str, str]) -> "AuditQuery":
    """Return the query of a URL's parameters: lines, pod, reason.

    Raises:
        OptionError: lines is no number, or too large.
    """
    text = given.get("lines", str(DEFAULT))
    most = int(text) if text.isdecimal() and len(text) < 10 else 0
    return AuditQuery(most=most, pod=given.get("pod", ""), reason=given.get("reason", ""))


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditQuery:
    """A query for the latest events, by pod (namespace/name or name) and reason."""

    most: int = DEFAULT
    pod: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.most <= MAX_EVENTS:
            raise OptionError("lines", self.most, f"use 1 to {MAX_EVENTS}")

    def find(self, directory: Path) -> list[dict[str, Any]]:
        """Return the events, latest last. Blocks: not for the event loop."""
        found: list[dict[str, Any]] = []
        with closing(AuditReader(directory)) as reader:
            for event in reader.events(MAX_LINES):
                if self._matches(event):
                    found.append(event)
                    if len(found) == self.most:
                        break
        return found[::-1]

    def _matches(self, event: Mapping[str, Any]) -> bool:
        name = event.get("name", "")
        about = (name, f"{event.get('namespace', '')}/{name}")
        return (not self.pod or self.pod in about) and self.reason in ("", event.get("reason"))
