"""Limits best-effort pods to the CPU that other pods leave: by CPU set, by quota, or by cpu.idle.

The strategy is the NodeSLO's resourceUsedThresholdWithBE. Each second a round measures the usage of
all others and adjusts the limit, as Koordinator does. In between, fast looks at a few CPU counters
reduce best-effort pods within tenths of a second (fast attack, slow release).
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from koord.api.qos import KubeQoS, QoSClass
from koord.api.qosstrategy import CPUSuppressPolicy
from koord.plugin import OptionError, Stop
from koordlet.plugin import (
    ClaimScope,
    Client,
    ExtensionPlugin,
    Flag,
    FlagSet,
    Level,
    MetricCache,
    PluginRegistry,
    States,
    resources,
)
from koordlet.plugin.kernel import AuditText, Resource, WatchedValue
from koordlet_plugins.be_cpu_suppress.policies import (
    CALM_BAND,
    UPSTREAM_BAND,
    CpusetPolicy,
    CpuView,
    IdlePolicy,
    NodeInputs,
    Policy,
    QuotaPolicy,
    best_effort_group,
)
from koordlet_plugins.be_cpu_suppress.usage import EvidenceBuilder, RoundUsage, measure

GATE = "BECPUSuppress"
MANAGER = "BECPUManager"
STALE_ROUNDS = 3  # after which fast looks no longer use the findings of a round

INTERVAL = "cpu-suppress-interval-seconds"
FAST = "be-suppress-fast-interval"
FASTEST = 0.05  # seconds; the kernel accounts for a running task once in 1 to 10 ms

_GROUP = frozenset({KubeQoS.BEST_EFFORT.value})
_PODS = frozenset({QoSClass.BE.value})
_CPUS = resources.CPUSET_CPUS_WANTED
_QUOTA_SET = AuditText("AdjustBEByNodeCPUUsage", "update BE group to cfs_quota: {value}")
_CPUS_SET = AuditText("AdjustBEByNodeCPUUsage", "update BE group to cpuset: {value}")


@dataclass(frozen=True, kw_only=True, slots=True)
class SuppressOptions:
    """Times in seconds."""

    interval: float = 1.0  # between rounds; 0: the plugin does nothing, as in Koordinator
    fast: float = 0.1  # between looks at the counters; 0: there are none

    def __post_init__(self) -> None:
        if self.interval < 0:
            raise OptionError(f"--{INTERVAL}", self.interval, "use 1 or more, or 0 for never")
        if self.fast and self.fast < FASTEST:
            raise OptionError(f"--{FAST}", self.fast, f"use at least {FASTEST:g}s, or 0 for none")


class SuppressFlags:
    """The flags; their values are known once the command line was parsed."""

    def __init__(self, flags: FlagSet) -> None:
        self._interval: Flag[int] = flags.int(
            INTERVAL, 1, "Seconds between two rounds of best-effort CPU suppression; 0: never"
        )
        self._fast: Flag[float] = flags.duration(
            FAST,
            0.1,
            "Time between two looks at CPU counters that make best-effort pods give way sooner "
            "than the next round; 0 for Koordinator's pace",
        )

    def options(self) -> SuppressOptions:
        """Return the options that the flags set.

        Raises:
            OptionError: a value cannot be used.
        """
        return SuppressOptions(interval=self._interval.value, fast=self._fast.value)


class LatestRound(NamedTuple):
    """The latest round that limited best-effort pods."""

    measured: RoundUsage
    name: CPUSuppressPolicy
    policy: Policy
    at: float  # monotonic seconds


class BECPUSuppress(ExtensionPlugin):
    """Limits best-effort pods to the CPU that other pods leave."""

    gates = (GATE,)
    modes = (MANAGER,)
    may_claim = (
        ClaimScope(resources.CPU_QUOTA, Level.QOS, _GROUP, audit_text=_QUOTA_SET),
        ClaimScope(_CPUS, Level.QOS, _GROUP, audit_text=_CPUS_SET),
        ClaimScope(_CPUS, Level.POD, _PODS, audit_text=_CPUS_SET),
        ClaimScope(_CPUS, Level.CONTAINER, _PODS, audit_text=_CPUS_SET),
        ClaimScope(resources.CPU_IDLE, Level.POD, _PODS),
    )

    def init_flags(self, flags: FlagSet) -> None:
        self._flags = SuppressFlags(flags)

    def setup(self, client: Client, metric_cache: MetricCache, states_informer: States) -> None:
        self._cpus = CpuView(states_informer, metric_cache, in_cluster=client.available)
        self._cache = metric_cache
        self._states = states_informer
        self._options = self._flags.options()
        self._limit = self.metrics.upstream_gauge(
            "koordlet_be_suppress_cpu_cores",
            "CPU cores that best-effort pods are limited to, while they are.",
            ("node", "type"),
        )
        self._others_used = self.metrics.upstream_gauge(
            "koordlet_be_suppress_ls_used_cpu_cores",
            "CPU cores that pods use which are not best-effort.",
            ("node",),
        )

    async def run(self, stop: Stop) -> None:
        if not self._options.interval:
            return
        await self._start()
        looking = asyncio.create_task(self._sample_fast(stop), name="fast looks")
        try:
            async for _ in stop.every(self._options.interval):
                if looking.done():
                    await looking  # raises the error that ended it
                async with self._deciding:
                    await self._round()
        finally:
            looking.cancel()
            await asyncio.wait({looking})

    async def _start(self) -> None:
        self._deciding = asyncio.Lock()  # a round and a look come one after the other
        self._evidence = EvidenceBuilder()
        self._latest: LatestRound | None = None  # None: no pod is limited
        self._managed = False
        self._sees_node = await self.kernel.supports(resources.ROOT_CPU_USAGE)
        self._cpuset, self._idle = CpusetPolicy(self), IdlePolicy(self)
        band = CALM_BAND if self._options.fast else UPSTREAM_BAND
        self._policies: Mapping[CPUSuppressPolicy, Policy] = {
            CPUSuppressPolicy.CPUSET: self._cpuset,
            CPUSuppressPolicy.CFS_QUOTA: QuotaPolicy(self, band),
            CPUSuppressPolicy.CPU_IDLE: self._idle,
        }

    async def _round(self) -> None:
        slo = self._states.node_slo()
        managed, self._managed = self._managed, self.gate(MANAGER)
        if self._managed:
            if not managed:
                self.log.info("suppression.disabled", because=f"gate {MANAGER} is on")
            await self._end(but=self._cpuset)
            await self._cpuset.pool(self._see(cores=0))
        elif slo is None or not slo.threshold.enable:
            await self._end()
        else:
            measured = measure(self._states.node(), slo, self._states.pods(), self._cache)
            if measured is not None:
                await self._suppress(measured, slo.threshold.cpu_suppress_policy)

    async def _end(self, but: Policy | None = None) -> None:
        self._latest = None
        self._evidence.clear()
        self._limit.clear()
        self._others_used.clear()
        for policy in self._policies.values():
            if policy is not but:
                await policy.end()

    async def _suppress(self, measured: RoundUsage, name: CPUSuppressPolicy) -> None:
        if name is CPUSuppressPolicy.CPU_IDLE and not await self._idle.possible():
            name = CPUSuppressPolicy.CPUSET  # as Koordinator takes it
        evidence, seen = self._evidence.after_round(measured), self._see(measured.cores)
        for other in self._policies.keys() - {name, CPUSuppressPolicy.CPUSET}:
            await self._policies[other].end()
        policy = self._policies[name]
        cores = await policy.round(evidence, seen)
        if policy is not self._cpuset:
            await self._cpuset.pool(seen)
        self._latest = LatestRound(measured, name, policy, self.clock.monotonic())
        self._others_used.set(measured.used.pods, node=self._node)
        self._show(name, cores)

    async def _sample_fast(self, stop: Stop) -> None:
        """Read the counters at each fast interval while best-effort pods are limited."""
        options = self._options
        while options.fast and not stop.is_set():
            if not self._uses_samples():
                self._evidence.fast_samples.clear()
                await self.clock.sleep(options.interval)
            elif await self.kernel.watch(
                self._counters(), options.fast, self._notice, options.interval
            ):
                await self._shrink()

    def _uses_samples(self) -> bool:
        latest = self._latest
        if latest is None or not latest.policy.fast_samples:
            return False
        return self.clock.monotonic() - latest.at <= STALE_ROUNDS * self._options.interval

    def _notice(self, counters: Sequence[WatchedValue | None]) -> bool:
        """Evaluate a look, in another thread; return whether best-effort pods must shrink now."""
        self._evidence.fast_samples.add(counters)
        latest = self._latest
        evidence = self._evidence.after_sample(latest.measured.baseline) if latest else None
        if latest is None or evidence is None:
            return False
        return latest.policy.must_shrink(evidence.allowance)

    async def _shrink(self) -> None:
        async with self._deciding:
            latest = self._latest  # a round may have come in between
            evidence = self._evidence.after_sample(latest.measured.baseline) if latest else None
            if latest is not None and evidence is not None:
                cores = await latest.policy.on_fast_sample(evidence)
                if cores is not None:
                    self._show(latest.name, cores)

    def _counters(self) -> list[tuple[Resource[Any], str]]:
        layout = self.kernel.layout
        groups = (best_effort_group(layout).place, layout.root)
        counters = [(resources.CPU_USAGE, group) for group in groups]
        return [*counters, (resources.ROOT_CPU_USAGE, "")] if self._sees_node else counters

    def _see(self, cores: int) -> NodeInputs:
        return NodeInputs(cores, self._states.pods(), self._cpus.now())

    def _show(self, name: CPUSuppressPolicy, cores: float | None) -> None:
        """Export the limit; None: there is none."""
        self._limit.replace({} if cores is None else {(self._node, name.value): cores})

    @property
    def _node(self) -> str:
        node = self._states.node()
        return node.name if node else ""


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin(GATE, None, BECPUSuppress())
