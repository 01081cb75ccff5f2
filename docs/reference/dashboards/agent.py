"""Dashboards on koordlet: a node, the fleet, the plugins."""

from reference.dashboards.board import Board, Panel, Query, Section, Variable

_JOB = 'job=~"(.*/)?koordlet"'
_AT = 'node="$node"'
_NODE = Variable("node", "koordlet_node_used_cpu_cores", "node")
_PLUGIN = Variable("plugin", "koordlet_plugin_state", "plugin", many=True)
_OF_PLUGIN = 'plugin=~"$plugin"'
_RATE = "[$__rate_interval]"
_GATE = "its gate is off, or the hardware is not there"


def _quantile(share: str, histogram: str, by: str = "le") -> str:
    return f"histogram_quantile({share}, sum by ({by}) (rate({histogram}{_RATE})))"


_USE = Section(
    "Use",
    (
        Panel(
            "CPU",
            "Cores in use: of the node, of the pods of each QoS class, and outside of pods.",
            "short",
            (
                Query(f"koordlet_node_used_cpu_cores{{{_AT}}}", "node"),
                Query(f"koordlet_qos_cpu_usage_cores{{{_AT}}}", "{{qos_class}}"),
                Query(f"koordlet_system_cpu_usage_cores{{{_AT}}}", "system"),
            ),
        ),
        Panel(
            "Memory",
            "Memory in use without page cache, in the same way.",
            "bytes",
            (
                Query(f"koordlet_node_used_memory_bytes{{{_AT}}}", "node"),
                Query(f"koordlet_qos_memory_usage_bytes{{{_AT}}}", "{{qos_class}}"),
                Query(f"koordlet_system_memory_usage_bytes{{{_AT}}}", "system"),
            ),
        ),
        Panel(
            "Best-effort CPU",
            "What best-effort pods may use while they are limited, and what they and others use.",
            "short",
            (
                Query(f"koordlet_be_suppress_cpu_cores{{{_AT}}}", "limit by {{type}}"),
                Query(f"koordlet_be_suppress_be_used_cpu_cores{{{_AT}}}", "best effort"),
                Query(f"koordlet_be_suppress_ls_used_cpu_cores{{{_AT}}}", "others"),
            ),
        ),
        Panel(
            "Pressure of the node",
            "Share of ten seconds in which some or all tasks waited for a resource.",
            "percent",
            (
                Query(
                    f'koordlet_node_psi{{{_AT},psi_precision="avg10"}}',
                    "{{psi_resource_type}} {{psi_degree}}",
                ),
            ),
        ),
        Panel(
            "Pressure by class",
            "The same of the pods of a Kubernetes QoS class, some tasks.",
            "percent",
            (
                Query(
                    f'koordlet_qos_psi{{{_AT},psi_precision="avg10",psi_degree="some"}}',
                    "{{qos_class}} {{psi_resource_type}}",
                ),
            ),
        ),
        Panel(
            "Network",
            "Bytes a second, by interface.",
            "Bps",
            (
                Query(f"koordlet_node_network_receive_bytes_per_second{{{_AT}}}", "in {{device}}"),
                Query(
                    f"koordlet_node_network_transmit_bytes_per_second{{{_AT}}}", "out {{device}}"
                ),
            ),
        ),
        Panel(
            "Packets lost",
            "Packets a second that were dropped or broken.",
            "pps",
            (
                Query(
                    f"rate(koordlet_node_network_receive_drop_total{{{_AT}}}{_RATE})",
                    "in {{device}}",
                ),
                Query(
                    f"rate(koordlet_node_network_transmit_drop_total{{{_AT}}}{_RATE})",
                    "out {{device}}",
                ),
                Query(
                    f"rate(koordlet_node_network_softnet_dropped_total{{{_AT}}}{_RATE})", "backlog"
                ),
            ),
        ),
        Panel(
            "CPU left by prod pods",
            "Cores that prod pods asked for, and by prediction do not need.",
            "short",
            (
                Query(
                    f'koordlet_node_predicted_resource_reclaimable{{{_AT},resource="cpu"}}',
                    "{{predictor}}",
                ),
                Query(
                    f'koordlet_node_predicted_resource_peak{{{_AT},resource="cpu"}}',
                    "peak {{predictor}}",
                ),
            ),
            sometimes="the agent has just started",
        ),
    ),
)
_PODS = Section(
    "Pods",
    (
        Panel(
            "CPU, ten highest",
            "Cores in use.",
            "short",
            (
                Query(
                    f"topk(10, koordlet_pod_cpu_usage_cores{{{_AT}}})",
                    "{{pod_namespace}}/{{pod_name}} {{qos}}",
                ),
            ),
        ),
        Panel(
            "Memory, ten highest",
            "Memory in use without page cache.",
            "bytes",
            (
                Query(
                    f"topk(10, koordlet_pod_memory_usage_bytes{{{_AT}}})",
                    "{{pod_namespace}}/{{pod_name}} {{qos}}",
                ),
            ),
        ),
        Panel(
            "Throttled, ten highest",
            "Share of CPU periods in which the pod had used up its quota.",
            "percentunit",
            (
                Query(
                    f"topk(10, koordlet_pod_cpu_throttled_ratio{{{_AT}}})",
                    "{{pod_namespace}}/{{pod_name}} {{qos}}",
                ),
            ),
        ),
        Panel(
            "Waiting for CPU, ten highest",
            "Share of ten seconds in which some tasks of the pod waited for a CPU.",
            "percent",
            (
                Query(
                    f'topk(10, koordlet_pod_psi{{{_AT},psi_resource_type="cpu",'
                    'psi_precision="avg10",psi_degree="some"})',
                    "{{pod_namespace}}/{{pod_name}}",
                ),
            ),
        ),
        Panel(
            "Evictions",
            "Decisions about evictions, by plugin and outcome.",
            "short",
            (
                Query(
                    "sum by (plugin, outcome) "
                    f"(increase(koordlet_evictions_total{{{_AT}}}{_RATE}))",
                    "{{plugin}} {{outcome}}",
                ),
            ),
            sometimes="no pod was to be evicted yet",
        ),
    ),
)
_HARDWARE = Section(
    "Hardware",
    (
        Panel(
            "CPU of NUMA nodes",
            "Cores in use.",
            "short",
            (Query(f"koordlet_node_numa_cpu_usage_cores{{{_AT}}}", "node {{numa_node_id}}"),),
        ),
        Panel(
            "Memory of NUMA nodes",
            "Memory in use without page cache.",
            "bytes",
            (Query(f"koordlet_node_numa_memory_usage_bytes{{{_AT}}}", "node {{numa_node_id}}"),),
        ),
        Panel(
            "L3 cache",
            "Bytes of an L3 cache that the pods of a class have filled.",
            "bytes",
            (Query(f"koordlet_resctrl_llc_occupancy{{{_AT}}}", "{{qos}} cache {{cache_id}}"),),
            sometimes=_GATE,
        ),
        Panel(
            "Memory bandwidth",
            "Bytes a second to and from memory, by class.",
            "Bps",
            (
                Query(
                    f"rate(koordlet_resctrl_memory_bandwidth{{{_AT}}}{_RATE})",
                    "{{qos}} {{mb_type}} {{cache_id}}",
                ),
            ),
            sometimes=_GATE,
        ),
        Panel(
            "GPU cores",
            "Share of a GPU's cores in use.",
            "percent",
            (Query(f"koordlet_gpu_core_usage_percent{{{_AT}}}", "GPU {{gpu_minor}}"),),
            sometimes=_GATE,
        ),
        Panel(
            "Cold pages",
            "Pages of files that were not used for five minutes or longer.",
            "bytes",
            (Query(f"koordlet_node_memory_cold_page_bytes{{{_AT}}}", "cold"),),
            sometimes=_GATE,
        ),
    ),
)
_OWN = Section(
    "The agent itself",
    (
        Panel(
            "CPU",
            "Cores that the agent uses.",
            "short",
            (Query(f"rate(process_cpu_seconds_total{{{_JOB},{_AT}}}{_RATE})", "agent"),),
        ),
        Panel(
            "Memory",
            "Memory that the agent has.",
            "bytes",
            (Query(f"process_resident_memory_bytes{{{_JOB},{_AT}}}", "agent"),),
        ),
        Panel(
            "Sampling pass",
            "Time that a pass over all kernel files takes.",
            "s",
            (
                Query(_quantile("0.5", f"koordlet_sampling_pass_seconds_bucket{{{_AT}}}"), "half"),
                Query(_quantile("0.99", f"koordlet_sampling_pass_seconds_bucket{{{_AT}}}"), "99 %"),
            ),
        ),
    ),
)

