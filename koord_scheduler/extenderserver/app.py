"""The verbs over HTTP: bodies are bounded in bytes and time, answers come in time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from aiohttp import web
from msgspec import Raw

from koord.component.http.bodies import Bodies
from koord.component.http.guard import Guard
from koord.component.http.middleware import limits
from koord.component.http.refusal import Refusal
from koord.util.clock import Clock
from koord.util.errors import InvalidObject, Unavailable
from koord_scheduler.extenders import messages
from koord_scheduler.extenders.messages import Arguments, FilterAnswer
from koord_scheduler.extenderserver.host import PluginHost
from koord_scheduler.extenderserver.metrics import ExtenderMetrics
from koord_scheduler.extenderserver.served import BIND, FILTER, PRIORITIZE

LARGEST_BODY = 128 << 20  # bytes: 5,000 whole nodes; names take 150 KB
LARGEST_BINDING = 64 << 10
MOST_BODIES = 2 * LARGEST_BODY  # bytes of all: room for another peer's beside the largest
LARGE = 256 << 10  # bytes of JSON that are read off the loop, and of an answer written at a time
MOST_BINDINGS = 256  # at a time
SHARE = 0.8  # of the scheduler's timeout, in which an answer must be on its way
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class _Answer:
    body: Sequence[bytes | Raw]  # in pieces
    outcome: str = "ok"  # "late": the plugins were not asked; "error": they failed


_Answering = Callable[[bytearray, float], Awaitable[_Answer]]


class ExtenderApp:
    """Serves one host's answers."""

    def __init__(
        self,
        host: PluginHost,
        verbs: tuple[str, ...],
        timeout: float,
        metrics: ExtenderMetrics,
        clock: Clock,
        *,
        guard: Guard | None = None,
    ) -> None:
        """timeout: the httpTimeout that kube-scheduler has for us, in seconds.

        guard: lets clients in before their bodies are read; None: all that can connect.
        """
        self._host = host
        self._verbs = verbs
        self._guard = guard
        self._timeout = timeout
        self._metrics = metrics
        self._clock = clock
        self._bindings: set[asyncio.Task[str]] = set()
        self._bodies = Bodies(largest=LARGEST_BODY, most=MOST_BODIES)

    def application(self) -> web.Application:
        """Return the application, with a path for each verb that is served."""
        app = web.Application(middlewares=[limits(self._clock)])
        answering: dict[str, _Answering] = {
            FILTER: self._filter, PRIORITIZE: self._prioritize, BIND: self._bind
        }  # fmt: skip
        for verb in self._verbs:
            app.router.add_post(f"/{verb}", self._handler(verb, answering[verb]))
        return app

    def _handler(
        self, verb: str, answer: _Answering
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            began, code, outcome = self._clock.monotonic(), 500, "error"
            try:
                if self._guard is not None:
                    await self._guard(request)
                if request.content_type != JSON:  # no page in a browser can send that unasked
                    raise web.HTTPUnsupportedMediaType
                largest = LARGEST_BINDING if verb == BIND else LARGEST_BODY
                async with self._bodies.read(request, largest) as body:
                    found = await answer(body, began + self._timeout * SHARE)
                    code, outcome = 200, found.outcome
                    return await self._written(request, found.body)
            except (Refusal, web.HTTPException) as err:
                code = err.status
                raise
            except Unavailable:
                code = 503
                raise
            except InvalidObject:
                code = 400
                raise
            finally:
                seconds = self._clock.monotonic() - began
                self._metrics.requests.labels(verb, str(code), outcome).observe(seconds)

        return handle

    async def _written(
        self, request: web.Request, pieces: Sequence[bytes | Raw]
    ) -> web.StreamResponse:
        """Send an answer; a client that does not take it in time loses its connection."""
        response = web.StreamResponse()
        response.content_type = JSON
        response.content_length = sum(map(len, pieces))
        try:
            async with asyncio.timeout(self._timeout):
                await response.prepare(request)
                part = bytearray()
                for piece in pieces:
                    part += piece
                    if len(part) >= LARGE:
                        await response.write(part)
                        part = bytearray()
                await response.write_eof(bytes(part))
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _filter(self, body: bytearray, deadline: float) -> _Answer:
        asked = await _read(body)
        late = self._clock.monotonic() > deadline
        answer = FilterAnswer(asked.names) if late else self._host.filter(asked)
        outcome = "late" if late else "error" if answer.error else "ok"
        if asked.nodes is None:
            return _Answer(messages.write_filter_answer(answer), outcome)
        passed = frozenset(answer.names or ())
        pairs = zip(asked.names, asked.nodes, strict=True)
        nodes = [node for name, node in pairs if name in passed]
        return _Answer(messages.write_filter_answer(answer, nodes), outcome)

    async def _prioritize(self, body: bytearray, deadline: float) -> _Answer:
        asked = await _read(body)
        if self._clock.monotonic() > deadline:
            scores = dict.fromkeys(asked.names, 0)
            return _Answer([messages.write_priorities(scores)], "late")
        return _Answer([messages.write_priorities(self._host.prioritize(asked))])

    async def _bind(self, body: bytearray, deadline: float) -> _Answer:
        """A binding that has begun goes on, also where the scheduler has given up waiting."""
        asked = messages.read_bind(body)
        if self._clock.monotonic() > deadline:
            why = "there was no time left to bind the pod"
            return _Answer([messages.write_error(why)], "late")
        if len(self._bindings) >= MOST_BINDINGS:
            raise Unavailable(f"{len(self._bindings)} pods are being bound already")
        binding = asyncio.create_task(self._host.bind(asked), name=f"bind {asked.name}")
        self._bindings.add(binding)
        binding.add_done_callback(self._bindings.discard)
        error = await asyncio.shield(binding)
        return _Answer([messages.write_error(error)], "error" if error else "ok")


async def _read(body: bytearray) -> Arguments:
    if len(body) > LARGE:
        return await asyncio.to_thread(messages.read_arguments, body)
    return messages.read_arguments(body)
