"""The kit for testing plugins; needs no daemon and no Kubernetes."""

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from prometheus_client import CollectorRegistry

from koord.cluster.facts import ClusterPod
from koord.component.plugins.args import takes_args
from koord.component.plugins.discovery import discover
from koord.controlplane.testing import (
    CapturedEvents,
    FakeCluster,
    FakeInformers,
    ScriptedServer,
    make_budget,
    make_node,
    make_pod,
    make_report,
    make_workload,
)
from koord.kube.client import ApiClient
from koord.util.simulatedclock import SimulatedClock
from koord_descheduler.config import GROUP_VERSION, KIND, Point, parse_configuration
from koord_descheduler.framework.evictor import (
    CycleDecisions,
    Decisions,
    EvictionLimiter,
    FrameworkMetrics,
)
from koord_descheduler.framework.handle import Handle, Migrations, Services
from koord_descheduler.framework.interfaces import EvictOptions, Evictor, Plugin
from koord_descheduler.framework.profile import (
    CycleResult,
    Descheduler,
    PluginFactory,
    PluginRegistry,
    ProfilePlugins,
    build_profile,
    fields_read,
    known_plugins,
    profile_settings,
)

__all__ = [
    "Evicted",
    "FakeCluster",
    "PluginHarness",
    "ProfileHarness",
    "RecordingEvictor",
    "ScriptedServer",
    "SimulatedClock",
    "fake_services",
    "make_budget",
    "make_node",
    "make_pod",
    "make_report",
    "make_workload",
]


def fake_services(
    cluster: FakeCluster,
    *,
    server: ScriptedServer | None = None,
    exposition: CollectorRegistry | None = None,
) -> Services:
    """Return services on simulated time. server answers the client; None: one of its own."""
    transport = server or ScriptedServer(cluster)
    return Services(
        client=ApiClient(transport, cluster.clock, draw=lambda: 0.0),
        events=CapturedEvents(),
        informers=FakeInformers(),
        cluster=cluster.state,
        decisions=Decisions(),
        migrations=Migrations(),
        clock=cluster.clock,
        metrics=FrameworkMetrics(exposition or CollectorRegistry()),
    )


@dataclass(frozen=True, slots=True)
class Evicted:
    """One eviction, and its circumstances."""

    pod: ClusterPod
    options: EvictOptions

    @property
    def key(self) -> str:
        """namespace/name of the pod."""
        return self.pod.key


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordingEvictorArgs:
    """Pods that stay, by namespace/name."""

    protected: tuple[str, ...] = ()  # the filter does not let them go
    refused: tuple[str, ...] = ()  # their eviction fails


class RecordingEvictor(Evictor):
    """Evicts by recording it, unless its args say otherwise."""

    def __init__(
        self,
        args: RecordingEvictorArgs | None,
        handle: Handle,
        leave: Callable[[ClusterPod], None] = lambda pod: None,
    ) -> None:
        """leave is called with each pod that was evicted."""
        self._args = args or RecordingEvictorArgs()
        self._handle = handle
        self._leave = leave
        self.evicted: list[Evicted] = []

    def filter(self, pod: ClusterPod) -> bool:
        return pod.key not in self._args.protected

    async def evict(self, pod: ClusterPod, options: EvictOptions) -> bool:
        done = pod.key not in self._args.refused
        self._handle.services.metrics.evicted.count(
            result="success" if done else "error",
            strategy=options.plugin_name,
            namespace=pod.namespace,
            node=pod.node,
        )
        if done:
            self.evicted.append(Evicted(pod, options))
            self._leave(pod)
        return done


EVICTOR = "RecordingEvictor"
CYCLE_TIMEOUT = 60.0  # real seconds for one cycle
_EVICTION = (Point.EVICT, Point.FILTER)

Json = dict[str, Any]


