"""Alerts on koordlet."""

from koordlet.qosmanager.admission import PluginState
from reference.alerting.alert import Alert

_JOB = 'job=~"(.*/)?koordlet"'
_OUT = "|".join((PluginState.BROKEN, PluginState.QUARANTINED))

ALERTS = (
    Alert(
        name="KoordletDown",
        expr=f"up{{{_JOB}}} == 0",
        wait="5m",
        severity="critical",
        summary="koordlet at {{ $labels.instance }} has not answered for 5 minutes.",
        meaning="Prometheus cannot scrape the agent of a node. While it does not run, what it "
        "changed stays in force, best-effort pods are neither squeezed nor released, and the "
        "node's NodeMetric gets old; the schedulers stop counting on it when it expires.",
        action="`kubectl -n koordlet-system get pods -o wide` shows whether the pod runs. If it "
        "does, a NetworkPolicy may keep Prometheus out (component `networkpolicy`). The log of "
        "its last start says why it ended: `kubectl logs --previous`.",
    ),
    Alert(
        name="KoordletRestarts",
        expr="changes(koordlet_start_time[1h]) > 3",
        wait="0m",
        severity="warning",
        summary="koordlet at {{ $labels.instance }} has started {{ $value }} times in an hour.",
        meaning="The agent ends and is started again. Each start takes over what the last one "
        "changed; between them nothing is adapted.",
        action="`kubectl describe pod` has the reason: OOMKilled, a failed liveness probe, or an "
        "exit status, which [operations](operations.md) explains. A plugin that blocks the "
        "event loop ends as a failed probe; the log then names it.",
    ),
    Alert(
        name="KoordletReportsFail",
        expr='increase(koordlet_report_rounds_total{outcome="failed"}[15m]) > 0 unless '
        'ignoring(outcome) increase(koordlet_report_rounds_total{outcome="ok"}[15m]) > 0',
        wait="15m",
        severity="warning",
        summary="koordlet at {{ $labels.instance }} cannot report its NodeMetric.",
        meaning="No report has arrived for half an hour. The node's figures are old; "
        "koord-scheduler and koord-descheduler leave it out when they have expired.",
        action="`koordletctl status` in that pod names the error of the part `reporter`; "
        "[troubleshooting](operations.md#troubleshooting) lists them.",
    ),
    Alert(
        name="KoordletForbidden",
        expr="sum without (verb, code) "
        '(increase(koordlet_kube_requests_total{code=~"401|403"}[15m])) > 0',
        wait="15m",
        severity="warning",
        summary="The API server refuses requests of koordlet at {{ $labels.instance }}.",
        meaning="A gate or flag is on whose right is missing, the admission policy forbids a "
        "write, or the token does not hold.",
        action="`koordletctl doctor` in that pod tries each right, and names the component of "
        "`deploy/` that grants it.",
    ),
    Alert(
        name="KoordletPluginOut",
        expr=f'max without (state) (koordlet_plugin_state{{state=~"{_OUT}"}}) == 1',
        wait="10m",
        severity="warning",
        summary="Plugin {{ $labels.plugin }} is out of work at {{ $labels.instance }}.",
        meaning="The plugin cannot be loaded, claims what another one has, failed too often, or "
        "blocked the event loop. What it had changed is restored. Other plugins go on.",
        action="`koordletctl plugins` has the reason. A quarantined plugin comes back when its "
        "gates are switched off and on, or with another version of it.",
    ),
    Alert(
        name="KoordletPluginFails",
        expr="increase(koordlet_plugin_errors_total[15m]) > 5",
        wait="15m",
        severity="warning",
        summary="Plugin {{ $labels.plugin }} fails at {{ $labels.instance }}.",
        meaning="Rounds of the plugin fail again and again; the last good values stay.",
        action="The log has the first error of a series with its stack; `koordletctl plugins` "
        "the latest.",
    ),
    Alert(
        name="KoordletCollectorFails",
        expr='increase(koordlet_collector_rounds_total{outcome=~"failed|late"}[15m]) > 0 unless '
        'ignoring(outcome) increase(koordlet_collector_rounds_total{outcome="ok"}[15m]) > 0',
        wait="15m",
        severity="warning",
        summary="Collector {{ $labels.collector }} has no figures at {{ $labels.instance }}.",
        meaning="Not one round of this collector went well. Its metrics have no samples, and "
        "plugins that need them hold still.",
        action="`koordletctl status` names the file and the error. A kernel that lacks the file "
        "is no failure: such a collector says `unsupported`.",
    ),
    Alert(
        name="KoordletReadsHang",
        expr="koordlet_sampling_threads_given_up > 0",
        wait="10m",
        severity="warning",
        summary="{{ $value }} kernel reads do not return at {{ $labels.instance }}.",
        meaning="A read of a kernel file has hung for minutes: a file system below it, or the "
        "kernel itself. Its group is left out, the others are read.",
        action="`koordletctl status` names the group. See the kernel's log of the node for hung "
        "tasks; a restart of the agent alone does not help.",
    ),
    Alert(
        name="KoordletLoopLags",
        expr="histogram_quantile(0.99, rate(koordlet_event_loop_lag_seconds_bucket[10m])) > 0.25",
        wait="10m",
        severity="warning",
        summary="koordlet at {{ $labels.instance }} is {{ $value }} s late.",
        meaning="Timers of the agent come a quarter of a second late or more: its CPU limit is "
        "too small, the node is out of CPU, or a plugin blocks.",
        action="Compare `rate(process_cpu_seconds_total[5m])` with the container's limit, and "
        "`koordlet_plugin_cpu_seconds_total` by plugin.",
    ),
    Alert(
        name="KoordletWritesRefused",
        expr='increase(koordlet_kernel_writes_total{outcome="refused"}[15m]) > 0',
        wait="30m",
        severity="warning",
        summary="The kernel at {{ $labels.instance }} refuses {{ $labels.resource }}.",
        meaning="Values that plugins ask for are refused: out of the parent's limits, or not "
        "supported. The value before stays.",
        action="`koordletctl explain` shows the place, the value and the kernel's answer.",
    ),
    Alert(
        name="KoordletValuesContested",
        expr='increase(koordlet_kernel_value_changes_total{change=~"foreign|retaken"}[1h]) > 20',
        wait="15m",
        severity="warning",
        summary="Another agent changes what {{ $labels.plugin }} sets at {{ $labels.instance }}.",
        meaning="Values in force were changed from outside more than twenty times in an hour. "
        "Two agents that set the same file make pods' limits swing.",
        action="`koordletctl audit` names the places. Find the other agent: Koordinator's "
        "koordlet, a tuning daemon, or the kubelet's CPU manager; switch one of the two off.",
    ),
    Alert(
        name="KoordletObservesOnly",
        expr="koordlet_observe_only == 1",
        wait="1h",
        severity="info",
        summary="koordlet at {{ $labels.instance }} changes nothing: another agent is there.",
        meaning="Another QoS agent runs on the node, or another koordlet holds the acting lock.",
        action="Intended while you move from Koordinator's koordlet. Otherwise `koordletctl "
        "status` names the other one.",
    ),
    Alert(
        name="KoordletMemoryHigh",
        expr=f"process_resident_memory_bytes{{{_JOB}}} > 200 * 1024 * 1024",
        wait="15m",
        severity="warning",
        summary="koordlet at {{ $labels.instance }} has {{ $value | humanize1024 }}B in memory.",
        meaning="The agent needs about 75 MiB at 150 pods; the container's limit is 256 MiB.",
        action="`koordlet_plugin_memory_growth_bytes` shows which plugin grows. "
        "[Sizing](operations.md#sizing) has the figures by number of pods.",
    ),
    Alert(
        name="KoordletEvictsMany",
        expr="sum without (plugin, reason, outcome) "
        '(increase(koordlet_evictions_total{outcome=~"evicted|killed"}[10m])) > 10',
        wait="0m",
        severity="warning",
        summary="{{ $value | humanize }} pods were evicted at {{ $labels.instance }}.",
        meaning="CPU or memory of the node is short for long, and best-effort pods pay for it. "
        "Each node has a budget an hour; it is not there yet.",
        action="`koordletctl explain` on the node has victims and figures. See whether too much "
        "batch work is placed there: the reclaim ratio of the NodeSLO, or `allocatable` of batch "
        "resources.",
    ),
    Alert(
        name="KoordletEvictionsFail",
        expr="sum without (plugin, reason, outcome) (increase(koordlet_evictions_total"
        '{outcome=~"refused|not_allowed|failed|ignored|over_budget"}[30m])) > 0',
        wait="30m",
        severity="warning",
        summary="koordlet at {{ $labels.instance }} wants to evict pods and cannot.",
        meaning="The node is short of CPU or memory, and PodDisruptionBudgets, missing rights or "
        "the hourly budget keep its best-effort pods.",
        action="`koordletctl explain` names the pods and the reason for each. The component "
        "`evictions` grants the right.",
    ),
    Alert(
        name="NodeMemoryStalls",
        expr='koordlet_node_psi{psi_resource_type="mem",psi_degree="full",psi_precision="avg300"}'
        " > 10",
        wait="10m",
        severity="warning",
        summary="All tasks of {{ $labels.node }} wait for memory {{ $value }} % of the time.",
        meaning="For five minutes, no task could run for a tenth of the time, as all waited for "
        "memory.",
        action="`koordletctl top` shows which pods use it. `BEMemoryEvict` and `MemoryEvict` end "
        "best-effort pods before that.",
    ),
)
