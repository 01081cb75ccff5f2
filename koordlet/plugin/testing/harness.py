"""Run one plugin in a test: simulated time, scripted metrics and states, captured logs, cost."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from types import TracebackType
from typing import Any, Self

from prometheus_client import CollectorRegistry

from koord.api.node import Node
from koord.api.nodeslo import NodeSLO
from koord.component.flags import FeatureSpec, FlagSet
from koord.component.plugins.discovery import installed_plugins
from koord.component.plugins.execution import Meter, RoundStop, account_tasks
from koord.util.stop import Stop
from koord.util.text import snake_case
from koordlet.executor.claimmanager import ClaimManager
from koordlet.executor.claims.claim import Change, ClaimScope
from koordlet.executor.claims.table import ClaimTable, ObservedValue, claimed_value_json, concerns
from koordlet.executor.evictions.decisions import Decisions, EvictionMetrics
from koordlet.executor.evictions.eviction import PodProcessKiller
from koordlet.executor.evictions.evictor import Evictor
from koordlet.executor.evictions.limits import EvictionBudget
from koordlet.executor.journal import Journal
from koordlet.executor.kernel.view import InlineWorker, KernelView, read_watched
from koordlet.executor.kernel.writer import Writer
from koordlet.features import GATES
from koordlet.host.files import Descriptors
from koordlet.host.host import Host
from koordlet.metriccache.kinds import K, Kind, P
from koordlet.plugin.base import ExtensionPlugin, PluginContext
from koordlet.plugin.interfaces import Client, UnavailableClient
from koordlet.plugin.metrics import PluginMetrics
from koordlet.plugin.publishing import Publisher
from koordlet.plugin.registry import PluginRegistry, Registration
from koordlet.plugin.testing.host import FakeHost
from koordlet.plugin.testing.kernel import FakeKernelValues
from koordlet.plugin.testing.scripted import (
    CapturedLog,
    ScriptedEvictions,
    ScriptedMetrics,
    SimulatedClock,
)
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.podmeta import PodMeta


def other_shipped_claims(
    plugin: ExtensionPlugin, gates: Collection[str] | None
) -> Iterator[tuple[str, tuple[ClaimScope, ...]]]:
    """Name and may_claim of the shipped plugins that are on with the one under test.

    gates: those that are on; None: those that are on by default.
    """
    for entry in _shipped():
        is_on = any(_is_on(gate, entry.spec, gates) for gate in entry.gates)
        if is_on and entry.name != plugin.name and type(entry.plugin) is not type(plugin):
            yield entry.name, entry.plugin.may_claim


def _is_on(gate: str, spec: FeatureSpec | None, gates: Collection[str] | None) -> bool:
    if gates is not None:
        return gate in gates
    known = GATES.get(gate, spec)
    return known is not None and known.default


@cache
def _shipped() -> tuple[Registration, ...]:
    registry = PluginRegistry()
    for each in installed_plugins(entry_points(group=registry.group)):
        if each.distribution == registry.shipped:
            each.entry.load()(registry.from_source(each.source))
    return tuple(registry)


ROUND_TIMEOUT = 86_400.0  # simulated seconds that `rounds` waits before it gives up


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a plugin's own code up to now; CPU time, so waiting does not count."""

    rounds: int
    cpu_seconds: float
    longest_step: float  # CPU seconds between two awaits: how long it held the event loop

    @property
    def cpu_per_round(self) -> float:
        """CPU seconds of an average round, starting and stopping included."""
        return self.cpu_seconds / max(self.rounds, 1)


