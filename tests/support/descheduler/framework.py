"""A cluster in memory, and plugins that do what a test says."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry

from koord.cluster.facts import ClusterNode, ClusterPod
from koord.cluster.kinds import NODE, POD
from koord.util.simulatedclock import SimulatedClock
from koord_descheduler.config import Point, Profile
from koord_descheduler.framework.evictor import EvictionLimiter
from koord_descheduler.framework.handle import Handle
from koord_descheduler.framework.interfaces import (
    BalancePlugin,
    DeschedulePlugin,
    EvictOptions,
    Evictor,
    Plugin,
    Status,
)
from koord_descheduler.framework.profile import (
    PluginRegistry,
    ProfilePlugins,
    TimeLimits,
    build_profile,
)
from koord_descheduler.plugin import testing
from koord_descheduler.plugin.testing import FakeCluster, fake_services

Act = Callable[["Both", Sequence[ClusterNode]], Awaitable[Status | None]]


def make_pod(
    name: str = "web",
    *,
    namespace: str = "default",
    node: str = "n1",
    labels: Mapping[str, str] | None = None,
    phase: str = "Running",
) -> ClusterPod:
    """A pod of a test, on a node."""
    return testing.make_pod(name, namespace=namespace, node=node, labels=labels, phase=phase)


def make_node(
    name: str, labels: Mapping[str, str] | None = None, *, ready: bool = True
) -> ClusterNode:
    """A node of a test."""
    return testing.make_node(name, labels=labels, ready=ready)


NODES = (make_node("n1", {"pool": "a"}), make_node("n2", {"pool": "b"}))


class Both(DeschedulePlugin, BalancePlugin):
    """Both kinds in one: does what the args say, under the name of the extension point."""

    def __init__(self, args: Any, handle: Handle) -> None:
        self.args, self.handle = args or {}, handle
        self.closed = False

    async def deschedule(self, nodes: Sequence[ClusterNode]) -> Status | None:
        return await self._act("deschedule", nodes)

    async def balance(self, nodes: Sequence[ClusterNode]) -> Status | None:
        return await self._act("balance", nodes)

    async def close(self) -> None:
        self.closed = True

    async def _act(self, point: str, nodes: Sequence[ClusterNode]) -> Status | None:
        self.args.get("calls", []).append((self.handle.profile, self.name, point, names(nodes)))
        act: Act | None = self.args.get(point)
        return await act(self, nodes) if act is not None else None


class Recording(Evictor):
    """Evicts by writing it down; what its args list as refused fails."""

    def __init__(self, args: Any, handle: Handle) -> None:
        self.args, self.handle = args or {}, handle
        self.evicted: list[tuple[str, EvictOptions]] = self.args.get("evicted", [])

    def filter(self, pod: ClusterPod) -> bool:
        return pod.namespace != "kube-system"

    async def evict(self, pod: ClusterPod, options: EvictOptions) -> bool:
        if pod.name == "raises":
            raise ValueError("no")
        if pod.name == "refused":
            return False
        self.evicted.append((pod.name, options))
        self.handle.services.metrics.evicted.count(
            result="success",
            strategy=options.plugin_name,
            namespace=pod.namespace,
            node=pod.node,
        )
        return True


class Kit:
    """Builds profiles in one process on simulated time."""

    def __init__(self, clock: SimulatedClock | None = None, **limits: int | None) -> None:
        fake = FakeCluster(clock)
        self.clock = fake.clock
        self.exposition = CollectorRegistry()
        self.services = fake_services(fake, exposition=self.exposition)
        self.metrics = self.services.metrics
        self.limiter = EvictionLimiter(**limits)
        self.cluster = self.services.cluster
        for node in NODES:
            self.cluster.put(NODE, node)
        self.decisions = self.services.decisions
        self.registry = PluginRegistry()
        self.made: dict[str, list[Plugin]] = {}
        for name in ("A", "B", "C"):
            self.add(name, Both)
        self.add("Evict", Recording)

    def place(self, *pods: ClusterPod) -> None:
        """Let the cluster have these pods."""
        for pod in pods:
            self.cluster.put(POD, pod)

    def add(self, name: str, make: Callable[[Any, Handle], Plugin]) -> None:
        def factory(args: Any, handle: Handle) -> Plugin:
            plugin = make(args, handle)
            self.made.setdefault(name, []).append(plugin)
            return plugin

        self.registry.register(name, factory)

    async def profile(
        self, name: str = "p", *, limits: TimeLimits | None = None, **settings: Any
    ) -> ProfilePlugins:
        settings = {"evict": ("Evict",), "filter": ("Evict",), **settings}
        plugins = {point: settings.pop(point.value, ()) for point in Point}
        wanted = Profile(name=name, plugins=plugins, **settings)
        return await build_profile(
            wanted, self.registry, self.services, self.limiter, limits or TimeLimits()
        )

    def sample(self, name: str, **labels: str) -> float | None:
        return self.exposition.get_sample_value(name, labels)


def names(nodes: Sequence[ClusterNode]) -> list[str]:
    return [node.name for node in nodes]
