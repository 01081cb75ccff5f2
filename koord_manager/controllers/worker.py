"""The worker of a queue of nodes."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric, UnknownMetricFamily
from prometheus_client.registry import Collector

from koord.kube.errors import (
    Conflict,
    Forbidden,
    KubeError,
    NotFound,
    PatchRejected,
    Unauthorized,
)
from koord.util.clock import Clock
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop
from koord.util.timebudget import WorkQueue
from koord_manager import PREFIX
from koord_manager.cluster import NodeChange

AT_ONCE = 64  # requests
FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0  # seconds after an error of one node, doubled each time
# seconds; at 84 reports a second, to wake for each of them is a twentieth of the work
GATHER = 0.1
REST = 60.0  # seconds after what only an administrator can mend

ENABLED, STALE, DOUBTFUL, SHORT = "enabled", "stale", "doubtful", "short"

log = get_logger("koord_manager.controllers")


class NodeWorker(ABC):
    """Works through nodes while it runs; a node that fails is tried again, ever later."""

    name: str
    follows: frozenset[NodeChange]
    """Changes after which a node is looked at."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.queue = WorkQueue(
            clock,
            first_pause=FIRST_PAUSE,
            max_pause=MAX_PAUSE,
            jitter=0.5,
            holds_failed=True,
            gather=GATHER,
        )
        self._errors: dict[str, str] = {}  # by node
        self._trouble = LogState(log)

    def changed(self, name: str, change: NodeChange, delay: float) -> None:
        """Look at a node after so many seconds, if the change is one that is followed."""
        if change in self.follows:
            self.queue.add_after(name, delay)

    @abstractmethod
    async def reconcile(self, name: str) -> None:
        """Bring one node in line. Raises KubeError."""

    def ready(self) -> bool:
        """Whether all is known that decisions need."""
        return True

    def everything(self) -> Iterable[str]:
        """Names of all nodes that there may be something to do for."""
        return ()

    def health(self) -> PartHealth:
        """Degraded while a node cannot be kept in line."""
        if not self._errors:
            return OK
        node, error = next(iter(self._errors.items()))
        reason = f"{len(self._errors)} nodes, such as {node}: {error}"
        return PartHealth(HealthStatus.DEGRADED, reason, {"waiting": len(self.queue)})

    async def run(self, stop: Stop) -> None:
        """Work until stop."""
        for name in self.everything():
            self.queue.add(name)
        await self.queue.run(stop, self._attempt, self._at_once, self._failed)

    def _at_once(self) -> int:
        return AT_ONCE if self.ready() else 0

    async def _attempt(self, name: str) -> float | None:
        try:
            await self.reconcile(name)
        except NotFound:  # the node is gone: the watch will say so
            pass
        except (Conflict, PatchRejected):  # another version, which the watch will bring
            return FIRST_PAUSE
        self._works(name)
        return None

    def _failed(self, name: str, err: Exception, pause: float) -> float:
        """Record it, while it is handled; return the pause in seconds."""
        if not isinstance(err, KubeError):
            log.exception("node.failed", controller=self.name, node=name)
            return REST
        self._errors[name] = str(err)
        self._trouble.failed(f"{self.name}.failed", node=name, error=str(err))
        is_lasting = isinstance(err, Forbidden | Unauthorized)
        return REST if is_lasting else pause

    def _works(self, name: str) -> None:
        if self._errors.pop(name, None) is not None and not self._errors:
            self._trouble.ended(f"{self.name}.recovered")


class UnsuffixedCounter:
    """A counter that Koordinator named without `_total`, exported under exactly its name.

    See koord.component.metrics.
    """

    def __init__(
        self, name: str, help_: str, labels: Sequence[str], registry: CollectorRegistry
    ) -> None:
        self._name, self._help, self._labels = name, help_, tuple(labels)
        self._counts: dict[tuple[str, ...], int] = {}
        registry.register(self)

    def inc(self, *labels: str) -> None:
        """Count one."""
        self._counts[labels] = self._counts.get(labels, 0) + 1

    def collect(self) -> Iterator[UnknownMetricFamily]:
        """Yield the family with all counts, for prometheus_client."""
        family = self._family()
        for labels, count in tuple(self._counts.items()):
            family.add_metric(labels, count)
        yield family

    def describe(self) -> Iterator[UnknownMetricFamily]:
        """Yield the family without counts, so that the registry rejects a duplicate name."""
        yield self._family()

    def _family(self) -> UnknownMetricFamily:
        return UnknownMetricFamily(self._name, self._help, labels=self._labels)


class NodeResourceMetrics(Collector):
    """Counters by outcome, and what each node offers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reconciles = UnsuffixedCounter(
            f"{PREFIX}_node_resource_reconcile_count",
            "Looks at nodes by status (succeeded or failed) and reason.",
            ["status", "reason"],
            registry,
        )
        self.plugin_runs = UnsuffixedCounter(
            f"{PREFIX}_node_resource_run_plugin_status",
            "Failures of plugins by status and stage.",
            ["plugin", "status", "reason"],
            registry,
        )
        self.latency = Histogram(
            f"{PREFIX}_node_resource_patch_latency_seconds",
            "Time from a report's arrival to the patch of its node.",
            buckets=(0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60),
            registry=registry,
        )
        self.rejections = Counter(
            f"{PREFIX}_config_map_rejections_total",
            "Versions of slo-controller-config of which a key keeps its last good value.",
            registry=registry,
        )
        self.offered: dict[str, Mapping[str, int | None]] = {}
        self.states: dict[str, frozenset[str]] = {}  # of nodes that are to offer something
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        """Yield the gauge without values."""
        yield self._family()
        yield self._nodes()

    def _nodes(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(
            f"{PREFIX}_nodes",
            "Nodes with colocation: all (enabled), those whose report is missing or old (stale) or "
            "cannot be right (doubtful), those whose pods hold more than is offered (short).",
            labels=["state"],
        )

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(
            f"{PREFIX}_node_extended_resource_allocatable_internal",
            "What a node offers, before any factor: cores for CPU, bytes for memory.",
            labels=["node", "resource", "unit"],
        )

    def collect(self) -> Iterator[Metric]:
        """Yield the gauge of all nodes."""
        family = self._family()
        for node, amounts in tuple(self.offered.items()):
            for name, amount in amounts.items():
                if amount is not None:
                    unit = "byte" if name.endswith("memory") else "core"
                    value = amount / 1000 if name.endswith("cpu") else float(amount)
                    family.add_metric([node, name, unit], value)
        yield family
        states, nodes = tuple(self.states.values()), self._nodes()
        for state in (ENABLED, STALE, DOUBTFUL, SHORT):
            nodes.add_metric([state], sum(state in one for one in states))
        yield nodes


class SpecMetrics:
    """Counters of both kinds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reconciles = {
            name: UnsuffixedCounter(
                f"{PREFIX}_{name}_reconcile_count",
                f"Writes of {name} objects by status (succeeded or failed).",
                ["status"],
                registry,
            )
            for name in ("nodemetric", "nodeslo")
        }
