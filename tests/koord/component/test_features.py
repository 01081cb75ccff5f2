"""Feature gates: names, defaults, AllAlpha and AllBeta, changes at run time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.component.flag_values import read_bool_map
from koord.component.flags import FeatureGates, FeatureSpec, Stage
from koord.util.errors import OptionError

ON = {"CPUBurst", "NodeNetworkCollector"}
OFF = {"BECPUEvict", "CPUEvict", "PSICollector", "SystemConfig"}
TABLE = {name: FeatureSpec(default=True, stage=Stage.BETA) for name in ON} | {
    name: FeatureSpec() for name in OFF
}


def on(gates: FeatureGates) -> set[str]:
    return {name for name in TABLE if gates.enabled(name)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("AllAlpha=true", set(TABLE)),
        ("BECPUEvict=false,AllAlpha=true", set(TABLE) - {"BECPUEvict"}),
        ("AllBeta=false,CPUBurst=true", {"CPUBurst"}),
        (",CPUBurst = false,", ON - {"CPUBurst"}),
        ("AllBeta=false,AllAlpha=false", set()),
        ("AllAlpha=false", ON),
    ],
)
def test_examples_of_the_flag(text, expected):
    """Explicit values win over AllAlpha and AllBeta, whatever their order."""
    gates = FeatureGates(TABLE, "agent")
    gates.set_from_map(read_bool_map(text))
    assert on(gates) == expected


def test_an_unknown_gate_changes_nothing():
    """The message names the nearest; the map is applied whole or not at all."""
    gates = FeatureGates(TABLE, "agent")
    with pytest.raises(
        OptionError, match="unrecognized feature gate: CPUBrust; the nearest is CPUBurst"
    ):
        gates.set_from_map({"PSICollector": True, "CPUBrust": True})
    assert on(gates) == ON


def test_a_locked_gate_accepts_only_its_default():
    gates = FeatureGates({"Old": FeatureSpec(default=True, stage=Stage.GA, locked=True)}, "agent")
    gates.set_from_map({"Old": True})
    with pytest.raises(
        OptionError, match="cannot set feature gate Old to false, feature is locked to true"
    ):
        gates.set_from_map({"Old": False})
    assert gates.enabled("Old")


def test_asking_for_an_unknown_gate_is_a_bug():
    with pytest.raises(KeyError):
        FeatureGates(TABLE, "agent").enabled("Foo")


def test_a_plugins_gate_joins_the_table():
    """It is switched like any other, follows AllAlpha, and its name is taken once."""
    gates = FeatureGates(TABLE, "agent")
    gates.set_from_map({"AllAlpha": True})
    gates.add("MyPlugin", FeatureSpec(), "my-package 1.0")
    assert gates.enabled("MyPlugin")
    gates.replace_map({"MyPlugin": False})
    assert not gates.enabled("MyPlugin")
    with pytest.raises(OptionError, match=r"gate of my-package 1\.0; other must choose"):
        gates.add("MyPlugin", FeatureSpec(default=True), "other")
    with pytest.raises(OptionError, match="gate of agent; other must choose"):
        gates.add("CPUBurst", FeatureSpec(), "other")


def test_live_changes_notify_listeners_of_what_has_switched():
    """Values that were explicit and are gone fall back; no change, no call."""
    gates = FeatureGates(TABLE, "agent")
    seen: list[frozenset[str]] = []
    gates.subscribe(seen.append)

    gates.set_from_map({"PSICollector": True})
    assert gates.replace_map({"CPUBurst": False}) == {"PSICollector", "CPUBurst"}
    assert gates.replace_map({"CPUBurst": False, "CPUEvict": False}) == frozenset()

    assert seen == [{"PSICollector"}, {"PSICollector", "CPUBurst"}]


def test_start_values_accumulate():
    """--feature-gates and --qos-extension-plugins are applied one after the other."""
    gates = FeatureGates(TABLE, "agent")
    gates.set_from_map({"PSICollector": True})
    gates.set_from_map({"CPUEvict": True})
    assert on(gates) == ON | {"PSICollector", "CPUEvict"}


def test_gates_asked_for_but_not_built_are_named():
    """A gate that is not set is not worth a warning, nor one that a plugin serves."""
    gates = FeatureGates(TABLE, "agent")
    gates.mark_built(["PSICollector"])
    assert gates.not_built() == []
    gates.set_from_map(
        {"PSICollector": True, "CPUEvict": True, "CPUBurst": True, "SystemConfig": False}
    )
    assert gates.not_built() == ["CPUBurst", "CPUEvict"]
    gates.replace_map({"AllAlpha": True})
    assert {"CPUEvict", "SystemConfig"} <= set(gates.not_built())
    assert not {"PSICollector", "CPUBurst", "AllAlpha"} & set(gates.not_built())


def test_gates_at_work_are_on_and_built():
    """A gate that is on without its feature in this build does nothing."""
    gates = FeatureGates(TABLE, "agent")
    gates.mark_built(["PSICollector", "NodeNetworkCollector"])

    assert gates.working() == ["NodeNetworkCollector"]
    gates.set_from_map({"PSICollector": True, "CPUEvict": True})
    assert gates.working() == ["NodeNetworkCollector", "PSICollector"]


def test_help_lists_what_can_be_switched():
    gates = FeatureGates(
        {"A": FeatureSpec(), "G": FeatureSpec(default=True, stage=Stage.GA)}, "agent"
    )
    assert gates.known() == [
        "A=true|false (ALPHA - default=false)",
        "AllAlpha=true|false (ALPHA - default=false)",
        "AllBeta=true|false (BETA - default=false)",
    ]


@given(st.dictionaries(st.sampled_from([*TABLE, "AllAlpha", "AllBeta"]), st.booleans()))
def test_explicit_values_always_win(values):
    """Whatever the mixture, a gate that was named has the value it was given."""
    gates = FeatureGates(TABLE, "agent")
    gates.set_from_map(values)
    assert all(gates.enabled(name) is value for name, value in values.items())
    gates.replace_map({})
    assert on(gates) == ON
