"""The API server as plugins see it: whether there is one."""

import pytest

from koord.util.errors import Unavailable
from koordlet.daemon.cluster import PluginClient
from koordlet.plugin.interfaces import UnavailableClient


async def test_a_plugin_sees_that_there_is_no_api_server():
    """It need not try a request to find out."""
    client = UnavailableClient()

    assert not client.available
    with pytest.raises(Unavailable, match="found standalone mode"):
        await client.get("/api/v1/nodes/n1")


def test_a_plugin_sees_that_there_is_an_api_server():
    assert PluginClient(None).available