class PluginHarness:
    """A plugin with all that the daemon would give it; `async with` it.

    On entry init_flags, setup and run are called as the daemon does, on exit the plugin is
    stopped. What the plugin raises is raised in the test, by the call that let time pass.
    """

    def __init__(
        self,
        plugin: ExtensionPlugin,
        *,
        name: str = "",
        args: Sequence[str] = (),
        client: Client | None = None,
        pods: Sequence[PodMeta] = (),
        host: FakeHost | None = None,
        standalone: bool = False,
        dry_run: bool = False,
        evict_budget_per_hour: int = 20,
        gates: Collection[str] | None = None,
        killer: PodProcessKiller | None = None,
    ) -> None:
        """name: the feature name, by default the class name; args: the command line.

        host: its kernel files are those that claims change; None: claims raise Unavailable.
        standalone: evictions raise Unavailable, as without an API server. dry_run, which a test may
        switch, and evict_budget_per_hour: as these flags. gates: those that are on; None: all, but
        of the plugins that ship with koordlet those that are on by default. Those that are on stand
        in the way of a plugin that may claim the same, as in the daemon. killer: what kills in
        place of evictions that fail.

        Raises:
            PluginError, OptionError: what keeps the daemon from registering the plugin or its
                flags, or from switching it on with the shipped ones.
        """
        self.plugin = plugin
        self.name = name or type(plugin).__name__
        registry = PluginRegistry().from_source("PluginHarness")
        registry.register_qos_ext_plugin(self.name, plugin.spec, plugin)
        self.clock = SimulatedClock()
        self.metrics = ScriptedMetrics(self.clock, plugin.publishes)
        self.states = StatesInformer(self.clock)
        self._subscription = self.states.subscribe(self.name, self._callback_failed)
        self._callback_error: BaseException | None = None
        self.log = CapturedLog()
        self.registry = CollectorRegistry()
        self.states.set_node(Node("test-node"))
        self.states.set_pods(tuple(pods))

        self.dry_run = dry_run

        async def is_dry_run(_: str) -> bool:
            return self.dry_run

        self.evictions = ScriptedEvictions(self.clock)
        self._decisions = Decisions(self.clock)
        self._evictor = Evictor(
            None if standalone else self.evictions,
            clock=self.clock,
            dry_run=is_dry_run,
            budget=EvictionBudget(
                lambda: evict_budget_per_hour, self.clock, directory=None, boot_id=""
            ),
            decisions=self._decisions,
            metrics=EvictionMetrics("test-node", self.clock, self.registry),
            killer=killer,
        )
        self.gates = gates
        self.changes: list[Change] = []
        self._kernel: Host | None = None
        self._check_conflicts()
        self._manager = self._claim_manager(host, is_dry_run) if host else None
        self._client = client or UnavailableClient()
        self._rounds = 0
        self._meter = Meter(self.name, now=self.clock.monotonic)
        self._background: tuple[asyncio.Task[None], ...] = ()
        self._over = Stop(self.clock)
        self._stop = Stop(self.clock)
        self._running: asyncio.Task[None] | None = None
        self._prepare(args)

    async def __aenter__(self) -> Self:
        account_tasks(asyncio.get_running_loop())
        self._background = (
            asyncio.create_task(self.metrics.run(self._over), name="scripted metrics"),
            asyncio.create_task(self.states.run(self._over), name="states informer"),
            asyncio.create_task(self._evictor.run(self._over), name="evictions"),
        )
        if self._manager is not None:
            self._background += (asyncio.create_task(self._manager.run(self._over), name="claims"),)
        await self.clock.settle()
        with self._meter.step():
            self.plugin.setup(self._client, self.metrics.cache, self._subscription.states)
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, at: TracebackType | None
    ) -> None:
        try:
            await self.stop()
        finally:
            asyncio.get_running_loop().set_task_factory(None)
            self._over.set()
            await self.clock.settle()
            await asyncio.gather(*self._background)

    def hold(self, kind: Kind[P, K], value: float, /, *key: P.args, **named: P.kwargs) -> None:
        """Give the metric cache this value every second from now on.

        Raises:
            UnknownSeries: the kind has no such series.
        """
        self.metrics.hold(kind, value, *key, **named)

    def drop(self, kind: Kind[P, K], /, *key: P.args, **named: P.kwargs) -> None:
        """Stop the values of that series in the metric cache. Raises as hold does."""
        self.metrics.drop(kind, *key, **named)

    def set_pods(self, *pods: PodMeta) -> None:
        """Make these the pods of the node; see koordlet.plugin.testing.make_pod."""
        self.states.set_pods(pods)

    def set_node_slo(self, slo: NodeSLO | None) -> None:
        """Make this the NodeSLO of the node."""
        self.states.set_node_slo(slo)

    def claims(self, place: str = "") -> list[dict[str, Any]]:
        """Return the claimed values as `koordletctl explain --output json` has them."""
        if self._manager is None or self._kernel is None:
            return []
        found = [each for each in self._manager.snapshot() if concerns(each.key, place)]
        reads = [(key.resource, key.target.place) for key, _, _ in found]
        readings = read_watched(self._kernel, self.clock, reads)
        now = self.clock.wall()
        return [
            claimed_value_json(each, ObservedValue(None if reading is None else reading.value, now))
            for each, reading in zip(found, readings, strict=True)
        ]

    async def start(self) -> None:
        """Call run and the callbacks, as enabling the gate does; setup is not called again."""
        self._stop = RoundStop(self.clock, self._count_round)
        self._subscription.begin()
        work = self._meter.drive(self.plugin.run(self._stop))
        self._running = asyncio.create_task(work, name=f"plugin {self.name}")
        await self.clock.settle()
        self._raise_failure()

    async def stop(self) -> None:
        """Set the stop signal, wait for run and call the plugin's stop.

        Raises:
            AssertionError: run does not return within the plugin's grace, or left tasks behind.
        """
        task, self._running = self._running, None
        if task is None:
            return
        self._stop.set()
        grace = self.plugin.limits.grace
        await self.clock.advance(0)
        if not task.done():
            await self.clock.advance(grace)
        if not task.done():
            self._meter.drop(task)
            raise AssertionError(f"run did not return within {grace:g} s after the stop signal")
        callbacks = self._subscription.end()
        if callbacks:
            await asyncio.wait(callbacks)
        await self._meter.drive(self.plugin.stop())
        if self._manager is not None:
            await self._manager.withdraw_all(self.name)
        left = [left for left in self._meter.tasks if not left.done()]
        for straggler in left:
            self._meter.drop(straggler)
        task.result()
        if left:
            raise AssertionError(f"{len(left)} tasks of the plugin still ran after stop()")

    async def advance(self, seconds: float) -> None:
        """Let time pass."""
        await self.clock.advance(seconds)
        self._raise_failure()

    async def rounds(self, count: int = 1) -> None:
        """Let time pass until that many more rounds, turns of stop.every(...), are done.

        Raises:
            AssertionError: run returned, or no round came for a simulated day.
        """
        wanted, limit = self._rounds + count, self.clock.monotonic() + ROUND_TIMEOUT
        while self._rounds < wanted:
            self._raise_failure()
            if self._running is None or self._running.done():
                raise AssertionError(f"run returned after {self._rounds} of {wanted} rounds")
            if self.clock.monotonic() > limit:
                raise AssertionError(
                    f"no {count} rounds within {ROUND_TIMEOUT:g} simulated seconds"
                )
            await self.clock.advance_to_next()
        self._raise_failure()

    def metric(self, name: str, **labels: str) -> float | None:
        """Value of one of the plugin's metrics, named as in the plugin; None: no such series."""
        full = f"koordlet_plugin_{snake_case(self.name)}_{name}"
        return self.registry.get_sample_value(full, labels)

    @property
    def degraded(self) -> str:
        """The reasons why the plugin works with less, as it has reported; "" for none."""
        return self.plugin.context.health.text

    def explain(self, pod: str = "") -> list[dict[str, Any]]:
        """The decisions, latest first, as `koordletctl explain --output json` has them."""
        return self._decisions.explain(pod)

    @property
    def cost(self) -> Cost:
        """Return the cost of the plugin's code up to now."""
        meter = self._meter
        return Cost(self._rounds, meter.cpu_seconds, meter.longest_step)

    def _claim_manager(
        self, host: FakeHost, is_dry_run: Callable[[str], Awaitable[bool]]
    ) -> ClaimManager:
        # Files of a directory may vanish under a held descriptor, which those of a kernel cannot.
        kernel, worker = Host(host.paths, Descriptors(0), objects=host.objects), InlineWorker()
        self._kernel = kernel
        object_writers = {root: make(kernel.paths) for root, make in host.object_writers.items()}
        values = FakeKernelValues(kernel, object_writers=object_writers)
        writer = Writer(kernel, Journal(None, ""), self.clock, values=values)
        manager = ClaimManager(
            writer, worker, self.clock, dry_run=is_dry_run, listeners=[self.changes.append]
        )
        manager.declare(self.name, self.plugin.may_claim)
        return manager

    def _check_conflicts(self) -> None:
        table = ClaimTable()
        for name, may_claim in other_shipped_claims(self.plugin, self.gates):
            table.declare(name, may_claim)
        table.declare(self.name, self.plugin.may_claim)

    def _prepare(self, args: Sequence[str]) -> None:
        publisher = Publisher(self.name, self.plugin.publishes, self.metrics.cache, self.clock)
        publisher.register(self.registry)
        context = PluginContext(
            log=self.log,
            metrics=PluginMetrics(self.name, self.registry),
            clock=self.clock,
            gate_is_on=lambda gate: self.gates is None or gate in self.gates,
            evictor=self._evictor,
            publisher=publisher,
        )
        if self._manager is not None and self._kernel is not None:
            kernel = KernelView(self._kernel, InlineWorker(), self.clock)
            context = replace(context, claims=self._manager, kernel=kernel)
        self.plugin.bind(context)
        flags = FlagSet()
        self.plugin.init_flags(flags.owned_by(f"plugin {self.name}"))
        flags.parse(args)

    def _count_round(self, seconds: float) -> None:
        self._rounds += 1

    def _callback_failed(self, callback: str, error: str, cause: BaseException | None) -> None:
        self._callback_error = cause or AssertionError(f"callback {callback}: {error}")

    def _raise_failure(self) -> None:
        error, self._callback_error = self._callback_error, None
        if error is not None:
            raise error
        task = self._running
        if task is not None and task.done():
            task.result()


def cpu_seconds(work: Callable[[], object], *, repeat: int = 5) -> float:
    """CPU seconds that one call takes on this thread, at its best of several."""
    best = float("inf")
    for _ in range(repeat):
        began = time.thread_time()
        work()
        best = min(best, time.thread_time() - began)
    return best
