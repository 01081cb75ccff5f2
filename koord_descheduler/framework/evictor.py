"""The evictor: filters, limits, metrics and attribution of evictions; decisions with reasons."""

from collections import Counter as CollectionsCounter
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain, islice
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import UnknownMetricFamily

from koord.cluster.facts import ClusterPod
from koord.component.metrics import OwnMetrics
from koord.component.plugins.execution import FailureLog
from koord.util.clock import Clock
from koord.util.errors import error_text
from koord.util.logs import get_logger
from koord_descheduler.framework.interfaces import (
    AdmissionGate,
    EvictOptions,
    EvictPlugin,
    FilterPlugin,
)

KEPT_CYCLES = 12
MAX_DECISIONS = 100_000  # of one kind in one cycle


class Action(StrEnum):
    """The decision about a pod."""

    EVICT = "evict"  # it was evicted, or a migration begun; in dry-run it would have been
    STAY = "stay"  # it may stay or has to
    REFUSED = "refused"  # it was chosen, but a limit, a filter or the evict plugin rejected it


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeDecision:
    """A plugin's decision about a node."""

    profile: str
    plugin: str
    node: str
    verdict: str  # a word or two of the plugin's: "high", "low"
    reason: str  # a sentence for people
    facts: Mapping[str, float] = field(default_factory=dict)  # figures behind it, unit in the name
    hint: str = ""  # what would change it, as a threshold; "": nothing simple


@dataclass(frozen=True, kw_only=True, slots=True)
class PodDecision:
    """A plugin's decision about a pod on a node that it examined closely."""

    profile: str
    plugin: str
    pod: str  # namespace/name
    node: str
    action: Action
    reason: str  # a sentence for people
    candidates: tuple[str, ...] = ()  # nodes that it could go to, the best ones first
    facts: Mapping[str, float] = field(default_factory=dict)


Decision = NodeDecision | PodDecision
DecisionSource = Callable[[], Iterable[Decision]]
"""Makes the decisions of one round when they are asked for; from what never changes any more."""


class Findings:
    """Collects the decisions of one round of a plugin, to be published at its end."""

    def __init__(self, profile: str, plugin: str) -> None:
        self._profile, self._plugin = profile, plugin
        self._found: list[Decision] = []

    def node(
        self,
        node: str,
        verdict: str,
        reason: str,
        *,
        facts: Mapping[str, float] | None = None,
        hint: str = "",
    ) -> None:
        """Add a NodeDecision."""
        self._found.append(
            NodeDecision(
                profile=self._profile,
                plugin=self._plugin,
                node=node,
                verdict=verdict,
                reason=reason,
                facts=facts or {},
                hint=hint,
            )
        )

    def pod(
        self,
        pod: ClusterPod,
        action: Action,
        reason: str,
        *,
        candidates: Iterable[str] = (),
        facts: Mapping[str, float] | None = None,
    ) -> None:
        """Add a PodDecision."""
        self._found.append(
            PodDecision(
                profile=self._profile,
                plugin=self._plugin,
                pod=pod.key,
                node=pod.node,
                action=action,
                reason=reason,
                candidates=tuple(candidates),
                facts=facts or {},
            )
        )

    def __call__(self) -> Iterable[Decision]:
        """Return the decisions so far; this makes Findings a DecisionSource."""
        return tuple(self._found)


@dataclass(slots=True)
class CycleDecisions:
    """The decisions of one cycle."""

    began: float  # Unix seconds
    sources: list[DecisionSource] = field(default_factory=list)
    outcomes: list[PodDecision] = field(default_factory=list)  # of all that was to be evicted

    def copy(self) -> "CycleDecisions":
        """The decisions so far, for another thread."""
        return CycleDecisions(self.began, list(self.sources), list(self.outcomes))

    def nodes(self) -> list[NodeDecision]:
        """Return at most MAX_DECISIONS about nodes, in the order of the plugins' rounds."""
        found = (one for one in self._all() if isinstance(one, NodeDecision))
        return list(islice(found, MAX_DECISIONS))

    def pods(self) -> list[PodDecision]:
        """Return at most MAX_DECISIONS about pods, in the order of the plugins' rounds.

        Evictions that no plugin published come last. The outcome of an eviction wins over what its
        plugin published.
        """
        found = (one for one in self._all() if isinstance(one, PodDecision))
        outcomes = {_what(one): one for one in self.outcomes}
        published = {_what(one): one for one in islice(found, MAX_DECISIONS)}
        settled = (_settled(one, outcomes.pop(what, one)) for what, one in published.items())
        return list(islice(chain(settled, outcomes.values()), MAX_DECISIONS))

    def _all(self) -> Iterator[Decision]:
        return chain.from_iterable(source() for source in self.sources)


