"""The plugins of profiles behind a kube-scheduler: the server of the HTTP extender protocol."""

import asyncio
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from aiohttp import web
from msgspec import Raw
from prometheus_client import CollectorRegistry, Histogram

from koord.cluster.decoder import Decoder
from koord.cluster.facts import ClusterPod
from koord.cluster.keptfields import NO_FIELDS, KeptFields
from koord.cluster.kinds import POD
from koord.cluster.lenient_decoding import DecodingFaults
from koord.cluster.view import View
from koord.component.http.certificate import ServingCertificate
from koord.component.http.guard import Guard, TokenFile, local_only
from koord.component.http.limits import BodyLimiter
from koord.component.http.responses import HttpError, limits
from koord.component.http.site import HttpServer
from koord.component.http.sockets import Address
from koord.util.clock import Clock
from koord.util.errors import InvalidObject, KoordError, Unavailable
from koord.util.logs import LimitedLog, get_logger
from koord.util.ttlcache import TtlCache
from koord_scheduler import PREFIX
from koord_scheduler import extendermessages as messages
from koord_scheduler.cache import AssumeError, SchedulerCache
from koord_scheduler.config.profiles import (
    DEFAULT_POINTS,
    DEFAULT_PRE_BIND,
    MISSING_PLUGINS,
    EnabledPlugin,
    Point,
    Profile,
)
from koord_scheduler.extendermessages import (
    MAX_SCORE,
    MIN_SCORE,
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderFilterResult,
)
from koord_scheduler.framework.calls import ExtensionPointError
from koord_scheduler.framework.interfaces import pod_changes
from koord_scheduler.framework.nodes.adapters import Rows
from koord_scheduler.framework.nodes.search import SearchResult
from koord_scheduler.framework.profile import ProfilePlugins
from koord_scheduler.framework.status import (
    FEASIBLE,
    SUCCESS,
    Code,
    CycleInput,
    CycleState,
    NodeStatuses,
    Scores,
    Status,
)
from koord_scheduler.scheduling.failures import ProfileCycle

CACHED_CYCLE_SECONDS = 60.0  # that what filter has computed is kept for prioritize and bind
MAX_CACHED_CYCLES = 1024

log = get_logger("koord_scheduler.extender")


@dataclass(frozen=True, slots=True)
class CachedCycle:
    """The result of filter for a pod, over the nodes at that time."""

    state: CycleState
    view: View


