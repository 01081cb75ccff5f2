"""docs/koord-descheduler.md."""

import tempfile
from pathlib import Path

from koord.component.http.exposition import Exposition
from koord.util.simulatedclock import SimulatedClock
from koord_descheduler.cli.daemon import FAMILIES
from koord_descheduler.daemon.run import Daemon, connect_daemon
from koord_descheduler.daemon.settings import load_settings, new_flags
from koord_descheduler.framework.interfaces import EvictPlugin
from koord_descheduler.framework.metrics import UNSUFFIXED_COUNTERS
from koord_descheduler.framework.registry import PluginRegistry
from reference.commands import ACCESS, families_table, flags_table
from reference.markdown import page, table

_INTRO = """
One process of the control plane: it follows the cluster, and while it is the leader runs the
profiles of its [configuration](descheduler-configuration.md), a cycle every
`deschedulingInterval`. `koord-descheduler plan` shows, for a cluster or a dump of one, what a
cycle would do, `koord-descheduler explain` what the last ones did: [planning](planning.md).
`koord-descheduler record` and `replay` play another configuration on what a cluster did:
[backtest](backtest.md). How it is run and watched: [operations](operations.md#koord-descheduler).
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
leader election that are given win over the file; `--address` and `--port` count only without
`--config`.
"""
_INERT = """
Accepted, and checked, but without effect; a flag that is set gets one warning
(`flags.without_effect`).
"""
_ENDPOINTS = {
    "`/healthz`": "`ok`, or what is wrong; 503 while a part is unhealthy: the leader has not "
    "renewed its lease for its duration and 20 s, or a kind was not listed yet. `?verbose`, "
    "`?format=json`",
    "`/healthz/leaderElection`, `/healthz/ping`": "one check alone",
    "`/livez`": "200 while the process turns",
    "`/readyz`": "200 once the cluster is known",
    "`/metrics`": "the families below; text 0.0.4 or OpenMetrics",
    "`/configz`": "the configuration in force as JSON, under `componentconfig`",
    "`/explain?node=NAME`, `/explain?pod=NAMESPACE/NAME`": "what the last cycles decided, as JSON; "
    "see [planning](planning.md#explain)",
}
_HTTP = """
Plain HTTP is on `healthzBindAddress` and `metricsBindAddress` (one listener if they are equal, all
endpoints on both; port 0: none), HTTPS on `--bind-address` and `--secure-port` if
`--tls-cert-file` is given. All may read metrics and health; `/configz` and `/explain` are for
clients on this machine, and for bearer tokens whose owner may `get` that nonResourceURL.
"""
_METRICS = """
The first has Koordinator's name, without `_total`; `leader_election_*` has that of Kubernetes'
components.
"""
_CONFIG = """\
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
profiles:
- name: x
  plugins:
    evict: {disabled: [{name: "*"}], enabled: [{name: X}]}
    filter: {disabled: [{name: "*"}]}
"""


class _Evicts(EvictPlugin):
    """Something must."""

    async def evict(self, pod: object, options: object) -> bool:
        return False


def command_page() -> str:
    """The whole page."""
    rows = new_flags()[0].describe()
    return page(
        "koord-descheduler",
        _INTRO,
        "## Exit status",
        table(("Status", "When"), _EXIT.items()),
        "## Flags",
        _FLAGS,
        flags_table(row for row in rows if not row.inert),
        "## Flags accepted for compatibility",
        _INERT,
        flags_table(row for row in rows if row.inert),
        "## HTTP",
        _HTTP,
        table(("Path", "Answer"), _ENDPOINTS.items()),
        "## Metrics",
        _METRICS,
        families_table(_exposition(), UNSUFFIXED_COUNTERS),
    )


def _exposition() -> Exposition:
    """The metrics of a daemon that was built, and did not run."""
    clock = SimulatedClock()
    exposition = Exposition(FAMILIES, clock=clock)
    with tempfile.TemporaryDirectory() as directory:
        config, access = Path(directory, "config.yaml"), Path(directory, "kubeconfig")
        config.write_text(_CONFIG)
        access.write_text(ACCESS)
        settings = load_settings(
            [f"--config={config}"], {"KUBECONFIG": str(access)}, discover=_discover
        )
        connection = connect_daemon(settings, exposition, clock, "x")
        Daemon(settings, connection, exposition, clock, "x")
    return exposition


def _discover(registry: PluginRegistry) -> tuple[str, ...]:
    registry.register("X", lambda args, handle: _Evicts())
    return ()
