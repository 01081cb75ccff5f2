"""The API server that tests talk to, on simulated time."""

import pytest

from koord.controlplane.transport import PooledTransport
from koord.kube.transport import Transport
from tests.support.kube.fixtures import (  # noqa: F401 - fixtures
    authority,
    client,
    clock,
    make_client,
    pass_time,
    server,
    service_account,
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What holds for one transport holds for the other."""
    if "make_client" in metafunc.fixturenames:
        metafunc.parametrize("make_client", [Transport, PooledTransport], indirect=True)