class Decisions:
    """The decisions of the last cycles, the newest one last. Belongs to the event loop."""

    def __init__(self) -> None:
        self.cycles: deque[CycleDecisions] = deque(maxlen=KEPT_CYCLES)

    def begin(self, now: float) -> None:
        """Begin a cycle, at so many Unix seconds."""
        self.cycles.append(CycleDecisions(now))

    def publish(self, source: DecisionSource) -> None:
        """Add the decisions of a round to those of this cycle; before the first one to none."""
        if self.cycles:
            self.cycles[-1].sources.append(source)

    def settle(self, outcome: PodDecision) -> None:
        """Add what became of a pod that a plugin wanted to evict; before the first cycle nowhere.

        Called by the evictor proxy, once for each such pod.
        """
        if self.cycles and len(self.cycles[-1].outcomes) < MAX_DECISIONS:
            self.cycles[-1].outcomes.append(outcome)


def _what(one: PodDecision) -> tuple[str, str, str]:
    return one.profile, one.plugin, one.pod


def _settled(published: PodDecision, outcome: PodDecision) -> PodDecision:
    """Return a published decision, corrected by its outcome."""
    if outcome.action is published.action:
        return published
    reason = f"{published.reason}; {outcome.reason}" if published.reason else outcome.reason
    return replace(published, action=outcome.action, reason=reason)


UNSUFFIXED_COUNTERS = frozenset({"descheduler_pods_evicted"})
"""Counters that Koordinator named without `_total`; for koord.component.metrics."""
MAX_SERIES = 10_000  # of evicted pods by namespace and node
BEYOND = "other"  # namespace and node of what is beyond that
_LABELS = ("result", "strategy", "namespace", "node")


class PodsEvicted:
    """descheduler_pods_evicted: evictions by result, counted where they are carried out."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, ...], int] = {}

    def count(self, *, result: str, strategy: str, namespace: str, node: str) -> None:
        """Count an eviction: result is "success" or "error", strategy the plugin that asked."""
        key = (result, strategy, namespace, node)
        if key not in self._counts and len(self._counts) >= MAX_SERIES:
            key = (result, strategy, BEYOND, BEYOND)
        self._counts[key] = self._counts.get(key, 0) + 1

    def collect(self) -> Iterator[UnknownMetricFamily]:
        """Yield the family with all counts, for prometheus_client."""
        family = self._family()
        for key, value in tuple(self._counts.items()):
            family.add_metric(key, value)
        yield family

    def describe(self) -> Iterator[UnknownMetricFamily]:
        """Yield the family without counts, so that the registry rejects a duplicate name."""
        yield self._family()

    def _family(self) -> UnknownMetricFamily:
        help_ = "Number of evicted pods, by the result, by the strategy, by the namespace, by node."
        return UnknownMetricFamily("descheduler_pods_evicted", help_, labels=_LABELS)


class FrameworkMetrics(OwnMetrics):
    """Cycles, rounds of plugins, and evictions."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.evicted = PodsEvicted()
        registry.register(self.evicted)
        self.cycles = Histogram(
            "descheduler_cycle_duration_seconds",
            "Time from the start of a descheduling cycle to its end.",
            buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
            registry=registry,
        )
        self.denied = Counter(
            "descheduler_evictions_denied_total",
            "Evictions that a limit did not allow: node, namespace or total; or the ledger.",
            ["limit"],
            registry=registry,
        )
        self.rounds = Counter(
            "descheduler_plugin_rounds_total",
            "Rounds of plugins by profile and outcome: ok, failed, late or blocked.",
            ["profile", "plugin", "extension_point", "outcome"],
            registry=registry,
        )
        self.cpu_seconds = Counter(
            "descheduler_plugin_cpu_seconds_total",
            "CPU time that a plugin's own code took on the event loop.",
            ["profile", "plugin"],
            registry=registry,
        )


class Limit(StrEnum):
    """The limit that denied an eviction."""

    NODE = "node"
    NAMESPACE = "namespace"
    TOTAL = "total"


@dataclass(frozen=True, slots=True)
class Ticket:
    """An eviction that was admitted and counted."""

    node: str
    namespace: str
    cycle: int


