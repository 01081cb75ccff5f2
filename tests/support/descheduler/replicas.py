"""Whole daemons in the test's own loop: a scripted API server, simulated time, plugins of tests."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from koord.cluster.facts import ClusterNode, ClusterPod
from koord.component.http.exposition import Exposition
from koord.util.simulatedclock import SimulatedClock
from koord_descheduler.daemon.run import FAMILIES, Settings, load_settings, run_daemon
from koord_descheduler.plugin import (
    BalancePlugin,
    EvictOptions,
    Evictor,
    Handle,
    PluginRegistry,
    Status,
    reads,
)
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.daemon_flags import kubeconfig
from tests.support.kube.replicas import DaemonReplica

LEASE = "koordinator-system/koord-descheduler"

SHIPPED = """\
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
enableContentionProfiling: true
enableProfiling: true
healthzBindAddress: 0.0.0.0:{port}
metricsBindAddress: 0.0.0.0:{port}
leaderElection:
  resourceLock: leases
  resourceName: koord-descheduler
  resourceNamespace: koordinator-system
deschedulingInterval: 10s
dryRun: false
profiles:
- name: koord-descheduler
  plugins:
    deschedule: {{disabled: [{{name: "*"}}]}}
    balance: {{enabled: [{balance}]}}
    evict: {{disabled: [{{name: "*"}}], enabled: [{{name: MigrationController}}]}}
  pluginConfig:
  - name: MigrationController
    args:
      apiVersion: descheduler/v1alpha2
      kind: MigrationControllerArgs
      evictionPolicy: Eviction
      namespaces: {{exclude: [kube-system, koordinator-system]}}
      evictQPS: "10"
      evictBurst: 1
  - name: LowNodeLoad
    args:
      apiVersion: descheduler/v1alpha2
      kind: LowNodeLoadArgs
      evictableNamespaces: {{exclude: [kube-system, koordinator-system]}}
      useDeviationThresholds: false
      lowThresholds: {{cpu: 45, memory: 55}}
      highThresholds: {{cpu: 75, memory: 80}}
"""
"""As Koordinator ships it, but for the port and the Balance plugins."""


class Recorder(Evictor):
    """Evicts by writing it down."""

    def __init__(self, args: Any, handle: Handle) -> None:
        self.evicted: list[str] = []

    def filter(self, pod: ClusterPod) -> bool:
        return True

    async def evict(self, pod: ClusterPod, options: EvictOptions) -> bool:
        self.evicted.append(pod.key)
        return True


class Watcher(BalancePlugin):
    """Counts its rounds, and the nodes that it sees in them."""

    made: "list[Watcher]"

    def __init__(self, args: Any, handle: Handle) -> None:
        if args and args.get("broken"):
            raise ValueError("it is broken")
        self.args, self.handle, self.rounds, self.closed = args, handle, list[int](), False

    async def balance(self, nodes: Sequence[ClusterNode]) -> Status | None:
        self.rounds.append(len(nodes))
        return None

    async def close(self) -> None:
        self.closed = True


@reads(pod_annotations={"example.com/seat": 10})
class Reader(Watcher):
    """Sees in its rounds what pods have in an annotation."""

    def __init__(self, args: Any, handle: Handle) -> None:
        super().__init__(args, handle)
        self.seen: list[tuple[tuple[str, str], ...]] = []

    async def balance(self, nodes: Sequence[ClusterNode]) -> Status | None:
        cluster = self.handle.services.cluster
        for node in nodes:
            self.seen += [pod.annotations for pod in cluster.pods_of_node(node.name)]
        return await super().balance(nodes)


class Replica(DaemonReplica):
    """One descheduler."""

    def __init__(
        self, directory: Path, server: ApiServer, clock: SimulatedClock, config: str, *argv: str
    ) -> None:
        super().__init__(directory, clock, Exposition(FAMILIES, clock=clock))
        self.watchers: list[Watcher] = []
        self.clock = clock
        self.write(config)
        self.access.write_text(kubeconfig(server.url))
        files = [f"--config={self.config}", "--v=4", "--secure-port=0", *argv]
        environ = {"KUBECONFIG": str(self.access)}
        self.settings: Settings = load_settings(files, environ, discover=self._discover)
        self.run(run_daemon(self.settings, self.exposition, clock, stop=self.stop))

    def write(self, config: str) -> None:
        """Give it another file."""
        self.config.write_text(config.format(port=self.port, balance="{name: Watcher}"))

    @property
    def rounds(self) -> int:
        """Balance rounds until now."""
        return sum(len(each.rounds) for each in self.watchers)

    def _discover(self, registry: PluginRegistry) -> list[str]:
        def watcher(args: Any, handle: Handle) -> Watcher:
            self.watchers.append(Watcher(args, handle))
            return self.watchers[-1]

        registry.register("MigrationController", Recorder)

        def reader(args: Any, handle: Handle) -> Reader:
            made = Reader(args, handle)
            self.watchers.append(made)
            return made

        registry.register("Watcher", watcher)
        registry.register("Reader", reader)
        return []


Start = Callable[..., Replica]
