"""Fake hosts of both cgroup versions, and what their kernel files say."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koordlet.host.files import Descriptors
from koordlet.host.host import Host
from koordlet.plugin.kernel import Resource
from koordlet.plugin.testing import FakeGroup, FakeHost

Value = Callable[[Resource[Any], FakeGroup], Any]


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path, request.param)


@pytest.fixture
def value(host: FakeHost) -> Value:
    """Reads a kernel value of a group as it is now, whatever the version."""
    kernel = Host(host.paths, Descriptors(0))
    return lambda resource, group: kernel.read(resource, group.path)
