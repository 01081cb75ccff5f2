"""The API server that tests talk to, on simulated time, and replicas of the scheduler."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from koord.util.simulatedclock import SimulatedClock
from tests.support.clusters import node
from tests.support.kube.apiserver import ApiServer
from tests.support.kube.fixtures import (  # noqa: F401 - fixtures
    authority,
    clock,
    let_pass,
    pass_time,
    server,
)
from tests.support.kube.replicas import replicas
from tests.support.scheduler.replicas import NODES, PODS, SIMPLE, Replica, Start, pending, placed

PassTime = Callable[..., Any]


@pytest.fixture
async def start(tmp_path: Path, server: ApiServer, clock: SimulatedClock) -> AsyncIterator[Start]:  # noqa: F811
    """Start replicas; each ends with the test."""
    for name in ("n1", "n2"):
        server.objects.create(NODES, node(name))

    def make(directory: Path, config: str, *argv: str) -> Replica:
        return Replica(directory, server, clock, config, *argv)

    async with replicas(make, tmp_path, clock, SIMPLE) as start:
        yield start


@pytest.fixture
async def leading(start: Start, server: ApiServer, pass_time: PassTime) -> Replica:  # noqa: F811
    """A replica that has scheduled a pod."""
    server.objects.create(PODS, pending("first"))
    replica = start()
    await pass_time(lambda: "first" in placed(server), step=0.2)
    return replica


@pytest.fixture
async def large(server: ApiServer, leading: Replica, pass_time: PassTime) -> None:  # noqa: F811
    """A pod that no node has room for, and that was tried."""
    server.objects.create(PODS, pending("large", cpu="40"))
    name, labels = "scheduler_schedule_attempts_total", {"profile": "koord-scheduler"}
    await pass_time(lambda: leading.metric(name, result="unschedulable", **labels))
