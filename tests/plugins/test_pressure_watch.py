"""PressureWatch: levels, hysteresis, and what it logs and counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.plugin import OptionError
from koordlet.plugin import kinds
from koordlet.plugin.testing import PluginHarness, make_pod
from koordlet_plugins.pressure_watch import (
    LOGGED,
    PressureSubject,
    PressureWatch,
    WatchOptions,
    find_crossings,
    parse_levels,
)

NODE_CPU = ("cpu", "10", "some")


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("cpu=60,mem=20,io=40", {"cpu": 60.0, "mem": 20.0, "io": 40.0}),
        (" cpu=0.5 ,", {"cpu": 0.5}),
        ("", {}),
    ],
)
def test_levels(text, levels):
    """Levels are percent by resource; what is left out is not watched."""
    assert parse_levels(text) == levels


@pytest.mark.parametrize("text", ["cpu", "cpu=", "disk=5", "cpu=0", "cpu=101", "cpu=nan", "=5"])
def test_bad_levels(text):
    """A bad level names itself and shows how to write one."""
    with pytest.raises(OptionError, match="cpu=60,mem=20,io=40"):
        parse_levels(text)


@given(st.text())
def test_any_text_is_levels_or_an_option_error(text):
    """No text gets through with a level outside (0, 100]."""
    try:
        levels = parse_levels(text)
    except OptionError:
        return
    assert all(0 < level <= 100 for level in levels.values())


@pytest.mark.parametrize("options", [{"release": 0.0}, {"release": 1.1}, {"interval": 0.5}])
def test_bad_options(options):
    """Values that make no sense stop the plugin at setup."""
    with pytest.raises(OptionError):
        WatchOptions(levels={}, **options)


@given(st.lists(st.floats(0, 100)))
def test_hysteresis_means_no_end_between_release_and_level(percents):
    """High begins at the level only, and ends below the release only."""
    options = WatchOptions(levels={"cpu": 60.0}, release=0.5)
    subject, high = PressureSubject("node", "", "cpu"), frozenset()
    for percent in percents:
        crossings = find_crossings({subject: percent}, high, options)
        assert not crossings.began or percent >= 60
        assert not crossings.ended or percent < 30
        assert (subject in crossings.high) == (percent >= (30 if high else 60))
        high = crossings.high


async def test_crossings_are_logged_once_and_counted():
    """A rise is one event and one count, however long it lasts; the fall is one event."""
    harness = PluginHarness(PressureWatch())
    harness.hold(kinds.NODE_PSI, 59.0, *NODE_CPU)
    harness.hold(kinds.NODE_PSI, 99.0, "cpu", "10", "full")
    async with harness:
        assert harness.log.events == []
        harness.hold(kinds.NODE_PSI, 75.0, *NODE_CPU)
        await harness.rounds(3)
        assert harness.log.named("pressure.rose") == [
            {"scope": "node", "name": "", "resource": "cpu", "percent": 75.0, "level_percent": 60.0}
        ]
        assert harness.metric("high", scope="node", resource="cpu") == 1
        harness.hold(kinds.NODE_PSI, 49.0, *NODE_CPU)  # above 48, where it is over
        await harness.rounds(2)
        assert harness.log.named("pressure.fell") == []
        harness.hold(kinds.NODE_PSI, 47.0, *NODE_CPU)
        await harness.rounds(2)
        (fell,) = harness.log.named("pressure.fell")
        assert fell["percent"] == 47.0
        assert harness.metric("high", scope="node", resource="cpu") == 0
        assert harness.metric("crossings_total", scope="node", resource="cpu") == 1
        assert harness.metric("crossings_total", scope="pod", resource="io") == 0


async def test_classes_and_pods_are_named():
    """A QoS class is named by its class, a pod by namespace and name."""
    harness = PluginHarness(
        PressureWatch(),
        args=["--pressure-watch-levels=mem=10", "--pressure-watch-interval=2s"],
        pods=[make_pod("web-0", namespace="shop", uid="u1")],
    )
    async with harness:
        harness.hold(kinds.QOS_PSI, 20.0, "besteffort", "mem", "10", "some")
        harness.hold(kinds.POD_PSI, 30.0, "u1", "mem", "10", "some")
        harness.hold(kinds.POD_PSI, 30.0, "gone", "mem", "10", "some")
        harness.hold(kinds.POD_PSI, 90.0, "u1", "cpu", "10", "some")
        await harness.advance(4)
        assert [
            (event["scope"], event["name"]) for event in harness.log.named("pressure.rose")
        ] == [
            ("pod", "gone"),
            ("pod", "shop/web-0"),
            ("qos", "besteffort"),
        ]
        harness.drop(kinds.POD_PSI, "u1", "mem", "10", "some")
        await harness.advance(6)
        assert [event["percent"] for event in harness.log.named("pressure.fell")] == [None]


async def test_a_node_full_of_pressure_does_not_flood_the_log():
    """Beyond a number of subjects a round only says how many more there are."""
    harness = PluginHarness(PressureWatch())
    for number in range(300):
        harness.hold(kinds.POD_PSI, 90.0, f"u{number}", *NODE_CPU)
    async with harness:
        await harness.rounds(5)
        assert len(harness.log.named("pressure.rose")) == LOGGED
        assert harness.log.named("pressure.omitted") == [{"of": "pressure.rose", "subjects": 280}]
        assert harness.metric("crossings_total", scope="pod", resource="cpu") == 300
        assert harness.cost.longest_step < 0.05


async def test_a_bad_flag_fails_in_setup():
    """Values are checked once, before the first round."""
    with pytest.raises(OptionError, match="pressure-watch-levels"):
        async with PluginHarness(PressureWatch(), args=["--pressure-watch-levels=disk=1"]):
            pass