NODE_BOARD = Board(
    "koordlet-node",
    "koordlet: node",
    "One node: what it uses, what its plugins do about it, and what the agent costs.",
    (_NODE,),
    (_USE, _PODS, _HARDWARE, _OWN),
)

FLEET_BOARD = Board(
    "koordlet-fleet",
    "koordlet: fleet",
    "All nodes: which agents run, what fails, where it is tight.",
    (),
    (
        Section(
            "Agents",
            (
                Panel(
                    "Agents",
                    "Agents that answer, and that do not.",
                    "short",
                    (
                        Query(f"count(up{{{_JOB}}} == 1)", "up"),
                        Query(f"count(up{{{_JOB}}} == 0) or vector(0)", "down"),
                    ),
                ),
                Panel(
                    "Versions",
                    "Agents by version, while a rolling update is under way.",
                    "short",
                    (Query("count by (version) (koordlet_build_info)", "{{version}}"),),
                    stacked=True,
                ),
                Panel(
                    "Observing only",
                    "Nodes with another agent, where this one changes nothing.",
                    "short",
                    (Query("sum(koordlet_observe_only)", "nodes"),),
                ),
                Panel(
                    "Plugins by state",
                    "Plugins of all nodes that are switched on.",
                    "short",
                    (
                        Query(
                            'sum by (state) (koordlet_plugin_state{state!="disabled"})',
                            "{{state}}",
                        ),
                    ),
                ),
                Panel(
                    "Reports",
                    "Attempts to report NodeMetric a second, by outcome.",
                    "ops",
                    (
                        Query(
                            f"sum by (outcome) (rate(koordlet_report_rounds_total{_RATE}))",
                            "{{outcome}}",
                        ),
                    ),
                ),
                Panel(
                    "Requests",
                    "Requests of all agents to the API server a second, by status.",
                    "reqps",
                    (
                        Query(
                            f"sum by (code) (rate(koordlet_kube_requests_total{_RATE}))", "{{code}}"
                        ),
                    ),
                    sometimes="agents are standalone",
                ),
                Panel(
                    "CPU of agents",
                    "Cores that an agent uses.",
                    "short",
                    (
                        Query(
                            f"quantile(0.5, rate(process_cpu_seconds_total{{{_JOB}}}{_RATE}))",
                            "half",
                        ),
                        Query(f"max(rate(process_cpu_seconds_total{{{_JOB}}}{_RATE}))", "highest"),
                    ),
                ),
                Panel(
                    "Memory of agents",
                    "Memory that an agent has.",
                    "bytes",
                    (
                        Query(f"quantile(0.5, process_resident_memory_bytes{{{_JOB}}})", "half"),
                        Query(f"max(process_resident_memory_bytes{{{_JOB}}})", "highest"),
                    ),
                ),
            ),
        ),
        Section(
            "Nodes",
            (
                Panel(
                    "CPU of the fleet",
                    "Cores in use by Kubernetes QoS class, of all nodes.",
                    "short",
                    (
                        Query("sum by (qos_class) (koordlet_qos_cpu_usage_cores)", "{{qos_class}}"),
                        Query("sum(koordlet_system_cpu_usage_cores)", "system"),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Busiest nodes",
                    "Cores in use, ten highest.",
                    "short",
                    (Query("topk(10, koordlet_node_used_cpu_cores)", "{{node}}"),),
                ),
                Panel(
                    "Most squeezed",
                    "Nodes whose best-effort pods may use the fewest cores, ten lowest.",
                    "short",
                    (
                        Query(
                            "bottomk(10, min by (node) (koordlet_be_suppress_cpu_cores))",
                            "{{node}}",
                        ),
                    ),
                ),
                Panel(
                    "Memory pressure",
                    "Share of a minute in which all tasks waited for memory, ten highest.",
                    "percent",
                    (
                        Query(
                            'topk(10, koordlet_node_psi{psi_resource_type="mem",'
                            'psi_degree="full",psi_precision="avg60"})',
                            "{{node}}",
                        ),
                    ),
                ),
                Panel(
                    "Evictions",
                    "Pods evicted, by feature.",
                    "short",
                    (
                        Query(
                            "sum by (reason) (increase(koordlet_evictions_total"
                            f'{{outcome=~"evicted|killed"}}{_RATE}))',
                            "{{reason}}",
                        ),
                    ),
                    sometimes="no pod was evicted yet",
                ),
            ),
        ),
    ),
)

PLUGINS_BOARD = Board(
    "koordlet-plugins",
    "koordlet: plugins",
    "The QoS plugins of all nodes: state, cost, and what they change.",
    (_PLUGIN,),
    (
        Section(
            "Plugins",
            (
                Panel(
                    "State",
                    "Nodes by plugin and state.",
                    "short",
                    (
                        Query(
                            "sum by (plugin, state) (koordlet_plugin_state"
                            f'{{{_OF_PLUGIN},state!="disabled"}}) > 0',
                            "{{plugin}} {{state}}",
                        ),
                    ),
                ),
                Panel(
                    "Rounds",
                    "Rounds a second, by outcome.",
                    "ops",
                    (
                        Query(
                            "sum by (plugin, outcome) "
                            f"(rate(koordlet_plugin_rounds_total{{{_OF_PLUGIN}}}{_RATE}))",
                            "{{plugin}} {{outcome}}",
                        ),
                    ),
                ),
                Panel(
                    "CPU",
                    "Cores that the plugin's own code uses, of the node where it is most.",
                    "short",
                    (
                        Query(
                            "max by (plugin) "
                            f"(rate(koordlet_plugin_cpu_seconds_total{{{_OF_PLUGIN}}}{_RATE}))",
                            "{{plugin}}",
                        ),
                    ),
                ),
                Panel(
                    "Errors",
                    "Errors a second.",
                    "ops",
                    (
                        Query(
                            "sum by (plugin) "
                            f"(rate(koordlet_plugin_errors_total{{{_OF_PLUGIN}}}{_RATE}))",
                            "{{plugin}}",
                        ),
                    ),
                ),
                Panel(
                    "Memory",
                    "Bytes by which the process grew while the plugin's code ran, highest node.",
                    "bytes",
                    (
                        Query(
                            "max by (plugin) "
                            f"(koordlet_plugin_memory_growth_bytes{{{_OF_PLUGIN}}})",
                            "{{plugin}}",
                        ),
                    ),
                ),
            ),
        ),
        Section(
            "Kernel values",
            (
                Panel(
                    "Claims",
                    "Values that plugins ask for, by what became of them.",
                    "short",
                    (
                        Query(
                            f"sum by (plugin, state) (koordlet_claims{{{_OF_PLUGIN}}})",
                            "{{plugin}} {{state}}",
                        ),
                    ),
                ),
                Panel(
                    "Changes",
                    "Values that were set, restored, refused, or changed by others, a second.",
                    "ops",
                    (
                        Query(
                            "sum by (plugin, change) (rate(koordlet_kernel_value_changes_total"
                            f"{{{_OF_PLUGIN}}}{_RATE}))",
                            "{{plugin}} {{change}}",
                        ),
                    ),
                ),
                Panel(
                    "Writes",
                    "Writes to the kernel a second, by value and outcome.",
                    "ops",
                    (
                        Query(
                            "sum by (resource, outcome) "
                            f"(rate(koordlet_kernel_writes_total{_RATE}))",
                            "{{resource}} {{outcome}}",
                        ),
                    ),
                ),
                Panel(
                    "Originals on disk",
                    "Changed values whose originals are in the journal.",
                    "short",
                    (Query("sum(koordlet_journal_records)", "values"),),
                ),
            ),
        ),
    ),
)
