"""The API server whose cluster is recorded."""

from kubefixtures import client, clock, make_client, pass_time, server  # noqa: F401 - fixtures