class PluginHost:
    """Runs the plugins of profiles. One event loop."""

    def __init__(
        self,
        profiles: Sequence[ProfilePlugins],
        state: SchedulerCache,
        clock: Clock,
        *,
        fail_open: bool = False,
        kept: KeptFields = NO_FIELDS,
    ) -> None:
        """fail_open: where a plugin fails all nodes pass; else the pod's attempt fails.

        kept: what plugins read of pods beyond what is always kept.
        """
        nominator = profiles[0].services.nominator
        cycles = [ProfileCycle(one, nominator, choosing=True) for one in profiles]
        self._profiles = {one.name: one for one in cycles}
        self._first = cycles[0]
        self._state = state
        self._decoder = Decoder(kept)
        self._kept: TtlCache[str, CachedCycle] = TtlCache(clock, MAX_CACHED_CYCLES)
        self._under_way: set[str] = set()  # uids of pods that are being bound
        self._fail_open = fail_open
        self._failures = LimitedLog(log, clock)

    def filter(self, asked: ExtenderArgs) -> ExtenderFilterResult:
        """Return which of the nodes pass, in their order.

        Raises:
            InvalidObject: the pod is malformed.
        """
        pod = self._pod(asked.pod)
        cycle, state, view = self._cycle(pod), _measured(), self._state.view()
        found = cycle.search.search(state, pod, view, everywhere=True)
        if found.status.code is Code.ERROR:
            return self._failed(pod, asked.names, found.status)
        self._kept.put(pod.uid, CachedCycle(state, view), CACHED_CYCLE_SECONDS)
        response, plugins = _filter_result(asked.names, view, found)
        if plugins:
            log.debug("nodes.rejected", pod=pod.key, plugins=dict(plugins))
        return response

    def prioritize(self, asked: ExtenderArgs) -> Mapping[str, int]:
        """Return scores of the nodes, from 0 to 10; 0 of all where a plugin fails.

        Raises:
            InvalidObject: the pod is malformed.
        """
        pod = self._pod(asked.pod)
        cycle, nothing = self._cycle(pod), dict.fromkeys(asked.names, 0)
        try:
            cached_cycle = self._known(cycle, pod)
            rows = _rows(asked.names, cached_cycle.view)
            feasible = np.zeros(len(cached_cycle.view), np.bool_)
            feasible[rows[rows >= 0]] = True
            if not feasible.any():
                return nothing
            seen = CycleInput(cached_cycle.state, pod, cached_cycle.view)
            table = cycle.scoring.scores(seen, feasible)
        except ExtensionPointError as err:
            self._failures.warning("prioritize.failed", pod=pod.key, error=str(err))
            return nothing
        weights = {one.name: one.weight or 1 for one in cycle.plugins.settings.enabled(Point.SCORE)}
        total = sum(weights[name] for name in table.columns)
        if not total:
            return nothing
        scores = np.zeros(len(cached_cycle.view) + 1, np.int64)  # the last one is for unknown nodes
        scores[table.rows] = wire_scores(table.totals // total)
        return dict(zip(asked.names, scores[rows].tolist(), strict=True))

    async def bind(self, asked: ExtenderBindingArgs) -> str:
        """Bind a pod by the plugins; return what went wrong, "": it is bound.

        A pod that is bound to that node already is.
        """
        pod = self._state.pod(f"{asked.namespace}/{asked.name}")
        if pod is None or pod.uid != asked.uid:
            return f"pod {asked.namespace}/{asked.name} of uid {asked.uid} is not known"
        if pod.uid in self._under_way:
            return f"pod {pod.key} is being bound to node {pod.node} already"
        if pod.node:
            return "" if pod.node == asked.node else f"pod {pod.key} is bound to node {pod.node}"
        try:
            status = await self._bind(pod, asked.node)
        except (AssumeError, ExtensionPointError) as err:
            return str(err)
        return "" if status.ok else status.message or status.code.title

    async def _bind(self, pod: ClusterPod, node: str) -> Status:
        cycle = self._cycle(pod)
        cached_cycle = self._known(cycle, pod)
        binding, state, uid = cycle.binding, cached_cycle.state, pod.uid
        nominated = binding.nominate(state, pod, node)
        pod = self._state.assume(pod, node, dict(pod_changes(state).annotations))
        self._under_way.add(uid)
        status = Status.failed("the binding was given up")
        try:
            status = binding.reserve(state, pod, node, nominated)
            if status.ok:
                # What Reserve has chosen must not be chosen for another pod meanwhile.
                pod = self._state.annotate(uid, pod_changes(state).annotations) or pod
                flight = binding.pre_bind_pre_flight(state, pod, node)
                status = SUCCESS if flight.code is Code.SKIP else flight
                if flight.ok:
                    status = await binding.pre_bind(state, pod, node)
            if status.ok:
                status = await binding.bind(state, pod, node)
        finally:
            self._under_way.discard(uid)
            if status.ok:
                self._state.finish_binding(uid)
            else:
                binding.unreserve(state, pod, node)
                self._state.forget(uid)
        if status.ok:
            await binding.post_bind(state, pod, node)
        return status

    def _pod(self, data: bytes) -> ClusterPod:
        return self._decoder.object(POD, data, DecodingFaults())

    def _cycle(self, pod: ClusterPod) -> ProfileCycle:
        """The profile that has the pod's scheduler name, or else the first one."""
        return self._profiles.get(pod.scheduler_name, self._first)

    def _known(self, cycle: ProfileCycle, pod: ClusterPod) -> CachedCycle:
        """Return the cached result of filter, or compute it now. Raises ExtensionPointError."""
        try:
            return self._kept[pod.uid]
        except KeyError:
            made = CachedCycle(_measured(), self._state.view())
        status = cycle.search.pre_filter(made.state, pod, made.view).status
        if status.code is Code.ERROR:
            raise ExtensionPointError(status)
        return made

    def _failed(
        self, pod: ClusterPod, names: tuple[str, ...], status: Status
    ) -> ExtenderFilterResult:
        facts = {"pod": pod.key, "error": status.message}
        if self._fail_open:
            self._failures.warning("filter.skipped", **facts)
            return ExtenderFilterResult(names)
        self._failures.warning("filter.failed", **facts)
        return ExtenderFilterResult((), error=status.message)


def wire_scores(scores: Scores) -> Scores:
    """Scores from 0 to 100 as ones from 0 to 10, rounded."""
    found: Scores = np.clip((scores + 5) // 10, MIN_SCORE, MAX_SCORE)
    return found


def _measured() -> CycleState:
    state = CycleState()
    state.measured = True
    return state


def _rows(names: Sequence[str], view: View) -> Rows:
    """The rows of nodes; -1 of those that are not known."""
    get = view.traits.rows.get
    return np.fromiter((get(name, -1) for name in names), np.intp, len(names))


def _filter_result(
    names: Sequence[str], view: View, found: SearchResult
) -> tuple[ExtenderFilterResult, Counter[str]]:
    """The answer, and how many nodes each plugin rejects."""
    statuses = _statuses(found)
    if statuses is None:
        return ExtenderFilterResult(tuple(names)), Counter()
    rows = _rows(names, view)
    numbers = np.append(statuses.numbers, FEASIBLE)[rows]  # a node that is not known passes
    of_number = {number: statuses.of_number(number) for number in np.unique(numbers).tolist()}
    passed: list[str] = []
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    for name, number in zip(names, numbers.tolist(), strict=True):
        status = of_number[number]
        if status is None:
            passed.append(name)
        elif status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE:
            unresolvable[name] = status.message
        else:
            failed[name] = status.message
    plugins = Counter(one.plugin for n in numbers.tolist() if (one := of_number[n]) is not None)
    return ExtenderFilterResult(tuple(passed), failed, unresolvable), plugins


def _statuses(found: SearchResult) -> NodeStatuses | None:
    """The statuses of nodes; None: there are no nodes at all."""
    return found.statuses or found.diagnosis.node_statuses


FILTER, PRIORITIZE, BIND = "filter", "prioritize", "bind"
"""Verbs, as the extender's configuration names them."""

VERBS = {
    FILTER: (Point.PRE_FILTER, Point.FILTER),
    PRIORITIZE: (Point.PRE_SCORE, Point.SCORE),
    BIND: (Point.RESERVE, Point.PRE_BIND, Point.BIND, Point.POST_BIND),
}
"""Verbs, and the extension points whose plugins need them."""

_REFUSED = {
    Point.PRE_ENQUEUE: "set spec.schedulingGates, which a controller removes",
    Point.QUEUE_SORT: "the queue is kube-scheduler's",
    Point.POST_FILTER: "preemption is kube-scheduler's",
    Point.PERMIT: "a pod cannot be made to wait after its node was chosen",
}
_KUBE_SCHEDULER_POINTS = frozenset((*DEFAULT_POINTS, DEFAULT_PRE_BIND, MISSING_PLUGINS))
"""Plugins that kube-scheduler runs itself, and what is only there for others."""


class NotServable(KoordError):
    """A profile has what the protocol cannot do, or nothing to serve."""


def served_profile(profile: Profile) -> Profile:
    """The profile without what kube-scheduler does itself.

    Kubernetes' default plugins are left out but where a binding needs them, and for the order of a
    queue that is never asked.

    Raises:
        NotServable: with each plugin and point that cannot be served.
    """
    errors = list(_errors(profile))
    if errors:
        raise NotServable(f"profile {profile.scheduler_name}: {'; '.join(errors)}")
    served = {Point.QUEUE_SORT, Point.BIND}
    if BIND in verbs_of(profile):
        served.add(Point.PRE_BIND)
    plugins = {
        point: profile.enabled(point) if point in served else _own(profile, point)
        for point in Point
    }
    return replace(profile, plugins=plugins, percentage_of_nodes_to_score=None)


def verbs_of(profile: Profile) -> tuple[str, ...]:
    """The verbs that a profile's plugins need."""
    return tuple(
        verb for verb, points in VERBS.items() if any(_own(profile, point) for point in points)
    )


def _errors(profile: Profile) -> Iterator[str]:
    for point, hint in _REFUSED.items():
        for one in _own(profile, point):
            yield f'plugin "{one.name}" cannot be served at {point}: {hint}; disable it there'
    if not verbs_of(profile):
        yield "wanted a plugin to serve, found only those that kube-scheduler has itself"


def _own(profile: Profile, point: Point) -> tuple[EnabledPlugin, ...]:
    """The plugins at a point that kube-scheduler does not have."""
    return tuple(one for one in profile.enabled(point) if one.name not in _KUBE_SCHEDULER_POINTS)


@dataclass(frozen=True, kw_only=True, slots=True)
class AccessFiles:
    """Paths of what TLS and tokens need, all PEM but the token; None: not given."""

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    token: Path | None = None

    @property
    def known(self) -> bool:
        """Whether clients have to prove that they may ask."""
        return self.client_ca is not None or self.token is not None


class Access:
    """Certificate, token and guard from the given files; it reloads those that are not None."""

    def __init__(self, files: AccessFiles, oldest_tls: ssl.TLSVersion) -> None:
        """Read the files. Without any, only local clients are let in.

        Raises:
            CertificateError, TokenFileError: one cannot be used.
        """
        self.certificate: ServingCertificate | None = None
        if files.certificate is not None and files.key is not None:
            flags = "--extender-tls-cert-file and --extender-tls-private-key-file"
            self.certificate = ServingCertificate(
                files.certificate, files.key, client_ca=files.client_ca, flags=flags
            )
            self.certificate.context.minimum_version = oldest_tls
        self.tls = self.certificate.context if self.certificate is not None else None
        self.token = TokenFile(files.token) if files.token is not None else None
        self.guard: Guard | None = self.token
        if not files.known:
            self.guard = local_only


class ExtenderMetrics:
    """Requests by verb and HTTP status; outcome late: answered without asking the plugins."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Histogram(
            f"{PREFIX}_extender_request_duration_seconds",
            "Time from a whole request of kube-scheduler to the answer, by verb and HTTP status.",
            ["verb", "code", "outcome"],
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
            registry=registry,
        )


MAX_BODY_BYTES = 128 << 20  # bytes: 5,000 whole nodes; names take 150 KB
MAX_BINDING_BYTES = 64 << 10
MAX_BODIES_BYTES = 2 * MAX_BODY_BYTES  # bytes of all: room for another peer's beside the largest
LARGE_BODY_BYTES = (
    256 << 10
)  # bytes of JSON that are read off the loop, and of a response written at a time
MAX_BINDINGS = 256  # at a time
SHARE = 0.8  # of the scheduler's timeout, in which a response must be on its way
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class _Response:
    body: Sequence[bytes | Raw]  # in pieces
    outcome: str = "ok"  # "late": the plugins were not asked; "error": they failed


_Responder = Callable[[bytearray, float], Awaitable[_Response]]


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
        self._bodies = BodyLimiter(largest=MAX_BODY_BYTES, most=MAX_BODIES_BYTES)

    def application(self) -> web.Application:
        """Return the application, with a path for each verb that is served."""
        app = web.Application(middlewares=[limits(self._clock)])
        answering: dict[str, _Responder] = {
            FILTER: self._filter, PRIORITIZE: self._prioritize, BIND: self._bind
        }  # fmt: skip
        for verb in self._verbs:
            app.router.add_post(f"/{verb}", self._handler(verb, answering[verb]))
        return app

    def _handler(
        self, verb: str, response: _Responder
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            began, code, outcome = self._clock.monotonic(), 500, "error"
            try:
                if self._guard is not None:
                    await self._guard(request)
                if request.content_type != JSON:  # no page in a browser can send that unasked
                    raise web.HTTPUnsupportedMediaType
                largest = MAX_BINDING_BYTES if verb == BIND else MAX_BODY_BYTES
                async with self._bodies.read(request, largest) as body:
                    found = await response(body, began + self._timeout * SHARE)
                    code, outcome = 200, found.outcome
                    return await self._written(request, found.body)
            except (HttpError, web.HTTPException) as err:
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
        """Send a response; a client that does not take it in time loses its connection."""
        response = web.StreamResponse()
        response.content_type = JSON
        response.content_length = sum(map(len, pieces))
        try:
            async with asyncio.timeout(self._timeout):
                await response.prepare(request)
                part = bytearray()
                for piece in pieces:
                    part += piece
                    if len(part) >= LARGE_BODY_BYTES:
                        await response.write(part)
                        part = bytearray()
                await response.write_eof(bytes(part))
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _filter(self, body: bytearray, deadline: float) -> _Response:
        asked = await _read(body)
        late = self._clock.monotonic() > deadline
        response = ExtenderFilterResult(asked.names) if late else self._host.filter(asked)
        outcome = "late" if late else "error" if response.error else "ok"
        if asked.nodes is None:
            return _Response(messages.write_filter_result(response), outcome)
        passed = frozenset(response.names or ())
        pairs = zip(asked.names, asked.nodes, strict=True)
        nodes = [node for name, node in pairs if name in passed]
        return _Response(messages.write_filter_result(response, nodes), outcome)

    async def _prioritize(self, body: bytearray, deadline: float) -> _Response:
        asked = await _read(body)
        if self._clock.monotonic() > deadline:
            scores = dict.fromkeys(asked.names, 0)
            return _Response([messages.write_priorities(scores)], "late")
        return _Response([messages.write_priorities(self._host.prioritize(asked))])

    async def _bind(self, body: bytearray, deadline: float) -> _Response:
        """A binding that has begun goes on, also where the scheduler has given up waiting."""
        asked = messages.read_bind(body)
        if self._clock.monotonic() > deadline:
            why = "there was no time left to bind the pod"
            return _Response([messages.write_error(why)], "late")
        if len(self._bindings) >= MAX_BINDINGS:
            raise Unavailable(f"{len(self._bindings)} pods are being bound already")
        binding = asyncio.create_task(self._host.bind(asked), name=f"bind {asked.name}")
        self._bindings.add(binding)
        binding.add_done_callback(self._bindings.discard)
        error = await asyncio.shield(binding)
        return _Response([messages.write_error(error)], "error" if error else "ok")


async def _read(body: bytearray) -> ExtenderArgs:
    if len(body) > LARGE_BODY_BYTES:
        return await asyncio.to_thread(messages.read_extender_args, body)
    return messages.read_extender_args(body)


def served_verbs(profiles: Sequence[ProfilePlugins]) -> tuple[str, ...]:
    """The verbs that any of the profiles needs."""
    wanted = {verb for one in profiles for verb in verbs_of(one.settings)}
    return tuple(verb for verb in VERBS if verb in wanted)


def extender_server(
    profiles: Sequence[ProfilePlugins],
    state: SchedulerCache,
    address: Address,
    access: Access,
    *,
    timeout: float,
    fail_open: bool,
    registry: CollectorRegistry,
    clock: Clock,
    kept: KeptFields = NO_FIELDS,
) -> HttpServer:
    """Return a server that answers a kube-scheduler, whose httpTimeout for it is timeout seconds.

    fail_open, kept: see PluginHost.
    """
    host = PluginHost(profiles, state, clock, fail_open=fail_open, kept=kept)
    metrics = ExtenderMetrics(registry)
    verbs = served_verbs(profiles)
    app = ExtenderApp(host, verbs, timeout, metrics, clock, guard=access.guard)
    return HttpServer(
        app.application(),
        address,
        access.tls,
        clock=clock,
        registry=registry,
        prefix=f"{PREFIX}_extender",
    )
