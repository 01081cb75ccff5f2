"""The API server that tests talk to, on simulated time."""

from tests.support.kube.fixtures import client, clock, make_client, pass_time, server  # noqa: F401 - fixtures
