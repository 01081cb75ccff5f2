"""The API server that tests talk to, on simulated time, and replicas of the manager."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from koord.component.http.exposition import Exposition
from koord.component.plugins.discovery import discover
from koord.util.simulatedclock import SimulatedClock
from koord_manager.daemon.run import FAMILIES, run_daemon
from koord_manager.daemon.settings import load_settings
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.daemon_flags import kubeconfig
from tests.support.kube.fixtures import (  # noqa: F401 - fixtures
    authority,
    client,
    clock,
    let_pass,
    make_client,
    pass_time,
    server,
    service_account,
)
from tests.support.kube.replicas import DaemonReplica, replicas

CONFIG = """\
apiVersion: manager/v1alpha1
kind: ManagerConfiguration
"""


class Replica(DaemonReplica):
    """One manager."""

    def __init__(
        self, directory: Path, url: str, now: SimulatedClock, config: str, *argv: str
    ) -> None:
        super().__init__(directory, now, Exposition(FAMILIES, clock=now))
        self.config.write_text(config)
        self.access.write_text(kubeconfig(url))
        flags = [f"--config={self.config}", f"--port={self.port}", "--secure-port=0", *argv]
        settings = load_settings(flags, {"KUBECONFIG": str(self.access)}, discover=discover)
        self.run(run_daemon(settings, self.exposition, now, stop=self.stop))


@pytest.fixture
async def start(
    tmp_path: Path,
    server: ApiServer,  # noqa: F811
    clock: SimulatedClock,  # noqa: F811
) -> AsyncIterator[Callable[..., Replica]]:
    """Start replicas; each ends with the test."""

    def make(directory: Path, config: str, *argv: str) -> Replica:
        return Replica(directory, server.url, clock, config, *argv)

    async with replicas(make, tmp_path, clock, CONFIG) as start:
        yield start
