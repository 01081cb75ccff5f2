"""What koord-manager exports."""

import tempfile
from pathlib import Path

from koord.component.http.exposition import Exposition
from koord.util.simulatedclock import SimulatedClock
from koord_manager.daemon.run import FAMILIES, Daemon, connect_daemon
from koord_manager.daemon.settings import load_settings
from reference.commands import ACCESS

_WEBHOOK = "--webhook-bind-address=127.0.0.1:9876"  # its metrics are there when it is on


def manager_exposition() -> Exposition:
    """The metrics of a daemon that was built, and did not run."""
    clock = SimulatedClock()
    exposition = Exposition(FAMILIES, clock=clock)
    with tempfile.TemporaryDirectory() as directory:
        access = Path(directory, "kubeconfig")
        access.write_text(ACCESS)
        environ = {"KUBECONFIG": str(access)}
        settings = load_settings([_WEBHOOK], environ, discover=lambda registry: ())
        connection = connect_daemon(settings, exposition, clock, "x")
        Daemon(settings, connection, exposition, clock, "x")
    return exposition
