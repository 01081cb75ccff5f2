"""The API server that tests talk to, on simulated time."""

from tests.support.kube.fixtures import (  # noqa: F401 - fixtures
    authority,
    clock,
    pass_time,
    server,
)
