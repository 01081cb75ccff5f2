"""The API server that tests talk to, on simulated time."""

from kubefixtures import client, clock, make_client, pass_time, server  # noqa: F401 - fixtures
