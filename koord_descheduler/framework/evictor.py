"""Evictor proxy: what plugins evict through.

Filters, the gate, limits, dry-run, then the evict plugin.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from koord.cluster.facts import ClusterPod
from koord.component.plugins.failures import FailureLog
from koord.util.clock import Clock
from koord.util.errors import error_text
from koord.util.logs import get_logger
from koord_descheduler.framework.decisions import Action, Decisions, PodDecision
from koord_descheduler.framework.gate import AdmissionGate
from koord_descheduler.framework.interfaces import EvictOptions, EvictPlugin, FilterPlugin
from koord_descheduler.framework.limiter import EvictionLimiter, Limit
from koord_descheduler.framework.metrics import FrameworkMetrics
from koord_descheduler.framework.turn import REASON, TURN

log = get_logger("koord_descheduler.framework")


@dataclass(slots=True)
class EvictionPath:
    """The filter and evict plugins of one profile, and its evictions of this cycle."""

    profile: str
    dry_run: bool
    filters: Sequence[FilterPlugin] = ()
    evictor: EvictPlugin | None = None  # None: the profile is not whole yet
    counts: Counter[str] = field(default_factory=Counter)  # of this cycle, by plugin


class EvictorProxy:
    """Evicts in the name of the plugin that runs. Stateless: its state is the profile's."""

    def __init__(
        self,
        path: EvictionPath,
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

    def refusal(self, pod: ClusterPod) -> str:
        """Why filter does not let the pod be evicted, a sentence for people; "": it does."""
        for plugin in self._path.filters:
            try:
                if not plugin.filter(pod):
                    return plugin.refusal(pod) or f"{plugin.name} does not let it be evicted"
            except Exception as err:
                self._filter_failed(plugin, pod, err)
                return f"{plugin.name} failed: {error_text(err)}"
        return ""

    def pre_eviction_refusal(self, pod: ClusterPod) -> str:
        """Why pre_eviction_filter did not let the pod go, as a plugin says; "": none says it."""
        for plugin in self._path.filters:
            try:
                if text := plugin.pre_eviction_refusal(pod):
                    return text
            except Exception as err:
                self._filter_failed(plugin, pod, err)
        return ""

    async def evict(self, pod: ClusterPod, options: EvictOptions = EvictOptions()) -> bool:  # noqa: B008
        """Evict a pod; return whether that worked. In dry-run it is only rehearsed and counted.

        False: the gate or a limit does not allow it, the evict plugin failed, or the round that
        asks is over.
        """
        turn = TURN.get()
        name = options.plugin_name or (turn.plugin if turn is not None else "")
        if turn is not None and turn.over:
            self._failures.limited.warning("eviction.too_late", plugin=name, pod=pod.key)
            return False
        options = replace(options, plugin_name=name, reason=options.reason or REASON.get())
        if refusal := self.gate_refusal(pod, options):
            self._metrics.denied.labels("ledger").inc()
            log.info("eviction.refused", pod=pod.key, plugin=name, refusal=refusal)
            self._settle(pod, name, Action.REFUSED, refusal)
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

    def gate_refusal(self, pod: ClusterPod, options: EvictOptions) -> str:
        """Why the gate would refuse this eviction now; "": it would not.

        For planners, so that they choose another pod instead.
        """
        return self._gate.refusal(pod, options, self._clock.wall(), dry_run=self._path.dry_run)

    def node_limit_exceeded(self, node: str) -> bool:
        """As EvictionLimiter.node_limit_exceeded."""
        return self._limiter.node_limit_exceeded(node)

    @property
    def total_limit_exceeded(self) -> bool:
        """As EvictionLimiter.total_limit_exceeded."""
        return self._limiter.total_limit_exceeded

    @property
    def total_evicted(self) -> int:
        """As EvictionLimiter.total_evicted."""
        return self._limiter.total_evicted

    def reset(self) -> None:
        """As EvictionLimiter.reset."""
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
        refusal = evictor.rehearse(pod, options)
        facts = {"plugin": options.plugin_name, "reason": options.reason, "refusal": refusal}
        event = "eviction.refused" if refusal else "eviction.planned"
        profile = self._path.profile
        log.info(event, profile=profile, pod=pod.key, node=pod.node, dry_run=True, **facts)
        return refusal

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
