"""Scripted inputs of a plugin under test: time, metrics, pods, evictions; and its captured logs."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from koord.api.eviction import EvictionOutcome, EvictionResponse
from koord.api.pod import Container, ContainerStatus, Pod
from koord.api.qos import KubeQoS
from koord.util.clock import Clock, stamp
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop
from koordlet.host.cgroups.layout import Driver, Layout
from koordlet.metriccache.cache import MetricCache, retentions
from koordlet.metriccache.kinds import AnyKind, Cadence, K, Kind, P, Sample
from koordlet.plugin.publishing import Published, with_published
from koordlet.statesinformer.podmeta import ContainerMeta, PodMeta

__all__ = [
    "INTERVAL",
    "CapturedLog",
    "LogEvent",
    "PodEvent",
    "RequestedEviction",
    "ScriptedEvictions",
    "ScriptedMetrics",
    "SimulatedClock",
    "make_pod",
]


@dataclass(frozen=True, slots=True)
class RequestedEviction:
    """A request as it reached the API server."""

    pod: Pod
    grace_seconds: int | None
    outcome: EvictionOutcome


@dataclass(frozen=True, slots=True)
class PodEvent:
    """A Kubernetes event on a pod."""

    pod: str  # namespace/name
    warning: bool
    reason: str
    message: str


class ScriptedEvictions:
    """Answers requests for evictions, and keeps them.

    What comes before the API server is real: dry-run, the budget, one request per pod at a time,
    and the pause after a no.
    """

    def __init__(self, clock: Clock) -> None:
        self.asked: list[RequestedEviction] = []
        self.events: list[PodEvent] = []
        self._clock = clock
        self._next: deque[tuple[EvictionResponse, float]] = deque()
        self._standing: dict[str, tuple[EvictionResponse, float]] = {}  # by namespace/name

    def answer(
        self,
        outcome: EvictionOutcome,
        *,
        message: str = "",
        retry_after: float | None = None,
        after: float = 0.0,
        pod: str = "",
    ) -> None:
        """Set the response to the next request, and its delay in seconds; one call per request.

        With a pod (namespace/name): answer all requests for this pod so from now on.
        """
        busy = outcome is EvictionOutcome.RATE_LIMITED
        certain = outcome is not EvictionOutcome.FAILED
        response = EvictionResponse(outcome, message, retry_after, busy, certain)
        if pod:
            self._standing[pod] = (response, after)
        else:
            self._next.append((response, after))

    @property
    def evicted(self) -> list[str]:
        """The pods whose eviction was accepted, as namespace/name, oldest first."""
        return [
            f"{asked.pod.namespace}/{asked.pod.name}"
            for asked in self.asked
            if asked.outcome is EvictionOutcome.EVICTED
        ]

    async def evict(self, pod: Pod, grace_seconds: int | None) -> EvictionResponse:
        """Record the call; see EvictionApi."""
        response, after = EvictionResponse(EvictionOutcome.EVICTED), 0.0
        if applied_values := self._standing.get(f"{pod.namespace}/{pod.name}"):
            response, after = applied_values
        elif self._next:
            response, after = self._next.popleft()
        await self._clock.sleep(after)
        self.asked.append(RequestedEviction(pod, grace_seconds, response.outcome))
        return response

    def announce(self, pod: Pod, *, warning: bool, reason: str, message: str) -> None:
        """Record the call; see EvictionApi."""
        self.events.append(PodEvent(f"{pod.namespace}/{pod.name}", warning, reason, message))


INTERVAL = 1.0  # seconds between samples, of every kind


class ScriptedMetrics:
    """Samples in place of those that collectors measure."""

    def __init__(self, clock: SimulatedClock, published: Iterable[Published] = ()) -> None:
        """published: the kinds of the plugin under test."""
        self.cache = MetricCache(
            None,
            "simulated-boot",
            clock,
            intervals=dict.fromkeys(Cadence, INTERVAL),
            retentions=retentions(),
            kinds=with_published(published),
        )
        self._clock = clock
        self._held: dict[tuple[AnyKind, tuple[str, ...]], float] = {}

    def hold(self, kind: Kind[P, K], value: float, /, *key: P.args, **named: P.kwargs) -> None:
        """Measure this value from the next second on; key is one value per kind.properties.

        Raises:
            UnknownSeries: the kind has no such series.
        """
        self._held[kind, kind.made(*key, **named)] = value

    def drop(self, kind: Kind[P, K], /, *key: P.args, **named: P.kwargs) -> None:
        """Measure it no longer, as when a pod has ended. Raises as hold does."""
        self._held.pop((kind, kind.made(*key, **named)), None)

    async def run(self, stop: Stop) -> None:
        """Append a sample of everything that is held, every second."""
        async for _ in stop.every(INTERVAL):
            samples = [Sample(kind, value, key) for (kind, key), value in self._held.items()]
            self.cache.append(stamp(self._clock), samples)


_LAYOUT = Layout.default(Driver.CGROUPFS)


def make_pod(
    name: str,
    *,
    namespace: str = "default",
    uid: str = "",
    qos: KubeQoS = KubeQoS.BURSTABLE,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    containers: tuple[Container, ...] = (Container("main"),),
    init_containers: tuple[Container, ...] = (),
    sandbox: bool = False,
    priority: int | None = None,
    grace_seconds: int = 30,
) -> PodMeta:
    """A running pod with its cgroups (cgroupfs driver); the uid is the name unless given.

    A container's id is containerd://<uid>-<name>. Init containers have no cgroup: they have ended.
    sandbox: whether the cgroup of the sandbox, sandbox-<uid>, is known.
    """
    uid = uid or name
    ids = {container.name: f"containerd://{uid}-{container.name}" for container in containers}
    pod = Pod(
        namespace=namespace,
        name=name,
        uid=uid,
        labels=labels or {},
        annotations=annotations or {},
        phase="Running",
        qos=qos,
        priority=priority,
        grace_seconds=grace_seconds,
        containers=containers,
        init_containers=init_containers,
        statuses=tuple(ContainerStatus(name, id, running=True) for name, id in ids.items()),
    )
    group = _LAYOUT.pod_dir(qos, uid)
    metas = tuple(
        ContainerMeta(name, id, _LAYOUT.container_dir(group, id)) for name, id in ids.items()
    )
    pause = f"{group}/sandbox-{uid}" if sandbox else ""
    return PodMeta(pod, group, metas, pod.qos_class, qos, sandbox=pause)


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One log event of a plugin."""

    level: str
    event: str
    facts: dict[str, Any]


class CapturedLog:
    """A plugin's logger (koordlet.plugin.Log) that keeps all events."""

    def __init__(self) -> None:
        self.events: list[LogEvent] = []

    def debug(self, event: str, **facts: Any) -> None:
        self.events.append(LogEvent("debug", event, facts))

    def info(self, event: str, **facts: Any) -> None:
        self.events.append(LogEvent("info", event, facts))

    def warning(self, event: str, **facts: Any) -> None:
        self.events.append(LogEvent("warning", event, facts))

    def error(self, event: str, **facts: Any) -> None:
        self.events.append(LogEvent("error", event, facts))

    def exception(self, event: str, **facts: Any) -> None:
        self.events.append(LogEvent("error", event, facts))

    def named(self, event: str) -> list[dict[str, Any]]:
        """The facts of all events of that name, oldest first."""
        return [entry.facts for entry in self.events if entry.event == event]

    def clear(self) -> None:
        self.events.clear()
