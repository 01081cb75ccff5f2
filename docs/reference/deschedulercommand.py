"""docs/koord-descheduler.md."""

import tempfile
from pathlib import Path

from koord.component.http.exposition import Exposition
from koord.util.simulatedclock import SimulatedClock
from koord_descheduler.daemon.run import FAMILIES, Daemon, connect_daemon, load_settings, new_flags
from koord_descheduler.framework.evictor import UNSUFFIXED_COUNTERS
from koord_descheduler.framework.interfaces import EvictPlugin
from koord_descheduler.framework.profile import PluginRegistry
from reference.commands import ACCESS, control_plane_page, families_table

_INTRO = """
One process of the control plane: it follows the cluster, and while it is the leader runs the
profiles of its [configuration](descheduler-configuration.md), a cycle every
`deschedulingInterval`. `koord-descheduler plan` shows, for a cluster or a dump of one, what a
cycle would do, `koord-descheduler explain` what the last ones did: [planning](planning.md).
`koord-descheduler record` and `replay` play another configuration on what a cluster did:
[backtest](backtest.md). How it is run and watched: [operations](operations.md#koord-descheduler).
"""
_FLAGS = """
The syntax is that of Kubernetes' own programs: `--name=value`, `--name value`, `-v 4`; a bool may
stand alone; `_` is as good as `-`. Durations are Go's. There are no other arguments. Flags of
leader election that are given win over the file; `--address` and `--port` count only without
`--config`.
"""
_ENDPOINTS = {
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
    return control_plane_page(
        "koord-descheduler",
        _INTRO,
        flags=_FLAGS,
        rows=new_flags()[0].describe(),
        endpoints=_ENDPOINTS,
        http=_HTTP,
        metrics=_METRICS,
        families=families_table(descheduler_exposition(), UNSUFFIXED_COUNTERS),
    )


def descheduler_exposition() -> Exposition:
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
