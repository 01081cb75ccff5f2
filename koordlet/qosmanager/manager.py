"""Run the plugins whose gates are on: set up, run and end in order; export their cost."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from koord.component.flags import FeatureGates
from koord.component.plugins.execution import Meter, NoGuard, ResidentMemory, account_tasks
from koord.util.errors import error_text
from koord.util.health import HealthStatus, PartHealth
from koord.util.logs import get_logger
from koord.util.ownedfiles import OwnedDirectory
from koord.util.stop import Stop, first_completed
from koordlet.executor.claims.claim import UnavailableClaims
from koordlet.executor.evictions.eviction import EvictionHandler, UnavailableEvictor
from koordlet.executor.kernel.view import NoKernel
from koordlet.plugin.base import ExtensionPlugin
from koordlet.plugin.interfaces import Client
from koordlet.plugin.publishing import Publisher
from koordlet.plugin.registry import Registration
from koordlet.qosmanager.admission import ClaimScopes, PluginState, Quarantine
from koordlet.qosmanager.config import QOSExtensionConfig
from koordlet.qosmanager.guard import GuardOptions, HangRecord, LoopGuard, previous_hang
from koordlet.qosmanager.runner import PluginRunner

if TYPE_CHECKING:
    from koord.util.health import Health
    from koordlet.executor.claimmanager import ClaimManager
    from koordlet.executor.kernel.view import Kernel
    from koordlet.metriccache.cache import MetricCache
    from koordlet.statesinformer.informer import StatesInformer


class PluginFamilies(Collector):
    """Collector for the daemon's registry. Rendered on any thread."""

    def __init__(self, runners: Sequence[PluginRunner]) -> None:
        self._runners = runners

    def describe(self) -> list[Metric]:
        return []  # otherwise registering would collect

    def collect(self) -> Iterator[Metric]:
        rounds = CounterMetricFamily(
            "koordlet_plugin_rounds",
            "Rounds of plugins by outcome: ok, failed, late, silent, blocked or memory.",
            labels=["plugin", "outcome"],
        )
        cpu = CounterMetricFamily(
            "koordlet_plugin_cpu_seconds",
            "CPU seconds that the plugin's own code spent on the event loop.",
            labels=["plugin"],
        )
        errors = CounterMetricFamily(
            "koordlet_plugin_errors", "Everything that went wrong in a plugin.", labels=["plugin"]
        )
        memory = GaugeMetricFamily(
            "koordlet_plugin_memory_growth_bytes",
            "Bytes by which the process grew while the plugin's code ran, since its run began.",
            labels=["plugin"],
        )
        state = GaugeMetricFamily(
            "koordlet_plugin_state",
            "1 for the state that the plugin is in.",
            labels=["plugin", "state"],
        )
        for runner in self._runners:
            for outcome, count in runner.rounds.items():
                rounds.add_metric([runner.name, outcome.value], count)
            cpu.add_metric([runner.name], runner.meter.cpu_seconds)
            errors.add_metric([runner.name], runner.errors)
            memory.add_metric([runner.name], runner.meter.growth)
            for known in PluginState:
                state.add_metric([runner.name, known.value], float(known is runner.state))
        yield from (rounds, cpu, errors, memory, state)


log = get_logger("koordlet.qosmanager")


@dataclass(frozen=True, slots=True)
class PluginReport:
    """One plugin as `koordletctl plugins` shows it."""

    name: str
    source: str
    version: str
    gates: tuple[str, ...]
    needs: tuple[str, ...]
    enabled: bool
    state: str
    reason: str  # why it does not work; empty: it does
    rounds: dict[str, int]  # by outcome
    errors: int
    cpu_seconds: float
    longest_step_ms: float  # CPU time
    memory_growth_bytes: int


def setup_plugins(
    runners: Iterable[PluginRunner],
    client: Client,
    metric_cache: "MetricCache",
    states_informer: "StatesInformer",
) -> None:
    """Call setup of the plugins that are wanted, in their order; one that raises is left out.

    The others get theirs when they are switched on for the first time.
    """
    for runner in runners:
        runner.set_arguments(client, metric_cache, states_informer)
        if runner.wanted:
            runner.admit()


