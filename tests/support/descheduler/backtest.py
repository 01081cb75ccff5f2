"""A cluster that lives for hours of simulated time, with a descheduler at work, and its record.

Six nodes of ten cores. The usage of each pod comes and goes in its own rhythm; what is evicted
leaves after ten seconds and has a replacement after twenty, where a plain scheduler puts it; or, as
pods of a Deployment, it shuts down for half a minute beside its replacement.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec.structs import replace as structs_replace
from prometheus_client import CollectorRegistry

from koord.cluster import kinds
from koord.cluster.facts import ClusterNode, ClusterPod, Workload
from koord.controlplane.testing import FakeCluster
from koord_descheduler.backtest.recorder import Recorder, RecordingState
from koord_descheduler.backtest.records import Eviction, Header, RecordWriter
from koord_descheduler.config import Configuration, parse_configuration
from koord_descheduler.framework.evictor import EvictionLimiter
from koord_descheduler.framework.handle import Handle, Migration, Services
from koord_descheduler.framework.interfaces import (
    BalancePlugin,
    EvictOptions,
    Evictor,
    Relief,
    Status,
)
from koord_descheduler.framework.profile import (
    Descheduler,
    PluginRegistry,
    build_profile,
    known_plugins,
    profile_settings,
)
from koord_descheduler.ledger.ledger import Ledger, LedgerMetrics
from koord_descheduler.plugin.testing import fake_services

STEP, REPORTS = 10.0, 60.0  # seconds
CORES, GI = 10.0, 1 << 30


class Cool(BalancePlugin):
    """Evicts the largest pod of each node above a threshold, once for each report."""

    def __init__(self, args: Any, handle: Handle) -> None:
        self.above = float((args or {}).get("above", 75))  # percent of cpu
        self.handle = handle
        self.acted: dict[str, float | None] = {}

    async def balance(self, nodes: Sequence[ClusterNode]) -> Status | None:
        evictor, cluster = self.handle.evictor(), self.handle.services.cluster
        leaving = {one.node for one in self.handle.services.migrations.by_uid.values()}
        for node in nodes:
            report = cluster.reports.get(node.name)
            if report is None or report.usage is None or node.name in leaving:
                continue
            if self.acted.get(node.name) == report.update_time:
                continue
            if report.usage.cores <= CORES * self.above / 100:
                continue
            for metric in sorted(report.pods, key=lambda one: (-one.usage.cores, one.name)):
                pod = cluster.pod(f"{metric.namespace}/{metric.name}")
                if pod is None or pod.node != node.name or pod.deleting:
                    continue
                relief = Relief(cpu=metric.usage.cores, memory=metric.usage.memory_bytes)
                reason = f"{node.name} uses {report.usage.cores:.2f} cores"
                if await evictor.evict(pod, EvictOptions(relief=relief, reason=reason)):
                    self.acted[node.name] = report.update_time
                    break
        return None


class Leave(Evictor):
    """Has pods leave: like MigrationController it says which are on their way."""

    def __init__(self, args: Any, handle: Handle) -> None:
        self.handle = handle

    def filter(self, pod: ClusterPod) -> bool:
        return True

    async def evict(self, pod: ClusterPod, options: EvictOptions) -> bool:
        migration = Migration(pod=pod.key, uid=pod.uid, node=pod.node)
        self.handle.services.migrations.put(migration)
        return True


def config_text(above: float = 75, plugin: str = "Cool", **args: Any) -> str:
    """A configuration with one profile of Cool, or of another plugin with these arguments."""
    evict = {"enabled": [{"name": "Leave"}], "disabled": [{"name": "*"}]}
    document = {
        "apiVersion": "descheduler/v1alpha2",
        "kind": "DeschedulerConfiguration",
        "deschedulingInterval": "2m",
        "profiles": [
            {
                "name": "p",
                "plugins": {
                    "balance": {"enabled": [{"name": plugin}]},
                    "evict": evict,
                    "filter": evict,
                },
                "pluginConfig": [{"name": plugin, "args": args or {"above": above}}],
            }
        ],
    }
    return json.dumps(document)


def scripted_registry() -> PluginRegistry:
    """Cool and Leave."""
    registry = PluginRegistry()
    registry.register("Cool", Cool)
    registry.register("Leave", Leave)
    return registry


def configuration(text: str, registry: PluginRegistry) -> Configuration:
    """The configuration of a text."""
    return parse_configuration(text.encode(), Path("config"), known_plugins(registry)).configuration


@dataclass(frozen=True)
class Load:
    """What a pod does."""

    cores: float  # in the mean
    period: float  # hours
    phase: float

    def at(self, hours: float) -> float:
        """Cores in use."""
        return self.cores * (1 + 0.6 * math.sin(2 * math.pi * (hours / self.period + self.phase)))


class ScriptedCluster:
    """Live it with live."""

    def __init__(
        self,
        path: Path,
        text: str,
        registry: PluginRegistry,
        *,
        graceful: bool = False,
    ) -> None:
        self.fake = FakeCluster()
        self.fake.state = self.state = RecordingState()
        self.clock = self.fake.clock
        self.registry = registry
        self.configuration = configuration(text, registry)
        self.ledger = Ledger(
            self.state,
            self.configuration.eviction_ledger,
            LedgerMetrics(CollectorRegistry()),
            lambda event: None,
        )
        self.services: Services = replace(fake_services(self.fake), gate=self.ledger)
        self.evicted: list[tuple[float, str, str]] = []  # time, pod, node
        header = Header(began=self.clock.wall(), config=text)
        self.writer = RecordWriter(path, 1 << 30)
        self.recorder = Recorder(self.state, self.writer, header)
        self._loads: dict[str, Load] = {}  # by pod; a replacement takes over
        self._graceful = graceful
        self._due: list[tuple[float, ClusterPod]] = []  # replacements
        self._ending: list[tuple[float, ClusterPod]] = []  # pods that shut down
        self._number = 0
        for at in range(6):
            self.fake.node(f"n{at}", cpu=CORES, memory="64Gi", system={"cpu": 0.5, "memory": "1Gi"})
        for app in range(6):
            workload = self.fake.workload("ReplicaSet", f"app{app}", replicas=4)
            for replica in range(4):
                node = f"n{(app * 4 + replica * (app % 3)) % 6}"
                number = app * 4 + replica
                load = Load(0.7 + 0.35 * ((app + replica) % 4), 0.4 + number % 5 * 0.13, number / 7)
                self._create(workload, node, load)

    async def live(self, hours: float) -> None:
        """Let time pass; the descheduler runs every two minutes, five seconds after the minute."""
        settings = profile_settings(self.configuration)
        limiter = EvictionLimiter()
        profiles = [
            await build_profile(one, self.registry, self.services, limiter) for one in settings
        ]
        cycles = Descheduler(
            profiles,
            self.state.nodes,
            limiter,
            self.services.metrics,
            self.clock,
            decisions=self.services.decisions,
            interval=0,
        )
        began = self.clock.wall()
        self._report()
        self._record()
        for step in range(1, int(hours * 3600 / STEP) + 1):
            self.clock.tick(began + step * STEP - self.clock.wall())
            self._leave_and_come()
            if step * STEP % REPORTS == 0:
                self._report()
            self.ledger.observe(self.clock.wall())
            self._record()
            if step * STEP % 120 == 30:
                result = await cycles.run_once()
                assert not result.errors
                self._record()
        for profile in profiles:
            await profile.close()
        self.recorder.flush()
        self.writer.close()

    def _record(self) -> None:
        found = [
            Eviction(
                at=one.at,
                pod=one.pod,
                uid=one.uid,
                node=one.node,
                plugin=one.plugin,
                reason=one.reason,
            )
            for one in self.ledger.entries
        ]
        self.evicted = [(one.at, one.pod, one.node) for one in found]
        self.recorder.tick(self.clock.wall(), found)

    def _create(self, workload: Workload, node: str, load: Load) -> None:
        self._number += 1
        name = f"{workload.name}-{self._number}"
        pod = self.fake.pod(
            name,
            node,
            owner=workload,
            cpu="500m",
            memory="1Gi",
            created=int(self.clock.wall()),
            spec={"schedulerName": "koord-scheduler"},  # which MigrationController asks for
        )
        self._loads[pod.key] = load

    def _report(self) -> None:
        hours = (self.clock.wall() - 1_700_000_000.0) / 3600
        for key, load in self._loads.items():
            uses = {"cpu": f"{round(load.at(hours) * 1000)}m", "memory": int(load.cores * GI)}
            self.fake._uses[key] = uses  # what the reports say
        self.fake.report()

    def _leave_and_come(self) -> None:
        """Pods that were evicted are gone at the first step after, and replaced one later."""
        now = self.clock.wall()
        for due, pod in [one for one in self._due if one[0] <= now]:
            self._due.remove((due, pod))
            self._replace(pod)
        for due, pod in [one for one in self._ending if one[0] <= now]:
            self._ending.remove((due, pod))
            self._gone(pod)
        ending = [pod for _, pod in self._ending]
        for one in list(self.services.migrations.by_uid.values()):
            leaves = self.state.pod(one.pod)
            assert leaves is not None
            if leaves in ending:
                continue
            if self._graceful:
                leaves = structs_replace(leaves, deleting=True)
                self.state.put(kinds.POD, leaves)
                self.fake._uses[leaves.key] = {"cpu": 0, "memory": 0}
                self._ending.append((now + 3 * STEP, leaves))
                self._replace(leaves)
            else:
                self._gone(leaves)
                self._due.append((now + STEP, leaves))

    def _gone(self, pod: ClusterPod) -> None:
        self.fake.delete("pod", pod.key)
        self.services.migrations.end(pod.uid)

    def _replace(self, pod: ClusterPod) -> None:
        workload = self.state.workloads.of(pod)
        assert workload is not None
        self._create(workload, self._calmest(), self._loads.pop(pod.key))

    def _calmest(self) -> str:
        nodes = (node.name for node in self.state.nodes())
        return min(nodes, key=lambda name: (self.fake.usage(name)["cpu"], name))
