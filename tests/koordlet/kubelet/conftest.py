"""The API server that tests talk to, on simulated time."""

from tests.support.kube.fixtures import (  # noqa: F401 - fixtures
    authority,
    client,
    clock,
    make_client,
    pass_time,
    server,
    service_account,
)
