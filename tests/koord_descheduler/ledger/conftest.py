"""A ledger on a fake cluster, and the API server that keeps it."""

import pytest
from kubefixtures import client, clock, make_client, pass_time, server  # noqa: F401 - fixtures
from ledgerkit import LedgerKit

from koord.util.simulatedclock import SimulatedClock


@pytest.fixture
def kit(clock: SimulatedClock) -> LedgerKit:  # noqa: F811
    return LedgerKit(clock)
