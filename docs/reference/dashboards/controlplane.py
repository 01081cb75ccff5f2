"""Dashboards on koord-descheduler, koord-manager and koord-scheduler."""

from reference.dashboards.board import Board, Panel, Query, Section

_RATE = "[$__rate_interval]"


def _quantiles(histogram: str, legend: str = "", by: str = "le") -> tuple[Query, ...]:
    return tuple(
        Query(
            f"histogram_quantile({share}, sum by ({by}) (rate({histogram}_bucket{_RATE})))",
            f"{legend}{words}",
        )
        for share, words in (("0.5", "half"), ("0.99", "99 %"))
    )


def _own(prefix: str, job: str) -> Section:
    selector = f'job=~"(.*/)?{job}"'
    return Section(
        "The process",
        (
            Panel(
                "Leader",
                "1 for the replica that leads.",
                "short",
                (
                    Query(
                        f"leader_election_master_status{{{selector}}}",
                        "{{instance}} {{name}}",
                    ),
                ),
            ),
            Panel(
                "CPU",
                "Cores in use; one is the most that a replica can have.",
                "short",
                (Query(f"rate(process_cpu_seconds_total{{{selector}}}{_RATE})", "{{instance}}"),),
            ),
            Panel(
                "Memory",
                "Memory in use.",
                "bytes",
                (Query(f"process_resident_memory_bytes{{{selector}}}", "{{instance}}"),),
            ),
            Panel(
                "Lateness",
                "How late timers of the event loop come.",
                "s",
                _quantiles(f"{prefix}_event_loop_lag_seconds"),
            ),
            Panel(
                "Requests",
                "Requests to the API server a second, by verb and status.",
                "reqps",
                (
                    Query(
                        f"sum by (verb, code) (rate({prefix}_kube_requests_total{_RATE}))",
                        "{{verb}} {{code}}",
                    ),
                ),
            ),
        ),
    )


DESCHEDULER_BOARD = Board(
    "koord-descheduler",
    "koord-descheduler",
    "What it moves, what keeps it from moving, and what came of it.",
    (),
    (
        Section(
            "Moves",
            (
                Panel(
                    "Cycle",
                    "Time of a descheduling cycle.",
                    "s",
                    _quantiles("descheduler_cycle_duration_seconds"),
                ),
                Panel(
                    "Evictions",
                    "Pods evicted, by plugin and result.",
                    "short",
                    (
                        Query(
                            "sum by (strategy, result) "
                            f"(increase(descheduler_pods_evicted{_RATE}))",
                            "{{strategy}} {{result}}",
                        ),
                    ),
                    sometimes="no pod was evicted yet",
                ),
                Panel(
                    "Denied",
                    "Evictions that a limit did not allow.",
                    "short",
                    (
                        Query(
                            f"sum by (limit) (increase(descheduler_evictions_denied_total{_RATE}))",
                            "{{limit}}",
                        ),
                    ),
                    sometimes="no limit was reached yet",
                ),
                Panel(
                    "What came of it",
                    "Evictions for load, by whether they relieved the node.",
                    "short",
                    (
                        Query(
                            "sum by (outcome) "
                            f"(increase(descheduler_eviction_outcomes_total{_RATE}))",
                            "{{outcome}}",
                        ),
                    ),
                    sometimes="no pod was evicted for load yet",
                ),
                Panel(
                    "Paused workloads",
                    "Workloads that are left alone, as their evictions did not relieve.",
                    "short",
                    (Query("max(descheduler_paused_workloads)", "workloads"),),
                ),
                Panel(
                    "Rounds of plugins",
                    "Rounds by plugin and outcome.",
                    "short",
                    (
                        Query(
                            "sum by (plugin, outcome) "
                            f"(increase(descheduler_plugin_rounds_total{_RATE}))",
                            "{{plugin}} {{outcome}}",
                        ),
                    ),
                ),
            ),
        ),
        _own("descheduler", "koord-descheduler"),
    ),
)