class EvictionLimiter:
    """Counts evictions per node, per namespace and in total. Belongs to the event loop.

    Check and count are one step: of many evictions under way no more than the limit are admitted.
    """

    def __init__(
        self,
        *,
        per_node: int | None = None,
        per_namespace: int | None = None,
        total: int | None = None,
    ) -> None:
        """The limits are in pods a cycle. None: no limit."""
        self.limit(per_node=per_node, per_namespace=per_namespace, total=total)
        self._nodes: CollectionsCounter[str] = CollectionsCounter()
        self._namespaces: CollectionsCounter[str] = CollectionsCounter()
        self._total = 0
        self._cycle = 0

    def limit(
        self,
        *,
        per_node: int | None = None,
        per_namespace: int | None = None,
        total: int | None = None,
    ) -> None:
        """Replace the limits."""
        self._per_node, self._per_namespace, self._most = per_node, per_namespace, total

    def reset(self) -> None:
        """Begin a cycle: nothing is evicted yet."""
        self._cycle += 1
        self._nodes.clear()
        self._namespaces.clear()
        self._total = 0

    def take(self, pod: ClusterPod) -> Ticket | Limit:
        """Admit and count an eviction, or return the limit that does not allow it."""
        if pod.node and _reached(self._nodes[pod.node], self._per_node):
            return Limit.NODE
        if _reached(self._namespaces[pod.namespace], self._per_namespace):
            return Limit.NAMESPACE
        if _reached(self._total, self._most):
            return Limit.TOTAL
        self._count(pod.node, pod.namespace, 1)
        return Ticket(pod.node, pod.namespace, self._cycle)

    def give_back(self, ticket: Ticket) -> None:
        """Uncount an eviction that did not happen; one of an earlier cycle is forgotten already."""
        if ticket.cycle == self._cycle:
            self._count(ticket.node, ticket.namespace, -1)

    def node_limit_exceeded(self, node: str) -> bool:
        """Whether no further pod of the node may be evicted in this cycle by the node's limit."""
        return _reached(self._nodes[node], self._per_node)

    @property
    def total_limit_exceeded(self) -> bool:
        """Whether no further pod may be evicted in this cycle at all."""
        return _reached(self._total, self._most)

    @property
    def total_evicted(self) -> int:
        """Evictions of this cycle so far, those under way included."""
        return self._total

    def _count(self, node: str, namespace: str, by: int) -> None:
        if node:
            self._nodes[node] += by
        self._namespaces[namespace] += by
        self._total += by


def _reached(count: int, limit: int | None) -> bool:
    return limit is not None and count + 1 > limit


T = TypeVar("T")


@dataclass(slots=True)
class PluginRun:
    """One round of one plugin. Once over, what is left of it may not evict any more."""

    plugin: str
    over: bool = False

    def end(self) -> None:
        """Mark the run as over."""
        self.over = True

    async def within(self, make: Callable[[], Awaitable[T]]) -> T:
        """Call and await as part of this turn; in a task of its own."""
        CURRENT_RUN.set(self)
        return await make()


CURRENT_RUN: ContextVar[PluginRun | None] = ContextVar("plugin_turn", default=None)
REASON: ContextVar[str] = ContextVar("eviction_reason", default="")


@contextmanager
def eviction_reason(reason: str) -> Iterator[None]:
    """Give the evictions inside this reason, unless their options have one."""
    token = REASON.set(reason)
    try:
        yield
    finally:
        REASON.reset(token)


log = get_logger("koord_descheduler.framework")


@dataclass(slots=True)
class ProfileEvictions:
    """The filter and evict plugins of one profile, and its evictions of this cycle."""

    profile: str
    dry_run: bool
    filters: Sequence[FilterPlugin] = ()
    evictor: EvictPlugin | None = None  # None: the profile is not whole yet
    counts: CollectionsCounter[str] = field(
        default_factory=CollectionsCounter
    )  # of this cycle, by plugin


