"""The API server that commands talk to."""

from kubefixtures import clock, server  # noqa: F401 - fixtures
