"""docs/koord-scheduler.md."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import Metric

from koord.component.http.exposition import Exposition
from koord.component.plugins.discovery import discover
from koord.util.simulatedclock import SimulatedClock
from koord_scheduler.daemon.run import FAMILIES, Daemon, connect_daemon
from koord_scheduler.daemon.settings import GATES, load_settings, new_flags
from koord_scheduler.framework.preemptions import PreemptionMetrics
from koord_scheduler.scheduling.metrics import content_families
from koord_scheduler_plugins.coscheduling.rounds import GangMetrics
from koord_scheduler_plugins.elastic_quota.revoke import RevokeMetrics
from koord_scheduler_plugins.elastic_quota.status import QuotaMetrics
from koord_scheduler_plugins.network_traffic import TrafficMetrics
from koord_scheduler_plugins.reservation.serving import ReservationMetrics
from reference.commands import ACCESS, control_plane_page, families_table
from reference.markdown import code, table

_INTRO = """
One process of the control plane: it follows the cluster, and while it is the leader schedules the
pods of the profiles of its [configuration](scheduler-configuration.md). What it is for, and how it
is run: [scheduler](scheduler.md).
"""
_FLAGS = """
The syntax is that of Kubernetes' own programs: `--name=value`, `--name value`, `-v 4`; a bool may
stand alone; `_` is as good as `-`. Durations are Go's. There are no other arguments. Flags of
leader election that are given win over the file.
"""
_GATES = """
`--feature-gates` takes these. A gate that is switched on and whose feature is not built gets one
warning (`gates.not_built`).
"""
_ENDPOINTS = {
    "`/configz`": "the configuration in force as JSON, under `componentconfig`, without keys of "
    "certificates",
    "`/explain?pod=NAMESPACE/NAME`": "where a pod is, or why it is nowhere, as JSON; see "
    "[placement](placement.md#explain)",
    "`/apis/v1/__services__`": "on the leader, the paths below it that there are; on another "
    "replica 503",
    "`/apis/v1/nodes/NAME`": "on the leader, what is counted on a node",
    "`/apis/v1/plugins/PLUGIN/...`": "on the leader, what a plugin answers",
    "`PUT /debug/flags/s`, `.../f`, `.../d`, `.../db`": "sets `--debug-scores` (a number), "
    "`--debug-filters`, `--debug-diagnosis` and `--debug-diagnosis-blocking` (`true` or `false`), "
    "which is the body; for clients on this machine alone",
}
_HTTP = """
Plain HTTP is on `--address` and `--port`, by default on this machine alone, HTTPS on
`--bind-address` and `--secure-port` if `--tls-cert-file` is given. All may read metrics and health;
`/configz`, `/explain` and `/apis/v1` are for clients on this machine, and for bearer tokens whose
owner may `get` that nonResourceURL.
"""
_METRICS = """
Names are kube-scheduler's; `leader_election_*` has that of Kubernetes' components. Plugins add
their own; `scheduler_preemption_*` and `scheduler_network_traffic_*` are there while a profile has
DefaultPreemption or [NetworkTraffic](network-traffic.md).
"""


def scheduler_command_page() -> str:
    """The whole page."""
    gates = (
        [code(name), str(spec.stage), str(spec.default).lower()]
        for name, spec in sorted(GATES.items())
    )
    return control_plane_page(
        "koord-scheduler",
        _INTRO,
        flags=_FLAGS,
        rows=new_flags()[0].describe(),
        endpoints=_ENDPOINTS,
        http=_HTTP,
        metrics=_METRICS,
        families=families_table(scheduler_exposition()),
        more=("## Feature gates", _GATES, table(("Gate", "Stage", "Default"), gates)),
    )


def scheduler_exposition() -> Exposition:
    """The metrics of a daemon that was built, and did not run, and of plugins that ship."""
    clock = SimulatedClock()
    exposition = Exposition(FAMILIES, clock=clock)
    with tempfile.TemporaryDirectory() as directory:
        access = Path(directory, "kubeconfig")
        access.write_text(ACCESS)
        settings = load_settings([], {"KUBECONFIG": str(access)}, discover=discover)
        connection = connect_daemon(settings, exposition, clock, "x")
        Daemon(settings, connection, exposition, clock, "x")
    own = (
        GangMetrics,
        PreemptionMetrics,
        QuotaMetrics,
        ReservationMetrics,
        RevokeMetrics,
        TrafficMetrics,
    )
    for of_plugin in own:
        of_plugin(exposition.internal)
    exposition.internal.register(_Contents())
    return exposition


class _Contents:
    """The other parts of a running scheduler."""

    def collect(self) -> Iterable[Metric]:
        return content_families()
