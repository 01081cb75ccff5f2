"""Fixtures for all tests of the scheduler."""

from collections.abc import AsyncIterator

import pytest

from tests.support.http_site import ScriptedSite, serving


@pytest.fixture
async def site() -> AsyncIterator[ScriptedSite]:
    async for made in serving():
        yield made
