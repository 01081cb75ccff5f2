"""One watch: the changes of a collection as the server streams them, a JSON object a line."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum

from koord.kube.answers import Object, read_object
from koord.kube.errors import BadAnswer, api_error
from koord.kube.transport import WHOLE, Call, Transport

BOOKMARK_SILENCE = 150.0  # seconds; servers that send bookmarks do so about once a minute
GRACE = 15.0  # seconds that the server may be late with ending the watch

MAX_LINE = 16 << 20
"""Bytes. etcd stores objects of 1.5 MiB, in which JSON writes one byte as six (\\u003c for <)."""


class WatchEventType(StrEnum):
    """The kind of a watch event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"  # nothing: the object carries only a newer resource version


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change, with the object after it (before it, if deleted)."""

    type: WatchEventType
    object: Object


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """After how many seconds the server is to end the watch, and how long a line may be."""

    seconds: int
    line_bytes: int = MAX_LINE


class WatchLines:
    """The lines of one watch, each a JSON object, handed out in lists of those that have come."""

    def __init__(self, pieces: AsyncIterator[bytes], lines: "Lines", patience: "_Patience") -> None:
        self._pieces = pieces
        self._lines = lines
        self._patience = patience

    async def __aiter__(self) -> AsyncIterator[list[bytes]]:
        """Yield until the server ends the watch. Raises what watch_lines does."""
        async for piece in self._pieces:
            if found := self._lines.feed(piece):
                yield found

    def bookmarked(self) -> None:
        """Note that a line was a bookmark: from now on silence means that the connection died."""
        self._patience.bookmarked()


@asynccontextmanager
async def watch_lines(
    transport: Transport,
    path: str,
    query: Mapping[str, str],
    limits: WatchLimits,
    *,
    accept: str = WHOLE,
) -> AsyncIterator[WatchLines]:
    """Hand out the lines until the server ends the watch. Entered once the server has agreed.

    A connection that has died without a word is noticed: once a bookmark has come, silence of
    BOOKMARK_SILENCE is too long, and in any case silence beyond the end of the watch.

    Raises, on entry or from the lines:
        Gone: the resource version is too old, as the status of the answer.
        ApiError: the server refused.
        Unreachable: the connection broke or fell silent.
        BadAnswer: a line is too long.
    """
    asked = {
        **query,
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(limits.seconds),
    }
    patience = _Patience(limits.seconds + GRACE)
    call = Call("GET", path, asked, accept=accept)
    async with transport.stream(call, patience.left) as pieces:
        yield WatchLines(pieces, Lines(limits.line_bytes, f"watch of {path}"), patience)


@asynccontextmanager
async def watch(
    transport: Transport,
    path: str,
    query: Mapping[str, str],
    limits: WatchLimits,
    *,
    accept: str = WHOLE,
) -> AsyncIterator[AsyncIterator[WatchEvent]]:
    """Hand out the events until the server ends the watch. Entered once the server has agreed.

    Raises, on entry or from the events, what watch_lines does, and:
        Gone, ApiError: the server ended the watch with an error.
        BadAnswer: a line is no event.
    """
    async with watch_lines(transport, path, query, limits, accept=accept) as lines:
        yield _events(lines, f"watch of {path}")


class _Patience:
    """The longest silence of the server that is accepted."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def left(self) -> float:
        return self._seconds

    def bookmarked(self) -> None:
        self._seconds = min(self._seconds, BOOKMARK_SILENCE)


async def _events(lines: WatchLines, where: str) -> AsyncIterator[WatchEvent]:
    async for together in lines:
        for line in together:
            event = _event(await read_object(line, where), where)
            if event.type is WatchEventType.BOOKMARK:
                lines.bookmarked()
            yield event


class Lines:
    """Cuts a stream of bytes into lines. What follows the last line break is never handed out."""

    def __init__(self, max_bytes: int, where: str) -> None:
        self._max_bytes = max_bytes
        self._where = where
        self._rest = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the lines that are complete now, without empty ones.

        Raises:
            BadAnswer: a line is longer than max_bytes.
        """
        lines = piece.split(b"\n")
        rest = lines.pop()
        if lines and self._rest:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        if len(self._rest) > self._max_bytes:
            found = "a longer line"
            raise BadAnswer(self._where, wanted=f"at most {self._max_bytes} bytes", found=found)
        return [line for line in lines if line.strip()]


def _event(found: Object, where: str) -> WatchEvent:
    kind, obj = found.get("type"), found.get("object")
    if not isinstance(obj, dict):
        raise BadAnswer(where, wanted="an event with an object", found=f"{found!r:.80}")
    if kind == "ERROR":
        code = obj.get("code")
        raise api_error(code if isinstance(code, int) else 500, obj, where=where)
    try:
        return WatchEvent(WatchEventType(str(kind)), obj)
    except ValueError as err:
        raise BadAnswer(where, wanted="an event", found=f"the type {kind!r:.80}") from err