MANAGER_BOARD = Board(
    "koord-manager",
    "koord-manager",
    "What nodes offer to batch and mid pods, and how soon after a report.",
    (),
    (
        Section(
            "Nodes",
            (
                Panel(
                    "CPU",
                    "Cores that all nodes offer, by resource.",
                    "short",
                    (
                        Query(
                            "sum by (resource) (slo_controller_node_extended_resource_"
                            'allocatable_internal{unit="core",resource=~".*cpu"})',
                            "{{resource}}",
                        ),
                    ),
                ),
                Panel(
                    "Memory",
                    "Memory that all nodes offer, by resource.",
                    "bytes",
                    (
                        Query(
                            "sum by (resource) (slo_controller_node_extended_resource_"
                            'allocatable_internal{unit="byte"})',
                            "{{resource}}",
                        ),
                    ),
                ),
                Panel(
                    "Reports",
                    "Nodes where colocation is enabled, and those of them whose report is missing, "
                    "old or doubtful, or whose pods hold more than is offered.",
                    "short",
                    (Query("max by (state) (slo_controller_nodes)", "{{state}}"),),
                ),
            ),
        ),
        Section(
            "Writing",
            (
                Panel(
                    "Patches",
                    "Patches of nodes and zones a second, by outcome.",
                    "ops",
                    (
                        Query(
                            "sum by (status, reason) "
                            f"(rate(slo_controller_node_resource_reconcile_count{_RATE}))",
                            "{{status}} {{reason}}",
                        ),
                    ),
                ),
                Panel(
                    "From report to node",
                    "Time from a report's arrival to the patch of its node.",
                    "s",
                    _quantiles("slo_controller_node_resource_patch_latency_seconds"),
                ),
                Panel(
                    "Specs",
                    "Writes of NodeMetrics and NodeSLOs a second, by outcome.",
                    "ops",
                    (
                        Query(
                            "sum by (status) "
                            f"(rate(slo_controller_nodemetric_reconcile_count{_RATE}))",
                            "NodeMetric {{status}}",
                        ),
                        Query(
                            "sum by (status) "
                            f"(rate(slo_controller_nodeslo_reconcile_count{_RATE}))",
                            "NodeSLO {{status}}",
                        ),
                    ),
                ),
                Panel(
                    "Failures of plugins",
                    "Failures a second, by plugin.",
                    "ops",
                    (
                        Query(
                            "sum by (plugin) "
                            f"(rate(slo_controller_node_resource_run_plugin_status{_RATE}))",
                            "{{plugin}}",
                        ),
                    ),
                    sometimes="no plugin has failed",
                ),
            ),
        ),
        _own("slo_controller", "koord-manager"),
    ),
)

SCHEDULER_BOARD = Board(
    "koord-scheduler",
    "koord-scheduler",
    "How pods come to nodes, how fast, and what keeps them waiting.",
    (),
    (
        Section(
            "Pods",
            (
                Panel(
                    "Attempts",
                    "Attempts to schedule a second, by result.",
                    "ops",
                    (
                        Query(
                            f"sum by (result) (rate(scheduler_schedule_attempts_total{_RATE}))",
                            "{{result}}",
                        ),
                    ),
                ),
                Panel(
                    "Waiting",
                    "Pending pods by queue.",
                    "short",
                    (Query("max by (queue) (scheduler_pending_pods)", "{{queue}}"),),
                    stacked=True,
                ),
                Panel(
                    "Rejected by",
                    "Unschedulable pods, by each plugin that rejected them.",
                    "short",
                    (Query("max by (plugin) (scheduler_unschedulable_pods)", "{{plugin}}"),),
                ),
                Panel(
                    "From queue to node",
                    "Time from a pod's coming into the queue until it is bound.",
                    "s",
                    _quantiles("scheduler_pod_scheduling_sli_duration_seconds"),
                ),
                Panel(
                    "One attempt",
                    "Time of an attempt, its binding included.",
                    "s",
                    _quantiles("scheduler_scheduling_attempt_duration_seconds"),
                ),
                Panel(
                    "Search",
                    "Time of filters and scores over all nodes.",
                    "s",
                    _quantiles("scheduler_scheduling_algorithm_duration_seconds"),
                ),
            ),
        ),
        Section(
            "Plugins",
            (
                Panel(
                    "Extension points",
                    "Time of all plugins of a point, one in a hundred is longer.",
                    "s",
                    (
                        Query(
                            "histogram_quantile(0.99, sum by (le, extension_point) (rate("
                            f"scheduler_framework_extension_point_duration_seconds_bucket{_RATE})))",
                            "{{extension_point}}",
                        ),
                    ),
                ),
                Panel(
                    "Slowest plugins",
                    "Time of a plugin at a point, one in a hundred is longer; ten highest.",
                    "s",
                    (
                        Query(
                            "topk(10, histogram_quantile(0.99, sum by (le, plugin, "
                            "extension_point) (rate("
                            f"scheduler_plugin_execution_duration_seconds_bucket{_RATE}))))",
                            "{{plugin}} {{extension_point}}",
                        ),
                    ),
                ),
                Panel(
                    "Preemptions",
                    "Attempts to preempt a second.",
                    "ops",
                    (Query(f"sum(rate(scheduler_preemption_attempts_total{_RATE}))", "attempts"),),
                ),
                Panel(
                    "Traffic of nodes",
                    "Nodes by what NetworkTraffic knows of them.",
                    "short",
                    (Query("max by (state) (scheduler_network_traffic_nodes)", "{{state}}"),),
                    sometimes="no profile has NetworkTraffic",
                ),
                Panel(
                    "Cache",
                    "Nodes, pods and assumed pods that the leader knows.",
                    "short",
                    (Query("max by (type) (scheduler_cache_size)", "{{type}}"),),
                ),
            ),
        ),
        _own("scheduler", "koord-scheduler"),
    ),
)
