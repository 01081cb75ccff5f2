"""Plugins' flags and gates join the daemon's; two flags for one gate must agree."""

import threading

import pytest

from koord.component.flags import FeatureSpec, Stage
from koord.util.errors import OptionError
from koordlet.qosmanager.config import QOSExtensionConfig

ALPHA, BETA = FeatureSpec(), FeatureSpec(default=True, stage=Stage.BETA)


def add_two(bench) -> None:
    bench.add("Mine", bench.Recorder(), ALPHA)
    bench.add("Yours", bench.Recorder(), BETA)
    shipped = bench.Recorder()
    shipped.gates = ("CPUEvict",)
    bench.add("Shipped", shipped, None)


@pytest.mark.parametrize(
    ("feature_gates", "switches", "enabled"),
    [
        ({}, "", {"Yours"}),
        ({"Mine": True}, "", {"Mine", "Yours"}),
        ({}, "Mine=true", {"Mine", "Yours"}),
        ({"Mine": True}, "Mine=true,Yours=false", {"Mine"}),
        ({}, "AllAlpha=true", {"Mine", "Yours"}),
        ({"Mine": False}, "AllAlpha=true", {"Yours"}),
        ({}, "AllAlpha=true,Mine=false,AllBeta=false", set()),
        ({"AllAlpha": True}, "Mine=false", {"Yours", "Shipped"}),
        ({"CPUEvict": True}, "", {"Yours", "Shipped"}),
    ],
)
async def test_both_flags_reach_one_gate_table(bench, feature_gates, switches, enabled):
    """--feature-gates and --qos-extension-plugins mean the same gates."""
    add_two(bench)
    bench.feature_gates = feature_gates
    bench.args = [f"--qos-extension-plugins={switches}"] if switches else []
    await bench.start()
    running = {runner.name for runner in bench.manager.runners if runner.state == "running"}
    assert running == enabled


def test_all_alpha_of_the_plugin_flag_leaves_the_daemons_gates_alone(bench):
    """In --qos-extension-plugins the group names mean plugins only."""
    add_two(bench)
    bench.args = ["--qos-extension-plugins=AllAlpha=true"]
    bench.build()
    assert bench.gates.enabled("Mine")
    assert not bench.gates.enabled("CPUEvict")


@pytest.mark.parametrize(
    ("feature_gates", "switches", "message"),
    [
        ({"Mine": False}, "Mine=true", "--feature-gates says the opposite"),
        ({}, "Mien=true", "nearest is 'Mine'"),
        ({}, "CPUEvict=true", "no plugin of this name"),
        ({"Mien": True}, "", "unrecognized feature gate"),
    ],
)
def test_disagreeing_and_unknown_names_are_start_errors(bench, feature_gates, switches, message):
    """A contradiction or a misspelling stops the start with one line."""
    add_two(bench)
    bench.feature_gates = feature_gates
    bench.args = [f"--qos-extension-plugins={switches}"] if switches else []
    with pytest.raises(OptionError, match=message):
        bench.build()


def test_a_plugin_cannot_take_a_gate_of_the_daemon(bench):
    """A third party's feature named like koordlet's is left out, and both owners are named."""
    bench.add("CPUBurst", bench.Recorder(), ALPHA)
    bench.build()
    assert bench.runner("CPUBurst").state == "broken"
    assert "gate of koordlet; test of CPUBurst must choose" in bench.part("CPUBurst").reason


def test_a_plugin_with_unknown_gates_is_left_out(bench):
    """A gate that does not exist could never be switched on."""
    plugin = bench.Recorder()
    plugin.gates = ("NoSuchGate",)
    bench.add("P", plugin, None)
    bench.build()
    assert "NoSuchGate" in bench.part("P").reason


async def test_a_flag_name_that_is_taken_breaks_the_second_plugin(bench):
    """Two plugins with one flag: the first works, the second is named with both owners."""

    class Flagged(bench.Recorder):
        def init_flags(self, flags):
            self.level = flags.int("level", 3, "level")

    first, _ = bench.add("A", Flagged()), bench.add("B", Flagged())
    bench.args = ["--level=7"]
    await bench.start()
    assert first.level.value == 7
    assert bench.runner("A").state == "running"
    assert "flag of plugin A; plugin B must choose" in bench.part("B").reason


def test_the_gates_of_plugins_count_as_built(bench):
    """Switching a plugin's gate on is not answered with "not built yet"."""
    add_two(bench)
    bench.feature_gates = {"Mine": True, "CPUEvict": True, "CPUNormalization": True}
    bench.build()
    assert bench.gates.not_built() == ["CPUNormalization"]


def test_init_flags_that_block_for_good_break_their_plugin(bench):
    """The daemon used to hang before it listened; the others have their flags."""

    class Stuck(bench.Recorder):
        def init_flags(self, flags):
            threading.Event().wait()

    class Good(bench.Recorder):
        def init_flags(self, flags):
            flags.bool("good-thing", False, "a good thing")

    bench.add("Stuck", Stuck())
    bench.add("Good", Good())
    config = QOSExtensionConfig(
        bench.registry, bench.gates, clock=bench.clock, metrics=bench.metrics, init_timeout=0.05
    )

    config.init_flags(bench.flags)

    assert list(config.failures) == ["Stuck"]
    assert "wanted an end within 0.05 s, found it at " in config.failures["Stuck"]
    assert "good-thing" in bench.flags
