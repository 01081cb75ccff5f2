"""A plugin has what was handed over to it, and says so where nothing was."""

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from koord.plugin import Unavailable
from koord.util.simulatedclock import SimulatedClock
from koordlet.plugin import Claim, ExtensionPlugin, Target, kinds, resources
from koordlet.plugin.base import PluginContext
from koordlet.plugin.metrics import PluginMetrics
from koordlet.plugin.testing import CapturedLog, make_pod


class Idle(ExtensionPlugin):
    """Does nothing, and has names of its own that the base class could have had."""

    def __init__(self) -> None:
        self._context = self._claims = "the author's"

    def setup(self, client, metric_cache, states_informer): ...
    async def run(self, stop): ...


@pytest.fixture
def context():
    return PluginContext(
        log=CapturedLog(),
        metrics=PluginMetrics("Idle", CollectorRegistry()),
        clock=SimulatedClock(),
        gate_is_on=lambda gate: gate == "On",
    )


@pytest.fixture
def plugin():
    plugin = Idle()
    plugin.name = "Idle"
    return plugin


def test_attributes_are_those_of_the_context(plugin, context):
    """The second binding, before setup, adds to the first."""
    plugin.bind(context)
    assert (plugin.log, plugin.metrics, plugin.clock) == (
        context.log,
        context.metrics,
        context.clock,
    )
    assert (plugin.gate("On"), plugin.gate("Off")) == (True, False)

    full = replace(plugin.context, kernel=object())
    plugin.bind(full)

    assert plugin.kernel is full.kernel
    assert plugin.context.health is context.health
    assert plugin._context == plugin._claims == "the author's"


async def test_until_setup_nothing_can_be_changed(plugin, context):
    """Each says what is missing."""
    plugin.bind(context)
    claim = Claim(target=Target.node(), resource=resources.SCHED_CORE, value=1, reason="r")

    with pytest.raises(Unavailable, match="wanted to claim a kernel value"):
        await plugin.claim_all([claim])
    with pytest.raises(Unavailable):
        await plugin.evict(make_pod("p"), reason="r")
    with pytest.raises(Unavailable):
        await plugin.kernel.read(resources.MEMINFO)
    with pytest.raises(Unavailable, match="wanted to publish node_cpu_usage, found a plugin"):
        plugin.publish(kinds.NODE_CPU_USAGE, {(): 1.0})


def test_a_plugin_that_nothing_was_handed_to_says_so(plugin):
    """For an author who asks in __init__, or without the test kit."""
    for ask in (lambda: plugin.gate("On"), lambda: plugin.degrade("less")):
        with pytest.raises(Unavailable, match="Idle: wanted what the daemon hands over"):
            ask()
