"""One watch: the changes of a collection as the server streams them, a JSON object a line."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum

from koord.kube.answers import Object, read_object
from koord.kube.errors import BadAnswer, api_error
from koord.kube.transport import WHOLE, Call, Transport

BOOKMARK_SILENCE = 150.0  # seconds; servers that send bookmarks do so about once a minute
GRACE = 15.0  # seconds that the server may be late with ending the watch

MAX_LINE = 8 << 20  # bytes; etcd stores objects of 1.5 MiB, and JSON is less dense


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

    A connection that has died without a word is noticed: once a bookmark has come, silence of
    BOOKMARK_SILENCE is too long, and in any case silence beyond the end of the watch.

    Raises, on entry or from the events:
        Gone: the resource version is too old, as the status of the answer or as an event.
        ApiError: the server refused, or ended the watch with another error.
        Unreachable: the connection broke or fell silent.
        BadAnswer: a line is no event, or too long.
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
        yield _events(pieces, limits, patience, f"watch of {path}")


class _Patience:
    """The longest silence of the server that is accepted."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def left(self) -> float:
        return self._seconds

    def bookmarked(self) -> None:
        self._seconds = min(self._seconds, BOOKMARK_SILENCE)


async def _events(
    pieces: AsyncIterator[bytes], limits: WatchLimits, patience: _Patience, where: str
) -> AsyncIterator[WatchEvent]:
    lines = Lines(limits.line_bytes, where)
    async for piece in pieces:
        for line in lines.feed(piece):
            event = _event(await read_object(line, where), where)
            if event.type is WatchEventType.BOOKMARK:
                patience.bookmarked()
            yield event


class Lines:
    """Cuts a stream of bytes into lines. What follows the last line break is never handed out."""

    def __init__(self, max_bytes: int, where: str) -> None:
        self._max_bytes = max_bytes
        self._where = where
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the lines that are complete now, without empty ones.

        Raises:
            BadAnswer: a line is longer than max_bytes.
        """
        *ended, rest = piece.split(b"\n")
        for end in ended:
            line = bytes(self._rest) + end
            self._rest.clear()
            if line.strip():
                yield line
        self._rest += rest
        if len(self._rest) > self._max_bytes:
            found = "a longer line"
            raise BadAnswer(self._where, wanted=f"at most {self._max_bytes} bytes", found=found)


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
