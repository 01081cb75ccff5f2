"""The API server that commands talk to."""

from tests.support.kube.fixtures import clock, server  # noqa: F401 - fixtures
