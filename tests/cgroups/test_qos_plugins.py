"""SystemConfig on a real kernel: what it asks for lands, and goes away again."""

from types import SimpleNamespace

from koordlet.api.node import Node
from koordlet.api.nodeslo import merge_nodeslo
from koordlet.host.host import Host
from koordlet.host.resources import WATERMARK_SCALE_FACTOR
from koordlet.plugin.testing import PluginHarness
from koordlet_plugins.system_config import SystemConfig

from .conftest import REAL


async def test_a_sysctl_is_really_set_and_put_back():
    """watermark_scale_factor, one more than it is; a kernel without pressure does not care."""
    host = Host(REAL)
    before = host.read(WATERMARK_SCALE_FACTOR)
    harness = PluginHarness(SystemConfig(), host=SimpleNamespace(paths=REAL))
    harness.states.set_node(Node("n1", capacity={"memory": "64Gi"}))
    slo = {"spec": {"systemStrategy": {"watermarkScaleFactor": before + 1}}}
    harness.set_node_slo(merge_nodeslo(slo)[0])

    async with harness:
        await harness.rounds(1)
        assert host.read(WATERMARK_SCALE_FACTOR) == before + 1
    assert host.read(WATERMARK_SCALE_FACTOR) == before
