"""docs/koord-scheduler.md."""

import tempfile
from pathlib import Path

from koord.component.http.exposition import Exposition
from koord.component.plugins.discovery import discover
from koord.util.simulatedclock import SimulatedClock
from koord_scheduler.cli.daemon import FAMILIES
from koord_scheduler.daemon.run import Daemon, connect_daemon
from koord_scheduler.daemon.settings import load_settings, new_flags
from koord_scheduler.features import GATES
from reference.commands import ACCESS, families_table, flags_table
from reference.markdown import code, page, table

_INTRO = """
One process of the control plane: it follows the cluster, and while it is the leader schedules the
pods of the profiles of its [configuration](scheduler-configuration.md). What it is for, and how it
is run: [scheduler](scheduler.md).
"""
_EXIT = {
    "0": "SIGTERM or SIGINT came: the lease is released, or was never held; or "
    "`--write-config-to`, `--help` or `--version` is done",
    "1": "the lease was lost; the start failed (no API server is configured, an address is in use, "
    "a plugin cannot be made); or the stop came with `--leader-elect=false`",
    "2": "a flag or the file cannot be used; all that is wrong in the file is named",
}
_FLAGS = """
The syntax is that of Kubernetes' own programs: `--name=value`, `--name value`, `-v 4`; a bool may
stand alone; `_` is as good as `-`. Durations are Go's. There are no other arguments. Flags of
leader election that are given win over the file.
"""
_INERT = """
Accepted, and checked, but without effect; a flag that is set gets one warning
(`flags.without_effect`).
"""
_GATES = """
`--feature-gates` takes these. A gate that is switched on and whose feature is not built gets one
warning (`gates.not_built`).
"""
_ENDPOINTS = {
    "`/healthz`": "`ok`, or what is wrong; 503 while a part is unhealthy: the leader has not "
    "renewed its lease for its duration and 20 s, or a kind was not listed yet. `?verbose`, "
    "`?format=json`",
    "`/healthz/leaderElection`, `/healthz/ping`": "one check alone",
    "`/livez`": "200 while the process turns",
    "`/readyz`": "200 once the cluster is known",
    "`/metrics`": "the families below; text 0.0.4 or OpenMetrics",
    "`/configz`": "the configuration in force as JSON, under `componentconfig`, without keys of "
    "certificates",
    "`PUT /debug/flags/s`, `PUT /debug/flags/f`": "sets `--debug-scores` (a number) and "
    "`--debug-filters` (`true` or `false`), which is the body; for clients on this machine alone",
}
_HTTP = """
Plain HTTP is on `--address` and `--port`, by default on this machine alone, HTTPS on
`--bind-address` and `--secure-port` if `--tls-cert-file` is given. All may read metrics and health;
`/configz` is for clients on this machine, and for bearer tokens whose owner may `get` that
nonResourceURL.
"""
_METRICS = """
Names are kube-scheduler's; `leader_election_*` has that of Kubernetes' components. Plugins add
their own. Once plugins are made there are also the gauges `scheduler_pending_pods{queue}`,
`scheduler_unschedulable_pods{plugin,profile}` and `scheduler_cache_size{type}`.
"""


def scheduler_command_page() -> str:
    """The whole page."""
    rows = new_flags()[0].describe()
    gates = (
        [code(name), str(spec.stage), str(spec.default).lower()]
        for name, spec in sorted(GATES.items())
    )
    return page(
        "koord-scheduler",
        _INTRO,
        "## Exit status",
        table(("Status", "When"), _EXIT.items()),
        "## Flags",
        _FLAGS,
        flags_table(row for row in rows if not row.inert),
        "## Flags accepted for compatibility",
        _INERT,
        flags_table(row for row in rows if row.inert),
        "## Feature gates",
        _GATES,
        table(("Gate", "Stage", "Default"), gates),
        "## HTTP",
        _HTTP,
        table(("Path", "Answer"), _ENDPOINTS.items()),
        "## Metrics",
        _METRICS,
        families_table(_exposition()),
    )


def _exposition() -> Exposition:
    """The metrics of a daemon that was built, and did not run."""
    clock = SimulatedClock()
    exposition = Exposition(FAMILIES, clock=clock)
    with tempfile.TemporaryDirectory() as directory:
        access = Path(directory, "kubeconfig")
        access.write_text(ACCESS)
        settings = load_settings([], {"KUBECONFIG": str(access)}, discover=discover)
        connection = connect_daemon(settings, exposition, clock, "x")
        Daemon(settings, connection, exposition, clock, "x")
    return exposition