class ProfileHarness:
    """The profiles of a configuration on a fake cluster; `async with` it.

    RecordingEvictor can be enabled in it, at evict and filter; it records evictions, and the pods
    leave the cluster when the cycle is over.
    """

    def __init__(
        self,
        config: str | Json,
        cluster: FakeCluster,
        plugins: Mapping[str, PluginFactory] | None = None,
        *,
        installed: bool = False,
    ) -> None:
        """config is a DeschedulerConfiguration, as text or as JSON.

        plugins are those that it may name besides RecordingEvictor; with installed also those that
        entry points name.

        Raises:
            InvalidConfig, InvalidObject: the configuration has faults.
            PluginError: a plugin cannot be registered.
        """
        self.cluster = cluster
        self.clock = cluster.clock
        self.registry = PluginRegistry()
        self.exposition = CollectorRegistry()
        self.server = ScriptedServer(cluster)
        self.services = fake_services(cluster, server=self.server, exposition=self.exposition)
        self._profiles: list[ProfilePlugins] = []
        if installed:
            discover(self.registry)
        self.registry.register(EVICTOR, self._recording_evictor())
        for name, factory in (plugins or {}).items():
            self.registry.register(name, factory)
        text = config if isinstance(config, str) else json.dumps(config)
        known = known_plugins(self.registry)
        read = parse_configuration(text.encode(), Path("config"), known)
        self.configuration = read.configuration
        self.cluster.keep(fields_read(self.configuration, self.registry))
        self.warnings = [str(fault) for fault in read.warnings]

    async def __aenter__(self) -> Self:
        limits = self.configuration.limits
        limiter = EvictionLimiter(
            per_node=limits.per_node, per_namespace=limits.per_namespace, total=limits.total
        )
        try:
            for settings in profile_settings(self.configuration):
                self._profiles.append(
                    await build_profile(settings, self.registry, self.services, limiter)
                )
        except BaseException:
            await self._close()
            raise
        self._descheduler = Descheduler(
            self._profiles,
            self.cluster.state.nodes,
            limiter,
            self.services.metrics,
            self.clock,
            decisions=self.services.decisions,
            interval=self.configuration.descheduling_interval,
            node_selector=self.configuration.node_selector,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._close()

    async def cycle(self) -> CycleResult:
        """Run one cycle now; then pods that were evicted are gone.

        A plugin that waits for simulated time needs the cycle in a task, and the clock advanced.

        Raises:
            AssertionError: it does not end.
        """
        try:
            async with asyncio.timeout(CYCLE_TIMEOUT):
                result = await self._descheduler.run_once()
        except TimeoutError:
            raise AssertionError(
                f"the cycle still runs after {CYCLE_TIMEOUT:g} real seconds"
            ) from None
        self.cluster.settle()
        return result

    async def evict(
        self,
        pod: ClusterPod,
        options: EvictOptions = EvictOptions(),  # noqa: B008 - immutable
        *,
        profile: str = "",
    ) -> bool:
        """Evict a pod as a plugin does: filters, limits, dry-run and the evict plugin.

        profile "": the first one. The pod stays in the cluster until the next cycle is over.
        """
        [found, *_] = [each for each in self._profiles if profile in ("", each.name)]
        evictor = found.handle.evictor()
        if not (evictor.filter(pod) and evictor.pre_eviction_filter(pod)):
            return False
        return await evictor.evict(pod, options)

    def plugin(self, name: str, profile: str = "") -> Plugin:
        """The instance of a plugin; profile "": of the first one that has it."""
        return next(
            each.plugins[name]
            for each in self._profiles
            if name in each.plugins and profile in ("", each.name)
        )

    @property
    def informers(self) -> FakeInformers:
        """The kinds outside of the cluster's state that plugins follow; apply adds an object."""
        assert isinstance(self.services.informers, FakeInformers)  # noqa: S101 - the kit's
        return self.services.informers

    @property
    def evicted(self) -> list[Evicted]:
        """The evictions that RecordingEvictor has recorded in all cycles, profile by profile."""
        made = [each.plugins.get(EVICTOR) for each in self._profiles]
        return [one for each in made if isinstance(each, RecordingEvictor) for one in each.evicted]

    @property
    def decisions(self) -> CycleDecisions:
        """The decisions that plugins published in the last cycle."""
        return self.services.decisions.cycles[-1]

    def metric(self, name: str, **labels: str) -> float | None:
        """Value of a metric of the framework; None: no such series."""
        return self.exposition.get_sample_value(name, labels)

    async def _close(self) -> None:
        while self._profiles:
            await self._profiles.pop().close()

    def _recording_evictor(self) -> PluginFactory:
        @takes_args(RecordingEvictorArgs)
        def make(args: RecordingEvictorArgs, handle: Handle) -> Plugin:
            return RecordingEvictor(args, handle, self.cluster.evict)

        return make


class PluginHarness(ProfileHarness):
    """One plugin, in a profile with a RecordingEvictor where it does not evict itself."""

    def __init__(
        self,
        plugin: PluginFactory,
        cluster: FakeCluster,
        *,
        name: str = "",
        args: object = None,
        points: Collection[str] = (),
        protected: Collection[str] = (),
        refused: Collection[str] = (),
        **settings: Any,
    ) -> None:
        """args as in a file; they are read, completed and checked. name: by default the class's.

        points: where it runs; by default wherever its class can. protected and refused: pods, by
        namespace/name, that the filter keeps or whose eviction fails. settings: further fields of
        the DeschedulerConfiguration, such as dryRun or maxNoOfPodsToEvictTotal.

        Raises:
            InvalidConfig: args or settings have faults.
            PluginError: it cannot be registered.
        """
        self.name = name or getattr(plugin, "__name__", type(plugin).__name__)
        registry = PluginRegistry()
        registry.register(self.name, plugin)
        here = points or known_plugins(registry)[self.name].points
        enabled: dict[str, str] = {
            point: self.name if point in here else EVICTOR for point in _EVICTION
        }
        enabled |= dict.fromkeys(here, self.name)
        recorder = {"protected": list(protected), "refused": list(refused)}
        used = {self.name: args, EVICTOR: recorder}
        profile = {
            "name": "test",
            "plugins": {
                point: {"disabled": [{"name": "*"}], "enabled": [{"name": one}]}
                for point, one in enabled.items()
            },
            "pluginConfig": [
                {"name": one, "args": used[one]}
                for one in dict.fromkeys(enabled.values())
                if used[one] is not None
            ],
        }
        config = {"apiVersion": GROUP_VERSION, "kind": KIND, "profiles": [profile], **settings}
        super().__init__(config, cluster, {self.name: plugin})

    @property
    def subject(self) -> Plugin:
        """The plugin under test."""
        return self.plugin(self.name)
