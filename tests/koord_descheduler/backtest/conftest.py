"""The API server whose cluster is recorded."""

from tests.support.kube.fixtures import client, clock, make_client, pass_time, server  # noqa: F401 - fixtures
