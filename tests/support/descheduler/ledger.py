"""A ledger over three nodes of 10 cores, on which workloads have pods that use what a test says."""

from prometheus_client import CollectorRegistry

from koord.cluster.facts import ClusterPod
from koord.controlplane.testing import FakeCluster
from koord.kube.events import Event
from koord.util.simulatedclock import SimulatedClock
from koord_descheduler.config import EvictionLedger
from koord_descheduler.framework.interfaces import EvictOptions, Relief
from koord_descheduler.ledger.entries import Entry
from koord_descheduler.ledger.ledger import Ledger, LedgerMetrics

GI = 1 << 30
FOR_LOAD = EvictOptions(plugin_name="A", relief=Relief(cpu=2.0, memory=1.0 * GI))


class LedgerKit:
    """Time passes with `after`, which lets all nodes report and the ledger observe."""

    def __init__(self, clock: SimulatedClock, settings: EvictionLedger | None = None) -> None:
        self.clock = clock
        self.cluster = FakeCluster(clock)
        self.exposition = CollectorRegistry()
        self.metrics = LedgerMetrics(self.exposition)
        self.events: list[Event] = []
        self.ledger = Ledger(
            self.cluster.state, settings or EvictionLedger(), self.metrics, self.events.append
        )
        for name in ("n1", "n2", "n3"):
            self.cluster.node(name, cpu=10, memory="64Gi", system={"cpu": 1, "memory": "1Gi"})
        for name in ("web", "db"):
            self.cluster.workload("StatefulSet", name)

    def pod(self, name: str, node: str = "n1", workload: str = "", cpu: float = 2.0) -> ClusterPod:
        """A pod that uses so many cores and half as many GiB; of web, db or no workload."""
        kind = self.cluster.state.workloads
        owner = None
        if workload:
            uid = f"uid-StatefulSet-default-{workload}"
            owner = next(one for one in kind.all() if one.uid == uid)
        return self.cluster.pod(
            name,
            node,
            uses={"cpu": cpu, "memory": int(cpu * GI / 2)},
            owner=owner,
            created=int(self.clock.wall()),
        )

    def evict(self, pod: ClusterPod, options: EvictOptions = FOR_LOAD) -> None:
        self.ledger.noted(pod, options, self.clock.wall(), dry_run=False)

    def gone(self, pod: ClusterPod) -> None:
        self.cluster.delete("pod", pod.key)

    def after(self, seconds: float) -> None:
        """Let time pass with a report a minute; the ledger observes every ten seconds."""
        for second in range(10, int(seconds) + 1, 10):
            self.clock.tick(10.0)
            if second % 60 == 0:
                self.cluster.report()
            self.ledger.observe(self.clock.wall())

    def reject_reason(
        self, pod: ClusterPod, options: EvictOptions = FOR_LOAD, *, dry_run: bool = False
    ) -> str:
        return self.ledger.reject_reason(pod, options, self.clock.wall(), dry_run=dry_run)

    def entry(self) -> Entry:
        """The newest one."""
        return self.ledger.entries[-1]

    def outcomes(self) -> list[str]:
        return [entry.outcome.value for entry in self.ledger.entries]
