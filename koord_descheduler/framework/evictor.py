"""Evictor proxy: what plugins evict through. Filters, limits, dry-run, then the evict plugin."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from koord.cluster.facts import ClusterPod
from koord.util.logs import LimitedLog, get_logger
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
        failures: LimitedLog,
    ) -> None:
        self._path = path
        self._limiter = limiter
        self._metrics = metrics
        self._failures = failures

    def filter(self, pod: ClusterPod) -> bool:
        """Whether all filter plugins let the pod be evicted; one that fails does not."""
        return self._passes(pod, "filter")

    def pre_eviction_filter(self, pod: ClusterPod) -> bool:
        """Whether all filter plugins let the pod be evicted now; one that fails does not."""
        return self._passes(pod, "pre_eviction_filter")

    async def evict(self, pod: ClusterPod, options: EvictOptions = EvictOptions()) -> bool:  # noqa: B008
        """Evict a pod; return whether that worked. In dry-run it is only logged, and counted.

        False: a limit does not allow it, the evict plugin failed, or the round that asks is over.
        """
        turn = TURN.get()
        name = options.plugin_name or (turn.plugin if turn is not None else "")
        if turn is not None and turn.over:
            self._failures.warning("eviction.too_late", plugin=name, pod=_key(pod))
            return False
        options = replace(options, plugin_name=name, reason=options.reason or REASON.get())
        ticket = self._limiter.take(pod)
        if isinstance(ticket, Limit):
            self._metrics.denied.labels(ticket.value).inc()
            log.debug("eviction.denied", limit=ticket.value, pod=_key(pod), plugin=name)
            return False
        if not await self._carried_out(pod, options):
            self._limiter.give_back(ticket)
            return False
        self._path.counts[name] += 1
        return True

    def node_limit_exceeded(self, node: str) -> bool:
        """As EvictionLimiter.node_limit_exceeded."""
        return self._limiter.node_limit_exceeded(node)

    @property
    def total_evicted(self) -> int:
        """As EvictionLimiter.total_evicted."""
        return self._limiter.total_evicted

    def reset(self) -> None:
        """As EvictionLimiter.reset."""
        self._limiter.reset()

    async def _carried_out(self, pod: ClusterPod, options: EvictOptions) -> bool:
        path = self._path
        facts = {"pod": _key(pod), "plugin": options.plugin_name, "reason": options.reason}
        if path.dry_run:
            log.info("eviction.planned", profile=path.profile, node=pod.node, dry_run=True, **facts)
            return True
        assert path.evictor is not None  # noqa: S101 - no round runs before the profile is whole
        try:
            return bool(await path.evictor.evict(pod, options))
        except Exception as err:
            self._failures.error("eviction.failed", error=repr(err), **facts)
            return False

    def _passes(self, pod: ClusterPod, method: str) -> bool:
        for plugin in self._path.filters:
            try:
                if not getattr(plugin, method)(pod):
                    return False
            except Exception as err:
                facts = {"pod": _key(pod), "plugin": plugin.name, "error": repr(err)}
                self._failures.error("filter.failed", **facts)
                return False
        return True


def _key(pod: ClusterPod) -> str:
    return f"{pod.namespace}/{pod.name}"
