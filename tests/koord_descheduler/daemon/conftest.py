"""The API server that tests talk to, on simulated time, and replicas of the descheduler."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from koord.util.simulatedclock import SimulatedClock
from tests.support.descheduler.replicas import SHIPPED, Replica, Start
from tests.support.kube.apiserver import ApiServer
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
from tests.support.kube.replicas import replicas


@pytest.fixture
async def start(tmp_path: Path, server: ApiServer, clock: SimulatedClock) -> AsyncIterator[Start]:  # noqa: F811
    """Start replicas; each ends with the test."""

    def make(directory: Path, config: str, *argv: str) -> Replica:
        return Replica(directory, server, clock, config, *argv)

    async with replicas(make, tmp_path, clock, SHIPPED) as start:
        yield start
