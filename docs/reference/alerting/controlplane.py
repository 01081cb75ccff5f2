"""Alerts on koord-descheduler, koord-manager and koord-scheduler."""

from reference.alerting.alert import Alert

_DESCHEDULER = 'job=~"(.*/)?koord-descheduler"'
_MANAGER = 'job=~"(.*/)?koord-manager"'
_SCHEDULER = 'job=~"(.*/)?koord-scheduler"'

DESCHEDULER_ALERTS = (
    Alert(
        name="KoordDeschedulerDown",
        expr=f"up{{{_DESCHEDULER}}} == 0",
        wait="10m",
        severity="warning",
        summary="koord-descheduler at {{ $labels.instance }} has not answered for 10 minutes.",
        meaning="Prometheus cannot scrape a replica. Pods stay where they are while none leads.",
        action="`kubectl -n koordlet-system describe pod`; exit status 1 is a lost lease or a "
        "failed start, 2 a file that cannot be used ([exit status]"
        "(koord-descheduler.md#exit-status)).",
    ),
    Alert(
        name="KoordDeschedulerNoLeader",
        expr=f"max by (job, name) (leader_election_master_status{{{_DESCHEDULER}}}) == 0",
        wait="10m",
        severity="warning",
        summary="No koord-descheduler leads by the lease {{ $labels.name }}.",
        meaning="All replicas stand by: another program holds the lease, or writing it is refused.",
        action="`kubectl -n koordinator-system get lease koord-descheduler -o yaml` names the "
        "holder.",
    ),
    Alert(
        name="KoordDeschedulerConfigRefused",
        expr='increase(descheduler_config_readings_total{outcome="refused"}[1h]) > 0',
        wait="0m",
        severity="warning",
        summary="koord-descheduler at {{ $labels.instance }} refused its changed file.",
        meaning="The last good configuration stays in force; a restart would fail.",
        action="The log line `config.rejected` has all that is wrong, with lines.",
    ),
    Alert(
        name="KoordDeschedulerIdle",
        expr="increase(descheduler_cycle_duration_seconds_count[1h]) == 0 and on (job, instance) "
        f"leader_election_master_status{{{_DESCHEDULER}}} == 1",
        wait="10m",
        severity="warning",
        summary="koord-descheduler at {{ $labels.instance }} leads, and runs no cycle.",
        meaning="No cycle has ended for an hour: one hangs, or `deschedulingInterval` is longer "
        "than an hour; then silence this alert.",
        action="`/healthz?verbose` names the part; the log has the last `cycle.started`.",
    ),
    Alert(
        name="KoordDeschedulerPluginFails",
        expr='increase(descheduler_plugin_rounds_total{outcome=~"failed|late|blocked"}[30m]) > 0',
        wait="30m",
        severity="warning",
        summary="{{ $labels.plugin }} of profile {{ $labels.profile }} fails.",
        meaning="The plugin raises, takes too long or blocks. The others of the cycle go on.",
        action="The log has the error with its stack; see [writing plugins]"
        "(writing-descheduler-plugins.md) for time limits.",
    ),
    Alert(
        name="KoordDeschedulerEvictionsFail",
        expr="sum without (result, strategy, namespace, node) "
        '(increase(descheduler_pods_evicted{result="error"}[30m])) > 5',
        wait="30m",
        severity="warning",
        summary="koord-descheduler at {{ $labels.instance }} cannot evict pods.",
        meaning="Evictions that passed all limits were refused by the API server.",
        action="`koord-descheduler explain` and the PodMigrationJobs' conditions have the reasons.",
    ),
    Alert(
        name="KoordDeschedulerMovesInVain",
        expr="sum without (outcome) (increase(descheduler_eviction_outcomes_total"
        '{outcome=~"not-relieved|returned"}[6h])) > 10 and '
        "sum without (outcome) (increase(descheduler_eviction_outcomes_total"
        '{outcome=~"not-relieved|returned"}[6h])) > '
        "0.5 * sum without (outcome) (increase(descheduler_eviction_outcomes_total[6h]))",
        wait="30m",
        severity="warning",
        summary="Most evictions of {{ $labels.instance }} relieve no node.",
        meaning="Evicted pods come back to the node, or its load stays. The ledger pauses such "
        "workloads; still, pods are disturbed for nothing.",
        action="See [ledger](ledger.md). Does the scheduler look at load? Thresholds below what "
        "the cluster can reach have this effect, too: `koord-descheduler plan`.",
    ),
)