def start_plugins(runners: Iterable[PluginRunner], gates: FeatureGates) -> None:
    """Mark exactly those plugins as wanted that have a gate that is on."""
    for runner in runners:
        runner.want(_has_gate_on(runner, gates))


def _has_gate_on(runner: PluginRunner, gates: FeatureGates) -> bool:
    known = frozenset(gates.names())
    return any(gate in known and gates.enabled(gate) for gate in runner.registration.gates)


class QOSManager:
    """Supervises all plugins of a registry."""

    def __init__(
        self,
        config: QOSExtensionConfig,
        *,
        client: Client,
        metric_cache: "MetricCache",
        states_informer: "StatesInformer",
        evictor: EvictionHandler | None = None,
        claims: "ClaimManager | None" = None,
        kernel: "Kernel | None" = None,
        health: "Health",
        run_dir: OwnedDirectory | None,
        boot_id: str,
        problems: Sequence[str] = (),
        guard: GuardOptions | None = GuardOptions(),  # noqa: B008 - frozen
    ) -> None:
        """evictor None: there is no API server. claims and kernel None: nothing may be claimed or
        looked at. problems: what discovery could not register.

        guard None: let plugins hold the loop.
        """
        self._gates = config.gates
        self._client = client
        self._metric_cache = metric_cache
        self._registry = config.metrics
        self._states = states_informer
        self._claims = claims
        self._problems = tuple(problems)
        self._memory = ResidentMemory()
        self._quarantine = Quarantine(run_dir, boot_id, config.clock)
        self._hang = previous_hang(run_dir, boot_id) if run_dir else None
        record = HangRecord.open(run_dir, boot_id)
        self._guard = LoopGuard(record, guard, self._memory) if guard else NoGuard()
        self._clock = config.clock
        self._claim_scopes = ClaimScopes(claims, self._wake_rejected)
        self.runners = tuple(self._runner(registration) for registration in config.registry)
        for runner in self.runners:
            if runner.name in config.failures:
                runner.breaks(config.failures[runner.name])
            else:
                self._bind(runner, kernel, claims, evictor)
        self._quarantine_hung()
        config.metrics.register(PluginFamilies(self.runners))
        self._register_health(health)

    async def run(self, stop: Stop) -> None:
        """Set up and run the plugins until stop; returns when all of them have ended."""
        if isinstance(self._guard, LoopGuard):
            self._guard.start()
        account_tasks(asyncio.get_running_loop())
        try:
            start_plugins(self.runners, self._gates)
            setup_plugins(self.runners, self._client, self._metric_cache, self._states)
            if await self._synced(stop):
                await self._run_all(stop)
        finally:
            asyncio.get_running_loop().set_task_factory(None)
            if isinstance(self._guard, LoopGuard):
                self._guard.close()

    def describe(self) -> list[PluginReport]:
        """All plugins with their state and cost."""
        return [
            PluginReport(
                name=runner.name,
                source=runner.registration.source,
                version=runner.registration.version,
                gates=runner.registration.gates,
                needs=runner.registration.plugin.needs,
                enabled=runner.wanted,
                state=runner.state.value,
                reason=self._health(runner).reason,
                rounds={outcome.value: count for outcome, count in runner.rounds.items()},
                errors=runner.errors,
                cpu_seconds=runner.meter.cpu_seconds,
                longest_step_ms=runner.meter.longest_step * 1000,
                memory_growth_bytes=runner.meter.growth,
            )
            for runner in self.runners
        ]

    def enabled(self) -> list[str]:
        """Names of the plugins that have a gate that is on."""
        return [runner.name for runner in self.runners if _has_gate_on(runner, self._gates)]

    def running(self) -> list[tuple[str, ExtensionPlugin, Meter]]:
        """The plugins that run now, by name, and what accounts for their code."""
        return [
            (runner.name, runner.registration.plugin, runner.meter)
            for runner in self.runners
            if runner.state is PluginState.RUNNING
        ]

    def have_started(self) -> bool:
        """Whether every plugin that is on was started, or cannot be."""
        wanted = [runner for runner in self.runners if runner.wanted]
        return bool(wanted) and all(each.state is not PluginState.DISABLED for each in wanted)

    def release(self, plugin: str) -> bool:
        """Take a plugin out of quarantine by hand. Returns whether it was in."""
        released = self._quarantine.clear(plugin)
        for runner in self.runners:
            if released and runner.name == plugin:
                runner.release()
        return released

    async def _synced(self, stop: Stop) -> bool:
        """Wait until node and pods are known. Returns False when stop comes first."""
        await first_completed(self._states.wait_synced(), stop.wait())
        return not stop.is_set()

    async def _run_all(self, stop: Stop) -> None:
        start_plugins(self.runners, self._gates)
        self._gates.subscribe(lambda changed: start_plugins(self.runners, self._gates))
        async with asyncio.TaskGroup() as group:
            for runner in self.runners:
                group.create_task(_supervise(runner, stop), name=f"supervise {runner.name}")
            await stop.wait()
            for runner in self.runners:
                runner.wake()

    def _runner(self, registration: Registration) -> PluginRunner:
        meter = Meter(
            registration.name,
            guard=self._guard,
            memory=self._memory,
            now=self._clock.monotonic,
        )
        return PluginRunner(
            registration,
            clock=self._clock,
            meter=meter,
            quarantine=self._quarantine,
            claim_scopes=self._claim_scopes,
            ended=partial(self._withdraw, registration.name),
        )

    def _wake_rejected(self) -> None:
        """Let plugins try again that waited for another one's claims, in their order."""
        for runner in self.runners:
            if runner.rejected:
                runner.wake()

    def _bind(
        self,
        runner: PluginRunner,
        kernel: "Kernel | None",
        claims: "ClaimManager | None",
        evictor: EvictionHandler | None,
    ) -> None:
        """Hand over what setup needs; break a plugin whose kinds are another one's on /metrics."""
        plugin = runner.registration.plugin
        publisher = Publisher(runner.name, plugin.publishes, self._metric_cache, self._clock)
        try:
            publisher.register(self._registry)
        except ValueError as err:
            runner.breaks(f"publishes: {err}")
        else:
            context = replace(
                plugin.context,
                kernel=kernel or NoKernel(),
                claims=claims or UnavailableClaims(),
                evictor=evictor or UnavailableEvictor(),
                publisher=publisher,
            )
            plugin.bind(context)

    async def _withdraw(self, plugin: str) -> None:
        for runner in self.runners:
            if runner.name == plugin:
                runner.registration.plugin.context.health.clear()
        if self._claims is not None:
            await self._claims.withdraw_all(plugin)

    def _quarantine_hung(self) -> None:
        if self._hang is None:
            return
        log.error("plugin.hung", plugin=self._hang.plugin, stacks=self._hang.stacks)
        for runner in self.runners:
            if runner.name == self._hang.plugin:
                version = runner.registration.version
                self._quarantine.add(runner.name, version, "held the event loop until the end")

    def _register_health(self, health: "Health") -> None:
        for runner in self.runners:
            health.register(f"plugin {runner.name}", partial(self._health, runner))
        if self._problems:
            rejected = PartHealth(HealthStatus.DEGRADED, "; ".join(self._problems))
            health.register("plugins", lambda: rejected)

    def _health(self, runner: PluginRunner) -> PartHealth:
        """State of a plugin; degraded too where metrics it needs are missing, or it says so."""
        health, plugin = runner.health(), runner.registration.plugin
        if health.status is not HealthStatus.OK or runner.state is not PluginState.RUNNING:
            return health
        off = [gate for gate in plugin.needs if not self._gates.enabled(gate)]
        uncollected = f"not all it reads is collected: gate {', '.join(off)} is off" if off else ""
        reason = "; ".join(filter(None, (uncollected, plugin.context.health.text)))
        return PartHealth(HealthStatus.DEGRADED, reason, health.detail) if reason else health


async def _supervise(runner: PluginRunner, stop: Stop) -> None:
    """Keep a defect of the supervision itself from ending the other plugins."""
    try:
        await runner.supervise(stop)
    except Exception as err:
        log.exception("plugin.supervision_failed", plugin=runner.name)
        runner.breaks(f"supervision: {error_text(err)}")
