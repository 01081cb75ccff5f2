"""A node with one latency-sensitive and one best-effort pod, whose CPU usage a test decides."""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from koord.api.kubelet import KubeletConfig
from koord.api.machine import (
    NODE_CPU_INFO,
    Cpu,
    CpuBasics,
    CpuTopology,
    Machine,
    NodeCpuInfo,
    NumaMemory,
)
from koord.api.node import Node
from koord.api.nodeslo import merge_nodeslo
from koord.api.qos import QOS_LABEL, KubeQoS
from koordlet.executor.kernel.view import watch_with
from koordlet.plugin import PodMeta, kinds, resources
from koordlet.plugin.kernel import Kernel, Resource, WatchedValue
from koordlet.plugin.testing import FakeHost, PluginHarness, SimulatedClock, make_pod
from koordlet.rules.node_topology import KubeletFacts, NodeTopology, TopologyInputs, node_topology
from koordlet_plugins.be_cpu_suppress import GATE, BECPUSuppress

STEP = 0.05  # simulated seconds in which usage stays the same
BE = "kubepods/besteffort"
FILES = {
    1: {
        "quota": "cpu/{}/cpu.cfs_quota_us",
        "cpus": "cpuset/{}/cpuset.cpus",
        "idle": "cpu/{}/cpu.idle",
    },
    2: {"quota": "{}/cpu.max", "cpus": "{}/cpuset.cpus", "idle": "{}/cpu.idle"},
}


class CountingKernel:
    """The kernel of a fake host, but that its counters of CPU time cost no file."""

    def __init__(self, kernel: Kernel, clock: SimulatedClock) -> None:
        self._kernel = kernel
        self._clock = clock
        self._used = {BE: 0.0, "kubepods": 0.0, "": 0.0}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def count(self, be: float, ls: float, system: float) -> None:
        """Let so many CPU seconds be used."""
        for group, seconds in ((BE, be), ("kubepods", be + ls), ("", be + ls + system)):
            self._used[group] += seconds

    async def read_many(
        self, reads: Sequence[tuple[Resource[Any], str]]
    ) -> list[WatchedValue | None]:
        if reads[0][0] is not resources.CPU_USAGE:
            return await self._kernel.read_many(reads)
        now = self._clock.monotonic()
        return [WatchedValue(round(self._used[group] * 1e9), now) for _, group in reads]

    async def watch(self, *watch: Any) -> bool:
        return await watch_with(self, self._clock, *watch)


class SuppressedNode:
    """`async with` it; usage is in cores and goes on until the next `use`."""

    def __init__(
        self,
        directory: Path,
        version: int,
        *,
        cpus: int = 2,
        policy: str = "cfsQuota",
        pods: tuple[PodMeta, ...] | None = None,
        **options: Any,
    ) -> None:
        self.host = FakeHost(directory, version, cpus=cpus)
        self.host.add_pod("be", KubeQoS.BEST_EFFORT)
        ls = make_pod("ls", labels={QOS_LABEL: "LS"})
        be = make_pod("be", labels={QOS_LABEL: "BE"}, qos=KubeQoS.BEST_EFFORT)
        plugin = BECPUSuppress()
        self.harness = PluginHarness(
            plugin,
            host=self.host,
            pods=(ls, be) if pods is None else pods,
            **{"gates": [GATE], **options},
        )
        self._kernel = CountingKernel(plugin.kernel, self.harness.clock)
        plugin.kernel = self._kernel
        self.set_node(capacity={"cpu": str(cpus)}, allocatable={"cpu": str(cpus)})
        self.set_cpus(tuple(Cpu(0, 0, n, n) for n in range(cpus)))
        self.set_slo(policy=policy)
        self._second: deque[tuple[float, float, float]] = deque(maxlen=round(1 / STEP))
        self.use()

    async def __aenter__(self) -> "SuppressedNode":
        self.measure()
        await self.harness.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.harness.__aexit__(*error)

    def set_node(self, **fields: Any) -> None:
        self.harness.states.set_node(Node("n1", **fields))

    def set_cpus(self, cpus: tuple[Cpu, ...]) -> None:
        basics = CpuBasics("CPU", "vendor", hyper_threading=False, turbo=False, l3_mask="")
        self.harness.metrics.cache.put(NODE_CPU_INFO, NodeCpuInfo(basics, CpuTopology(cpus)))

    def set_slo(self, *, enable: bool = True, policy: str = "cfsQuota", **more: Any) -> None:
        """The strategy; more: its other fields."""
        section = {"enable": enable, "cpuSuppressPolicy": policy, **more}
        slo, _ = merge_nodeslo({"spec": {"resourceUsedThresholdWithBE": section}})
        self.harness.set_node_slo(slo)

    def use(self, *, ls: float = 0.0, be: float = 0.2, system: float = 0.0) -> None:
        """Have so many cores used from now on."""
        self._use = be, ls, system

    async def run(self, seconds: float) -> None:
        """Let time pass, with counters that run and the mean of the last second as a sample."""
        for _ in range(round(seconds / STEP)):
            self._kernel.count(*(cores * STEP for cores in self._use))
            self.measure()
            await self.harness.advance(STEP)

    async def until(self, condition: Callable[[], bool], limit: float = 5.0) -> float:
        """Return how many seconds it took."""
        for step in range(round(limit / STEP)):
            if condition():
                return step * STEP
            await self.run(STEP)
        raise AssertionError(f"not so after {limit} s")

    def measure(self) -> None:
        self._second.append(self._use)
        be, ls, system = (sum(part) / len(self._second) for part in zip(*self._second, strict=True))
        self.harness.hold(kinds.NODE_CPU_USAGE, ls + be + system)
        self.harness.hold(kinds.POD_CPU_USAGE, ls, "ls")
        self.harness.hold(kinds.POD_CPU_USAGE, be, "be")

    def read(self, name: str, group: str = BE) -> str:
        """What a kernel file says now."""
        return self.host.read("cgroup/" + FILES[self.host.version][name].format(group))

    @property
    def quota(self) -> float:
        """Cores that best-effort pods may use; infinite without a quota."""
        text = self.read("quota").split()[0]
        return float("inf") if text in ("-1", "max") else int(text) / 100_000

    @property
    def changes(self) -> int:
        """How often a value was written, or in dry-run would have been."""
        return sum(change.what in ("set", "would_set") for change in self.harness.changes)

    def gauge(self, name: str, **labels: str) -> float | None:
        full = f"koordlet_be_suppress_{name}"
        return self.harness.registry.get_sample_value(full, {"node": "n1", **labels})


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def make_node(request, tmp_path) -> Callable[..., SuppressedNode]:
    """Makes a node with that version of cgroups."""
    return lambda **options: SuppressedNode(tmp_path, request.param, **options)


@pytest.fixture
def static_kubelet() -> Callable[..., NodeTopology]:
    """Makes the topology of a node whose kubelet has the static CPU manager policy."""

    def make(cpus: tuple[Cpu, ...]) -> NodeTopology:
        basics = CpuBasics("CPU", "vendor", hyper_threading=False, turbo=False, l3_mask="")
        inputs = TopologyInputs(
            Machine(basics, CpuTopology(cpus), {0: NumaMemory(1), 1: NumaMemory(1)}),
            Node("n1"),
            (),
            KubeletFacts(KubeletConfig(cpu_manager_policy="static", reserved_system_cpus="0")),
        )
        return node_topology(inputs)[0]

    return make
