"""A Prometheus and node agents that answer what a test says."""

from collections.abc import AsyncIterator

import pytest
from trafficsite import ScriptedSite, serving


@pytest.fixture
async def site() -> AsyncIterator[ScriptedSite]:
    async for made in serving():
        yield made