MANAGER_ALERTS = (
    Alert(
        name="KoordManagerDown",
        expr=f"up{{{_MANAGER}}} == 0",
        wait="10m",
        severity="warning",
        summary="koord-manager at {{ $labels.instance }} has not answered for 10 minutes.",
        meaning="Prometheus cannot scrape a replica. While none leads, nodes keep what they offer, "
        "whatever their prod pods use.",
        action="`kubectl -n koordinator-system describe pod`; exit status 1 is a lost lease or a "
        "failed start, 2 flags or a file that cannot be used.",
    ),
    Alert(
        name="KoordManagerNoLeader",
        expr=f"max by (job, name) (leader_election_master_status{{{_MANAGER}}}) == 0",
        wait="10m",
        severity="warning",
        summary="No koord-manager leads by the lease {{ $labels.name }}.",
        meaning="All replicas stand by: Koordinator's koord-manager holds the lease, or writing it "
        "is refused.",
        action="`kubectl -n koordinator-system get lease koordinator-manager -o yaml` names the "
        "holder; [changing over](manager.md#beside-koordinators-koord-manager).",
    ),
    Alert(
        name="KoordManagerConfigRefused",
        expr="increase(slo_controller_config_map_rejections_total[1h]) > 0",
        wait="0m",
        severity="warning",
        summary="koord-manager at {{ $labels.instance }} refused a part of slo-controller-config.",
        meaning="The key keeps its last good value; a restart begins with its default.",
        action="An event on the ConfigMap and `/healthz?verbose` say what is wrong.",
    ),
    Alert(
        name="KoordManagerPluginFails",
        expr='increase(slo_controller_node_resource_run_plugin_status{status="failed"}[30m]) > 0',
        wait="30m",
        severity="warning",
        summary="Plugin {{ $labels.plugin }} of koord-manager fails.",
        meaning="It raises or takes too long. Nodes keep what they have of it; the others go on.",
        action="The log line `plugin.failed` has the error and a node.",
    ),
    Alert(
        name="KoordManagerWritesFail",
        expr="sum without (reason) (increase(slo_controller_node_resource_reconcile_count"
        '{status="failed"}[15m])) > 5',
        wait="15m",
        severity="warning",
        summary="koord-manager at {{ $labels.instance }} cannot write nodes.",
        meaning="Nodes offer what they offered before.",
        action="`/healthz?verbose` names a node and the answer of the API server.",
    ),
    Alert(
        name="KoordManagerReportsStale",
        expr='max by (job) (slo_controller_nodes{state="stale"}) > 0.1 * '
        'max by (job) (slo_controller_nodes{state="enabled"})',
        wait="15m",
        severity="warning",
        summary="More than a tenth of all nodes have no NodeMetric that counts.",
        meaning="They offer nothing to batch and mid pods.",
        action="See whether koordlet runs there, and `koord-manager explain NODE`.",
    ),
    Alert(
        name="KoordManagerNodesShort",
        expr='max by (job) (slo_controller_nodes{state="short"}) > 0',
        wait="30m",
        severity="info",
        summary="{{ $value }} nodes offer less than their batch and mid pods hold.",
        meaning="No more such pods come there. Agents squeeze those that are there, and evict them "
        "as NodeSLOs say.",
        action="Events `LessThanHeld` and `koord-manager explain NODE` name the pods; a "
        "descheduler moves them.",
    ),
    Alert(
        name="KoordManagerCertificateEnds",
        expr=f"slo_controller_webhook_certificate_expiry_timestamp_seconds{{{_MANAGER}}} > 0 and "
        f"slo_controller_webhook_certificate_expiry_timestamp_seconds{{{_MANAGER}}} - time() "
        "< 14 * 86400",
        wait="1h",
        severity="warning",
        summary="The webhook certificate of {{ $labels.instance }} ends within 14 days.",
        meaning="The leader renews it 30 days before its end, so renewal fails. With an expired "
        "one pods are created as their owners wrote them.",
        action="`/healthz?verbose` says why under `webhook certificate`; see [webhook]"
        "(profiles.md#a-webhook-for-older-api-servers).",
    ),
)

