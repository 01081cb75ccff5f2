"""The verbs over HTTP: bodies and waiting requests are bounded, answers come in time."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from koord.component.http.middleware import limits
from koord.util.clock import Clock
from koord.util.errors import InvalidObject, Unavailable
from koord_scheduler.extenders import messages
from koord_scheduler.extenders.messages import Arguments, FilterAnswer
from koord_scheduler.extenderserver.host import PluginHost
from koord_scheduler.extenderserver.metrics import ExtenderMetrics
from koord_scheduler.extenderserver.served import BIND, FILTER, PRIORITIZE

LARGEST_BODY = 128 << 20  # bytes: 5,000 whole nodes; names take 150 KB
LARGEST_BINDING = 64 << 10
LARGE = 256 << 10  # bytes of JSON that are read off the loop
MOST_REQUESTS = {FILTER: 8, PRIORITIZE: 8, BIND: 256}  # at a time
SHARE = 0.8  # of the scheduler's timeout, in which an answer must be on its way
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class _Answer:
    body: bytes
    outcome: str = "ok"  # "late": the plugins were not asked; "error": they failed


_Answering = Callable[[bytes, float], Awaitable[_Answer]]


class ExtenderApp:
    """Serves one host's answers."""

    def __init__(
        self,
        host: PluginHost,
        verbs: tuple[str, ...],
        timeout: float,
        metrics: ExtenderMetrics,
        clock: Clock,
    ) -> None:
        """timeout: the httpTimeout that kube-scheduler has for us, in seconds."""
        self._host = host
        self._verbs = verbs
        self._seconds = timeout * SHARE
        self._metrics = metrics
        self._clock = clock
        self._bindings: set[asyncio.Task[str]] = set()
        self._open = dict.fromkeys(MOST_REQUESTS, 0)

    def application(self) -> web.Application:
        """Return the application, with a path for each verb that is served."""
        app = web.Application(middlewares=[limits(self._clock)], client_max_size=LARGEST_BODY)
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
                found = await self._answered(verb, request, answer, began)
                code, outcome = 200, found.outcome
                return web.Response(body=found.body, content_type=JSON)
            except web.HTTPException as err:
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

    async def _answered(
        self, verb: str, request: web.Request, answer: _Answering, began: float
    ) -> _Answer:
        if request.content_type != JSON:  # no page in a browser can send that unasked
            raise web.HTTPUnsupportedMediaType
        if verb == BIND and (request.content_length or 0) > LARGEST_BINDING:
            raise web.HTTPRequestEntityTooLarge(LARGEST_BINDING, request.content_length or 0)
        if self._open[verb] >= MOST_REQUESTS[verb]:
            raise Unavailable(f"{verb}: {self._open[verb]} requests are being answered already")
        self._open[verb] += 1
        try:
            body = await request.read()
            return await answer(body, began + self._seconds)
        finally:
            self._open[verb] -= 1

    async def _filter(self, body: bytes, deadline: float) -> _Answer:
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

    async def _prioritize(self, body: bytes, deadline: float) -> _Answer:
        asked = await _read(body)
        if self._clock.monotonic() > deadline:
            scores = dict.fromkeys(asked.names, 0)
            return _Answer(messages.write_priorities(scores), "late")
        return _Answer(messages.write_priorities(self._host.prioritize(asked)))

    async def _bind(self, body: bytes, deadline: float) -> _Answer:
        """A binding that has begun goes on, also where the scheduler has given up waiting."""
        asked = messages.read_bind(body)
        if self._clock.monotonic() > deadline:
            return _Answer(messages.write_error("there was no time left to bind the pod"), "late")
        binding = asyncio.create_task(self._host.bind(asked), name=f"bind {asked.name}")
        self._bindings.add(binding)
        binding.add_done_callback(self._bindings.discard)
        error = await asyncio.shield(binding)
        return _Answer(messages.write_error(error), "error" if error else "ok")


async def _read(body: bytes) -> Arguments:
    if len(body) > LARGE:
        return await asyncio.to_thread(messages.read_arguments, body)
    return messages.read_arguments(body)
