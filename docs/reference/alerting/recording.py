"""Recording rules: what is asked over weeks, or of thousands of nodes, computed once a minute."""

from dataclasses import dataclass

_AGENT = 'job=~"(.*/)?koordlet"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One recording rule. name is level:metric:operations, as Prometheus recommends."""

    name: str
    expr: str  # PromQL
    meaning: str


def _p99(histogram: str, window: str, by: str = "") -> str:
    labels = ", ".join(filter(None, (by, "le")))
    return f"histogram_quantile(0.99, sum by ({labels}) (rate({histogram}_bucket[{window}])))"


AGENT_RECORDINGS = (
    Recording(
        name="node:koordlet_cpu_seconds:rate5m",
        expr=f"sum by (node) (rate(process_cpu_seconds_total{{{_AGENT}}}[5m]))",
        meaning="Cores that the agent of a node uses.",
    ),
    Recording(
        name="node:koordlet_event_loop_lag_seconds:p99_5m",
        expr=_p99("koordlet_event_loop_lag_seconds", "5m", "node"),
        meaning="How late timers of the agent are, in seconds.",
    ),
    Recording(
        name="node:koordlet_sampling_pass_seconds:p99_5m",
        expr=_p99("koordlet_sampling_pass_seconds", "5m", "node"),
        meaning="How long a pass over all kernel files takes, in seconds.",
    ),
    Recording(
        name="node:koordlet_pod_cpu_throttled_ratio:max",
        expr="max by (node, qos) (koordlet_pod_cpu_throttled_ratio)",
        meaning="Share of CPU periods in which the pod that is held back most had used up its "
        "quota, by QoS class: whether latency-sensitive pods were throttled, without a series "
        "for each pod.",
    ),
    Recording(
        name="cluster:koordlet_qos_cpu_usage_cores:sum",
        expr="sum by (qos_class) (koordlet_qos_cpu_usage_cores)",
        meaning="Cores that the pods of a Kubernetes QoS class use on all nodes.",
    ),
    Recording(
        name="cluster:koordlet_qos_memory_usage_bytes:sum",
        expr="sum by (qos_class) (koordlet_qos_memory_usage_bytes)",
        meaning="Memory of theirs without page cache.",
    ),
    Recording(
        name="cluster:koordlet_node_used_cpu_cores:sum",
        expr="sum(koordlet_node_used_cpu_cores)",
        meaning="Cores in use on all nodes.",
    ),
    Recording(
        name="cluster:koordlet_be_suppress_cpu_cores:sum",
        expr="sum by (type) (koordlet_be_suppress_cpu_cores)",
        meaning="Cores that best-effort pods may use on all nodes where they are limited.",
    ),
    Recording(
        name="cluster:koordlet_evictions:increase5m",
        expr="sum by (plugin, outcome) (increase(koordlet_evictions_total[5m]))",
        meaning="Decisions about evictions in five minutes.",
    ),
    Recording(
        name="cluster:koordlet_kube_requests:rate5m",
        expr="sum by (verb, code) (rate(koordlet_kube_requests_total[5m]))",
        meaning="Requests of all agents to the API server in a second.",
    ),
)

DESCHEDULER_RECORDINGS = (
    Recording(
        name="cluster:descheduler_cycle_duration_seconds:p99_5m",
        expr=_p99("descheduler_cycle_duration_seconds", "5m"),
        meaning="How long a round takes, in seconds.",
    ),
    Recording(
        name="cluster:descheduler_pods_evicted:increase5m",
        expr="sum by (result) (increase(descheduler_pods_evicted[5m]))",
        meaning="Pods whose eviction was asked for in five minutes.",
    ),
)

MANAGER_RECORDINGS = (
    Recording(
        name="cluster:slo_controller_node_extended_resource_allocatable:sum",
        expr="sum by (resource) (slo_controller_node_extended_resource_allocatable_internal)",
        meaning="What all nodes together offer, in cores and bytes.",
    ),
    Recording(
        name="cluster:slo_controller_node_resource_patch_latency_seconds:p99_5m",
        expr=_p99("slo_controller_node_resource_patch_latency_seconds", "5m"),
        meaning="Seconds from a report's arrival to the patch of its node.",
    ),
)

SCHEDULER_RECORDINGS = (
    Recording(
        name="cluster:scheduler_schedule_attempts:rate5m",
        expr="sum by (result) (rate(scheduler_schedule_attempts_total[5m]))",
        meaning="Attempts to place a pod in a second.",
    ),
    Recording(
        name="cluster:scheduler_pod_scheduling_sli_duration_seconds:p99_5m",
        expr=_p99("scheduler_pod_scheduling_sli_duration_seconds", "5m"),
        meaning="Seconds from a pod's coming into the queue until it is bound.",
    ),
    Recording(
        name="cluster:scheduler_pending_pods:max",
        expr="max by (queue) (scheduler_pending_pods)",
        meaning="Pods that wait; of two replicas, those of the leader.",
    ),
)
