"""The plugins that a record is played to are those that ran, unless options say otherwise."""

import pytest

from koord.util.errors import OptionError
from koord.util.simulatedclock import SimulatedClock
from koordlet.cli.ctl.replay import prepare_plugins

FACTS = {"gates": ["BECPUSuppress", "PSICollector", "Unheard"], "flags": {"of-nobody": "1"}}


def prepare(facts=FACTS, **options):
    return prepare_plugins(facts, SimulatedClock(), **options)


def test_gates_are_as_recorded():
    """Those that were off are off, also to a plugin that asks; what is unknown does not matter."""
    plugins = prepare()
    assert list(plugins) == ["BECPUSuppress"]
    assert plugins["BECPUSuppress"].gate("BECPUSuppress")
    assert not plugins["BECPUSuppress"].gate("BECPUManager")


def test_gates_and_flags_of_the_command_line_count_beside_them():
    """And are checked."""
    plugins = prepare(
        feature_gates={"CPUBurst": True, "BECPUManager": True},
        flags=["be-suppress-fast-interval=0"],
    )
    assert set(plugins) == {"BECPUSuppress", "CPUBurst"}
    assert plugins["CPUBurst"].gate("BECPUManager")
    with pytest.raises(OptionError, match="the nearest is"):
        prepare(flags=["be-suppress-fast-intervall=0"])
    with pytest.raises(OptionError, match="unrecognized feature gate"):
        prepare(feature_gates={"CPUBrust": True})