SCHEDULER_ALERTS = (
    Alert(
        name="KoordSchedulerDown",
        expr=f"up{{{_SCHEDULER}}} == 0",
        wait="5m",
        severity="critical",
        summary="koord-scheduler at {{ $labels.instance }} has not answered for 5 minutes.",
        meaning="Prometheus cannot scrape a replica. While none leads, pods of its profiles stay "
        "pending.",
        action="`kubectl -n koordlet-system describe pod`, then the log of the last start.",
    ),
    Alert(
        name="KoordSchedulerNoLeader",
        expr=f"max by (job, name) (leader_election_master_status{{{_SCHEDULER}}}) == 0",
        wait="5m",
        severity="critical",
        summary="No koord-scheduler leads by the lease {{ $labels.name }}.",
        meaning="All replicas stand by; pods of its profiles stay pending.",
        action="Look at the lease's holder; the log line `leader.…` of each replica says why it "
        "does not have it.",
    ),
    Alert(
        name="KoordSchedulerErrors",
        expr='increase(scheduler_schedule_attempts_total{result="error"}[10m]) > 5',
        wait="10m",
        severity="warning",
        summary="Attempts of profile {{ $labels.profile }} end with errors.",
        meaning="A plugin fails, or bindings do. The pods are tried again with growing pauses.",
        action="Events of the pods have the error (`FailedScheduling`), the log the stack.",
    ),
    Alert(
        name="KoordSchedulerBehind",
        expr='min_over_time(scheduler_pending_pods{queue="active"}[10m]) > 500',
        wait="5m",
        severity="warning",
        summary="{{ $value }} pods wait for an attempt at {{ $labels.instance }}.",
        meaning="More pods arrive than the scheduler can look at. A pod waits for minutes.",
        action="`scheduler_plugin_execution_duration_seconds` shows a plugin that is slow; "
        "`rate(process_cpu_seconds_total[5m])` near 1 is the most that one process can. "
        "`percentageOfNodesToScore` makes each attempt shorter.",
    ),
    Alert(
        name="KoordSchedulerPodsUnschedulable",
        expr='min_over_time(scheduler_pending_pods{queue="unschedulable"}[30m]) > 0',
        wait="30m",
        severity="info",
        summary="{{ $value }} pods fit on no node.",
        meaning="For an hour, some pods were rejected on all nodes.",
        action="`koord-scheduler explain POD` says why, and what would help; "
        "`scheduler_unschedulable_pods` which plugins rejected.",
    ),
    Alert(
        name="KoordSchedulerSlow",
        expr="histogram_quantile(0.99, sum without (result, profile) (rate("
        "scheduler_scheduling_attempt_duration_seconds_bucket[10m]))) > 1",
        wait="10m",
        severity="warning",
        summary="Attempts at {{ $labels.instance }} take {{ $value }} s.",
        meaning="One in a hundred attempts takes longer than a second, its binding included.",
        action="`scheduler_kube_request_seconds` shows whether the API server is slow, "
        "`scheduler_framework_extension_point_duration_seconds` which point.",
    ),
    Alert(
        name="KoordSchedulerTrafficUnknown",
        expr="scheduler_network_traffic_newest_age_seconds > 180",
        wait="5m",
        severity="warning",
        summary="The network traffic of nodes is unknown at {{ $labels.instance }}.",
        meaning="NetworkTraffic has had no figures for three minutes, and scores all nodes alike.",
        action="Is Prometheus reachable ([network traffic](network-traffic.md))? The part of "
        "`/healthz?verbose` has the error.",
    ),
)
