"""Metric kinds of a plugin's own: bounded, queried like any other, and on /metrics."""

from typing import NamedTuple

import pytest

from koord.plugin import OptionError
from koordlet.metriccache.keys import UnknownSeries
from koordlet.metriccache.kinds import Cadence, Kind, RetentionClass
from koordlet.plugin import ExtensionPlugin, Published, kinds
from koordlet.plugin.publishing import defect_of
from koordlet.plugin.testing import PluginHarness
from koordlet.server.control_app import aggregates, find_kind


class DiskKey(NamedTuple):
    device: str


WAIT = Kind("disk_watch_wait", "seconds", "how long a disk lets wait", DiskKey, RetentionClass.POD)


class DiskWatch(ExtensionPlugin):
    """Publishes whatever a test says."""

    publishes = (Published(WAIT, most=3),)

    def setup(self, client, metric_cache, states_informer):
        self.cache = metric_cache

    async def run(self, stop):
        await stop.wait()


@pytest.fixture
async def harness():
    async with PluginHarness(DiskWatch()) as harness:
        await harness.advance(1)
        yield harness


async def test_what_is_published_is_in_the_cache_and_on_metrics(harness):
    """As a value, over a window, for koordletctl, and as a gauge named after the plugin."""
    plugin = harness.plugin
    assert plugin.publish(WAIT, {("sda",): 0.5, ("sdb",): 1.5}) == 0

    assert plugin.cache.last(WAIT, "sda") == 0.5
    assert harness.metric("wait", device="sdb") == 1.5
    found = aggregates(plugin.cache, find_kind("disk_watch_wait", plugin.cache), 60.0, ())
    assert [(one["device"], one["avg"]) for one in found["series"]] == [("sda", 0.5), ("sdb", 1.5)]


async def test_series_are_bounded_and_their_values_plain(harness):
    """Those that are known go on; what a device calls itself is not to be trusted."""
    plugin = harness.plugin
    plugin.publish(WAIT, {("a",): 1.0, ("b",): 1.0, ("x" * 129,): 1.0, ("\x1b[31m",): 1.0})
    await harness.advance(1)

    assert plugin.publish(WAIT, {("c",): 2.0, ("d",): 2.0, ("a",): 2.0}) == 1
    assert sorted(plugin.cache.last_values(WAIT)) == [("a",), ("b",), ("c",)]
    assert harness.metric("wait", device="d") is None


async def test_idle_series_make_room(harness):
    """After the retention, five minutes."""
    plugin = harness.plugin
    plugin.publish(WAIT, {(name,): 1.0 for name in "abc"})
    await harness.advance(400)
    plugin.publish(WAIT, {("a",): 1.0})
    await harness.advance(100)

    assert plugin.publish(WAIT, {("new",): 1.0}) == 0


async def test_only_what_was_declared_can_be_published(harness):
    with pytest.raises(OptionError, match="declare it in publishes"):
        harness.plugin.publish(kinds.NODE_CPU_USAGE, {(): 1.0})
    with pytest.raises(UnknownSeries):
        harness.plugin.publish(WAIT, {("a", "b"): 1.0})


@pytest.mark.parametrize(
    "published",
    [
        WAIT,
        (WAIT,),
        (Published(kinds.POD_CPU_USAGE),),
        (Published(Kind("disk_watch_", "s", "x", DiskKey, RetentionClass.NODE)),),
        (Published(Kind("other_wait", "s", "x", DiskKey, RetentionClass.POD)),),
        (Published(Kind("disk_watch_../x", "s", "x", DiskKey, RetentionClass.POD)),),
        (Published(WAIT, most=0),),
        (Published(WAIT, most=501),),
        (Published(WAIT),) * 9,
    ],
)
def test_declarations_are_checked(published):
    """Their names become file names, and their series memory."""
    assert "wanted" in defect_of(published, "disk_watch")


def test_a_cadence_may_be_chosen():
    slow = Kind("disk_watch_slow", "s", "x", DiskKey, RetentionClass.POD, Cadence.NETWORK)
    assert defect_of((Published(slow),), "disk_watch") == ""
