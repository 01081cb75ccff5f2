"""The metric families whose name or place comes from Koordinator's agent."""

from koord.component.http.families import FamilyRules
from koordlet import NAME

# Koordinator's counters: their names have no `_total`.
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

FAMILIES = FamilyRules(
    prefix=NAME, internal=INTERNAL_FAMILIES, unsuffixed_counters=UPSTREAM_COUNTERS
)