class EvictorProxy:
    """Evicts in the name of the plugin that runs. Stateless: its state is the profile's."""

    def __init__(
        self,
        path: ProfileEvictions,
        limiter: EvictionLimiter,
        metrics: FrameworkMetrics,
        decisions: Decisions,
        failures: FailureLog,
        *,
        gate: AdmissionGate,
        clock: Clock,
    ) -> None:
        self._path = path
        self._limiter = limiter
        self._metrics = metrics
        self._decisions = decisions
        self._failures = failures
        self._gate = gate
        self._clock = clock

    def filter(self, pod: ClusterPod) -> bool:
        """Whether all filter plugins let the pod be evicted; one that fails does not."""
        return self._passes(pod, "filter")

    def pre_eviction_filter(self, pod: ClusterPod) -> bool:
        """Whether all filter plugins let the pod be evicted now; one that fails does not."""
        return self._passes(pod, "pre_eviction_filter")

    def reject_reason(self, pod: ClusterPod) -> str:
        """Why filter does not let the pod be evicted, a sentence for people; "": it does."""
        for plugin in self._path.filters:
            try:
                if not plugin.filter(pod):
                    return plugin.reject_reason(pod) or f"{plugin.name} does not let it be evicted"
            except Exception as err:
                self._filter_failed(plugin, pod, err)
                return f"{plugin.name} failed: {error_text(err)}"
        return ""

    def pre_eviction_reject_reason(self, pod: ClusterPod) -> str:
        """Why pre_eviction_filter did not let the pod go, as a plugin says; "": none says it."""
        for plugin in self._path.filters:
            try:
                if text := plugin.pre_eviction_reject_reason(pod):
                    return text
            except Exception as err:
                self._filter_failed(plugin, pod, err)
        return ""

    async def evict(self, pod: ClusterPod, options: EvictOptions = EvictOptions()) -> bool:  # noqa: B008
        """Evict a pod; return whether that worked. In dry-run it is only rehearsed and counted.

        False: the gate or a limit does not allow it, the evict plugin failed, or the round that
        asks is over.
        """
        turn = CURRENT_RUN.get()
        name = options.plugin_name or (turn.plugin if turn is not None else "")
        if turn is not None and turn.over:
            self._failures.limited.warning("eviction.too_late", plugin=name, pod=pod.key)
            return False
        options = replace(options, plugin_name=name, reason=options.reason or REASON.get())
        if reject_reason := self.gate_reject_reason(pod, options):
            self._metrics.denied.labels("ledger").inc()
            log.info("eviction.refused", pod=pod.key, plugin=name, reject_reason=reject_reason)
            self._settle(pod, name, Action.REFUSED, reject_reason)
            return False
        ticket = self._limiter.take(pod)
        if isinstance(ticket, Limit):
            self._metrics.denied.labels(ticket.value).inc()
            log.debug("eviction.denied", limit=ticket.value, pod=pod.key, plugin=name)
            self._settle(pod, name, Action.REFUSED, f"the limit of evictions, {ticket}, is reached")
            return False
        self._gate.noted(pod, options, self._clock.wall(), dry_run=self._path.dry_run)
        if failure := await self._carry_out(pod, options):
            self._gate.undone(pod)
            self._limiter.give_back(ticket)
            self._settle(pod, name, Action.REFUSED, failure)
            return False
        self._path.counts[name] += 1
        self._settle(pod, name, Action.EVICT, options.reason)
        return True

    def gate_reject_reason(self, pod: ClusterPod, options: EvictOptions) -> str:
        """Return why the gate would reject this eviction now; "": it would not.

        For planners, so that they choose another pod instead.
        """
        return self._gate.reject_reason(
            pod, options, self._clock.wall(), dry_run=self._path.dry_run
        )

    def node_limit_exceeded(self, node: str) -> bool:
        """Whether no further pod of the node may be evicted in this cycle by the node's limit."""
        return self._limiter.node_limit_exceeded(node)

    @property
    def total_limit_exceeded(self) -> bool:
        """Whether no further pod may be evicted in this cycle at all."""
        return self._limiter.total_limit_exceeded

    @property
    def total_evicted(self) -> int:
        """Evictions of this cycle so far, those under way included."""
        return self._limiter.total_evicted

    def reset(self) -> None:
        """Begin a cycle: no eviction is counted yet."""
        self._limiter.reset()

    async def _carry_out(self, pod: ClusterPod, options: EvictOptions) -> str:
        """Evict a pod; return why that did not work, "": it did."""
        path = self._path
        facts = {"pod": pod.key, "asked_by": options.plugin_name, "reason": options.reason}
        assert path.evictor is not None  # noqa: S101 - no round runs before the profile is whole
        try:
            if path.dry_run:
                return self._rehearse(path.evictor, pod, options)
            evicted = await path.evictor.evict(pod, options)
        except Exception as err:
            text = self._failures.failed("eviction.failed", path.evictor.name, err, **facts)
            return f"{path.evictor.name} failed: {text}"
        return "" if evicted else f"{path.evictor.name} did not evict it"

    def _rehearse(self, evictor: EvictPlugin, pod: ClusterPod, options: EvictOptions) -> str:
        reject_reason = evictor.rehearse(pod, options)
        facts = {"plugin": options.plugin_name, "reason": options.reason}
        event = "eviction.refused" if reject_reason else "eviction.planned"
        profile = self._path.profile
        log.info(event, profile=profile, pod=pod.key, node=pod.node, dry_run=True,
                 reject_reason=reject_reason, **facts)  # fmt: skip
        return reject_reason

    def _settle(self, pod: ClusterPod, plugin: str, action: Action, reason: str) -> None:
        self._decisions.settle(
            PodDecision(
                profile=self._path.profile,
                plugin=plugin,
                pod=pod.key,
                node=pod.node,
                action=action,
                reason=reason,
            )
        )

    def _passes(self, pod: ClusterPod, method: str) -> bool:
        for plugin in self._path.filters:
            try:
                if not getattr(plugin, method)(pod):
                    return False
            except Exception as err:
                self._filter_failed(plugin, pod, err)
                return False
        return True

    def _filter_failed(self, plugin: FilterPlugin, pod: ClusterPod, err: Exception) -> None:
        self._failures.failed("filter.failed", plugin.name, err, pod=pod.key)
