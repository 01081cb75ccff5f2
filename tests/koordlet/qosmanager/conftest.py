"""A QoS manager on simulated time, with plugins that a test writes in a few lines."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from prometheus_client import CollectorRegistry

from koord.api.node import Node
from koord.component.flags import FeatureGates, FeatureSpec, Stage
from koord.plugin import Stop
from koord.util.health import Health, PartHealth
from koordlet.features import feature_gates
from koordlet.plugin import ExtensionPlugin, FlagSet, PluginRegistry
from koordlet.plugin.interfaces import UnavailableClient
from koordlet.plugin.testing.scripted import SimulatedClock
from koordlet.qosmanager import QOSExtensionConfig, QOSManager
from koordlet.qosmanager.runner import PluginRunner
from koordlet.statesinformer.informer import StatesInformer

ON = FeatureSpec(default=True, stage=Stage.BETA)


class Recorder(ExtensionPlugin):
    """Notes every call; one round a second."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.turns = 0

    def init_flags(self, flags: FlagSet) -> None:
        self.calls.append("init_flags")

    def setup(self, client: object, metric_cache: object, states_informer: object) -> None:
        self.calls.append("setup")

    async def run(self, stop: Stop) -> None:
        self.calls.append("run")
        async for _ in stop.every(1.0):
            self.turns += 1
            await self.round()
        self.calls.append("returned")

    async def round(self) -> None:
        """One round; for subclasses."""

    async def stop(self) -> None:
        self.calls.append("stop")


@dataclass
class Bench:
    """Everything around a manager; attributes may be changed before start()."""

    clock: SimulatedClock = field(default_factory=SimulatedClock)
    registry: PluginRegistry = field(default_factory=PluginRegistry)
    gates: FeatureGates = field(default_factory=feature_gates)
    metrics: CollectorRegistry = field(default_factory=CollectorRegistry)
    health: Health = field(default_factory=Health)
    run_dir: Any = None
    flags: FlagSet = field(default_factory=FlagSet)
    args: list[str] = field(default_factory=list)
    problems: tuple[str, ...] = ()
    synced: bool = True
    claims: Any = None  # a ClaimManager, and
    kernel: Any = None  # what plugins look at
    feature_gates: dict[str, bool] = field(default_factory=dict)
    manager: QOSManager = field(init=False)
    states: StatesInformer = field(init=False)
    stop: Stop = field(init=False)  # of the manager
    over: Stop = field(init=False)  # of the states informer, which outlives it
    task: asyncio.Task[None] | None = None
    informer: asyncio.Task[None] | None = None
    Recorder: ClassVar[type[Recorder]] = Recorder  # tests cannot import this file

    def add(self, name: str, plugin: ExtensionPlugin, spec: FeatureSpec | None = ON) -> Any:
        self.registry.from_source(f"test of {name}", "1.0").register_qos_ext_plugin(
            name, spec, plugin
        )
        return plugin

    def build(self) -> QOSManager:
        config = QOSExtensionConfig(
            self.registry, self.gates, clock=self.clock, metrics=self.metrics
        )
        config.init_flags(self.flags)
        self.flags.parse(self.args)
        self.gates.set_from_map(config.gate_values(self.feature_gates))
        self.states = StatesInformer(self.clock)
        if self.synced:
            self.sync()
        self.manager = QOSManager(
            config,
            client=UnavailableClient(),
            metric_cache=None,  # type: ignore[arg-type]
            states_informer=self.states,
            claims=self.claims,
            kernel=self.kernel,
            health=self.health,
            run_dir=self.run_dir,
            boot_id="boot-1",
            problems=self.problems,
            guard=None,
        )
        return self.manager

    def sync(self) -> None:
        self.states.set_node(Node("n1"))
        self.states.set_pods(())

    async def start(self) -> None:
        self.build()
        self.stop, self.over = Stop(self.clock), Stop(self.clock)
        self.informer = asyncio.create_task(self.states.run(self.over))
        self.task = asyncio.create_task(self.manager.run(self.stop))
        await self.clock.settle()

    async def finish(self) -> None:
        if self.task is not None:
            self.stop.set()
            for _ in range(1000):
                if self.task.done():
                    break
                await self.clock.advance(1)
            await self.task
            self.task = None
        if self.informer is not None:
            self.over.set()
            await self.informer
            self.informer = None

    async def switch(self, **gates: bool) -> None:
        """Switch gates, those that are not named as they are, and let all parts see it."""
        self.gates.set_from_map(gates)
        await self.clock.advance(0)

    def runner(self, name: str) -> PluginRunner:
        return next(runner for runner in self.manager.runners if runner.name == name)

    def part(self, name: str) -> PartHealth:
        return self.health.parts()[f"plugin {name}"]

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.get_sample_value(name, labels)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    await bench.finish()
