"""Metrics of the CPUs that pods share: their number and their ids, under Koordinator's names."""

from koordlet.plugin.metrics import PluginMetrics, UpstreamGauge
from koordlet.plugin.rules import CpuPool
from koordlet_plugins.cpuset_allocator.rules import Pools

_PREFIX = "koordlet_cpuset_"


class _PoolMetrics:
    """The metrics of one kind of pool."""

    def __init__(self, metrics: PluginMetrics, kind: str, pods: str) -> None:
        self._cores = metrics.upstream_gauge(
            f"{_PREFIX}{kind}_cpu_cores", f"CPUs that {pods} pods share.", ["node"]
        )
        self._info: UpstreamGauge = metrics.upstream_gauge(
            f"{_PREFIX}{kind}_info",
            f"1 for each CPU that {pods} pods share, with the gate PerCPUMetric.",
            ["node", "cpu"],
        )

    def show(self, node: str, pools: tuple[CpuPool, ...], *, per_cpu: bool) -> None:
        cpus = sorted(cpu for pool in pools for cpu in pool.cpus)
        self._cores.replace({(node,): len(cpus)})
        self._info.replace({(node, str(cpu)): 1.0 for cpu in cpus if per_cpu})


class PoolMetrics:
    """Exports the pools, anew only after a change."""

    def __init__(self, metrics: PluginMetrics) -> None:
        self._ls = _PoolMetrics(metrics, "share_pool", "LS")
        self._be = _PoolMetrics(metrics, "be_share_pool", "BE")
        self._shown: tuple[str, Pools, bool] | None = None

    def show(self, node: str, pools: Pools, *, per_cpu: bool) -> None:
        """Export the pools of a node. per_cpu: each CPU, too."""
        if self._shown == (node, pools, per_cpu):
            return
        self._shown = (node, pools, per_cpu)
        self._ls.show(node, pools.ls, per_cpu=per_cpu)
        self._be.show(node, pools.be, per_cpu=per_cpu)
