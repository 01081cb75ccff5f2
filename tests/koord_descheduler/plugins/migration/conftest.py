"""The cluster in memory of these tests."""

import random
from collections.abc import AsyncIterator

import pytest

from koord.util.simulatedclock import SimulatedClock
from tests.support.descheduler.migration_cluster import World


@pytest.fixture(autouse=True)
def _same_pauses() -> None:
    """Pauses after failures are lengthened at random: by the same shares in every run."""
    random.seed(0)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """One node's pod "web-1" of a workload with ten replicas, of which one counts here."""
    world = World(SimulatedClock(), replicas=1)
    yield world
    await world.close()
