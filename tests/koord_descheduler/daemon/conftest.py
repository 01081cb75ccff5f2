"""The API server that tests talk to, on simulated time."""

from kubefixtures import (  # noqa: F401 - fixtures
    authority,
    client,
    clock,
    make_client,
    pass_time,
    server,
    service_account,
)
