"""A ledger on a fake cluster, and the API server that keeps it."""

import pytest

from koord.util.simulatedclock import SimulatedClock
from tests.support.descheduler.ledger import LedgerKit
from tests.support.kube.fixtures import client, clock, make_client, pass_time, server  # noqa: F401 - fixtures


@pytest.fixture
def kit(clock: SimulatedClock) -> LedgerKit:  # noqa: F811
    return LedgerKit(clock)
