"""Bodies of requests: bounded in bytes over all connections, and there in seconds or refused."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from koord.component.http.connections import arriving, peer_of
from koord.component.http.refusal import Refusal

BODY_SECONDS = 2.0  # from the head of a request until its whole body is there
SMALL = 1 << 20  # bytes of each body that are free: connections are bounded
_CLOSE = {"Connection": "close"}  # what is left of the body is not wanted
_LATER = {**_CLOSE, "Retry-After": "1"}


class Bodies:
    """The bodies of one server that are being read or worked on. Used on the event loop.

    A small body always finds room. Of the rest one peer has at most what the largest body needs, so
    that it does not keep others out.
    """

    def __init__(self, *, largest: int, most: int) -> None:
        """largest: bytes of one body; most: bytes of all, without the first SMALL of each."""
        self._largest = largest
        self._most = most
        self._held: Counter[str] = Counter()  # bytes by peer

    @property
    def held(self) -> int:
        """Bytes that count, of all bodies."""
        return self._held.total()

    @asynccontextmanager
    async def read(self, request: web.Request, most: int | None = None) -> AsyncIterator[bytearray]:
        """The body; its bytes count until the block ends. most: fewer bytes than `largest`.

        Raises:
            Refusal: it is too large, too slow or has ended early, or there is no room for it now.
        """
        largest = self._largest if most is None else most
        peer = peer_of(request.transport and request.transport.get_extra_info("peername"))
        body, counted = bytearray(), 0
        try:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    with arriving(request):
                        _check(request.content_length or 0, largest)
                        async for piece in request.content.iter_any():
                            _check(len(body) + len(piece), largest)
                            more = max(len(body) + len(piece) - SMALL, 0) - counted
                            self._take(peer, more)
                            counted += more
                            body += piece
            except TimeoutError as err:
                why = f"wanted the whole body within {BODY_SECONDS:g} s, found {len(body)} bytes"
                raise Refusal(408, why, headers=_CLOSE) from err
            except (ConnectionError, web.PayloadAccessError, web.RequestPayloadError) as err:
                raise Refusal(400, "wanted a whole body, found its end", headers=_CLOSE) from err
            yield body
        finally:
            self._held[peer] -= counted
            self._held += Counter()  # forgets peers without any

    def _take(self, peer: str, count: int) -> None:
        if self._held[peer] + count > self._largest or self.held + count > self._most:
            why = f"wanted room for a body, found {self.held} bytes of others; ask again"
            raise Refusal(503, why, headers=_LATER)
        self._held[peer] += count


async def read_small(request: web.Request, most: int) -> bytes:
    """The body of a request, of at most SMALL bytes.

    Raises:
        Refusal: as Bodies.read.
    """
    async with Bodies(largest=most, most=0).read(request) as body:
        return bytes(body)


def _check(found: int, largest: int) -> None:
    if found > largest:
        why = f"wanted a body of at most {largest} bytes, found more"
        raise Refusal(413, why, headers=_CLOSE)
