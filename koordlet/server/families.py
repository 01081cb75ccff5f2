"""Which metric families go where, and a registry that does without those that fail."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

# Koordinator's counters: their names have no `_total`. Text 0.0.4 calls them counters all the same;
# OpenMetrics, which does not know such counters, calls them unknown.
UPSTREAM_COUNTERS = frozenset(
    {
        "koordlet_collect_node_cpu_info_status",
        "koordlet_collect_node_numa_info_status",
        "koordlet_collect_node_local_storage_info_status",
        "koordlet_pod_eviction",
        "koordlet_pod_eviction_detail",
        "koordlet_core_sched_cookie_manage_status",
    }
)

# Families made by collectors and the reporter that Koordinator keeps in its internal registry; all
# other families that they make are for users and belong to the external one.
INTERNAL_FAMILIES = UPSTREAM_COUNTERS | {
    "koordlet_start_time",
    "koordlet_node_used_cpu_cores",
    "koordlet_node_used_memory_bytes",
    "koordlet_be_suppress_cpu_cores",
    "koordlet_be_suppress_ls_used_cpu_cores",
    "koordlet_be_suppress_be_used_cpu_cores",
    "koordlet_container_scaled_cfs_burst_us",
    "koordlet_container_scaled_cfs_quota_us",
    "koordlet_cpuset_share_pool_cpu_cores",
    "koordlet_cpuset_be_share_pool_cpu_cores",
    "koordlet_cpuset_share_pool_info",
    "koordlet_cpuset_be_share_pool_info",
    "koordlet_node_predicted_resource_reclaimable",
    "koordlet_node_predicted_resource_peak",
    "koordlet_node_metric_node_usage",
    "koordlet_node_metric_system_usage",
    "koordlet_node_metric_numa_node_usage",
    "koordlet_node_metric_numa_system_usage",
    "koordlet_host_application_resource_usage",
    "koordlet_container_core_sched_cookie",
    "koordlet_container_oom_score_adj",
}

Failed = Callable[[str, Exception], None]
"""Told the name of a source or family that could not be exported, and why."""


class FamilySource(Protocol):
    """What makes metric families on demand: a collector, the reporter. Asked on any thread."""

    name: str

    def families(self) -> Iterable[Metric]:
        """Prometheus families of the latest state; may be empty."""


class IsolatingRegistry(CollectorRegistry):
    """A registry that goes without a collector that fails, instead of failing as a whole."""

    def __init__(self, failed: Failed) -> None:
        super().__init__()
        self._failed = failed
        self._collectors: dict[Collector, None] = {}  # in order of registration

    def register(self, collector: Collector) -> None:
        super().register(collector)
        self._collectors[collector] = None

    def unregister(self, collector: Collector) -> None:
        super().unregister(collector)
        self._collectors.pop(collector, None)

    def collect(self) -> Iterator[Metric]:
        """Families of the collectors that work; all or nothing of each."""
        for collector in list(self._collectors):
            try:
                families = list(collector.collect())
            except Exception as err:
                self._failed(type(collector).__name__, err)
            else:
                yield from families
