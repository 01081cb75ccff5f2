"""The API server that tests talk to, on simulated time."""

from kubefixtures import (  # noqa: F401 - fixtures
    authority,
    clock,
    pass_time,
    server,
)
