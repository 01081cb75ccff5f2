"""A plugin that is installed and cannot be loaded: degraded, and no reason not to start."""

import pytest

from koord.util.errors import OptionError

WHY = "Lost = lost:Lost (acme 1.0): ModuleNotFoundError(\"No module named 'gone'\")"


@pytest.fixture
def lost(bench):
    """A bench with a plugin Lost that could not be loaded, and Good that could."""
    assert bench.registry.from_source("acme", "1.0").register_unloadable("Lost", WHY)
    bench.add("Good", bench.Recorder())
    return bench


@pytest.mark.parametrize("gates", [{}, {"Lost": True}, {"Lost": False}, {"AllAlpha": True}])
async def test_it_is_broken_with_its_reason_and_the_rest_runs(lost, gates):
    """Whatever its gate says."""
    lost.feature_gates = gates
    await lost.start()
    assert lost.runner("Lost").state == "broken"
    assert lost.part("Lost").status.value == "degraded"
    assert lost.part("Lost").reason == f"broken: could not be loaded: {WHY}"
    assert lost.runner("Good").state == "running"
    report = {entry.name: entry for entry in lost.manager.describe()}["Lost"]
    assert report.enabled is (gates.get("Lost", False) or "AllAlpha" in gates)
    assert (report.errors, report.version) == (1, "1.0")


async def test_its_gate_may_be_switched_while_koordlet_runs(lost):
    """By either flag; nothing happens."""
    lost.args = ["--qos-extension-plugins=Lost=true"]
    await lost.start()
    for value in (False, True):
        await lost.switch(Lost=value)
    assert lost.runner("Lost").state == "broken"


async def test_the_gate_may_be_one_that_koordlet_has(bench):
    """Of a feature that is not in this build, for example."""
    bench.registry.from_source("acme", "1.0").register_unloadable("BlkIOReconcile", WHY)
    bench.feature_gates = {"BlkIOReconcile": True}
    await bench.start()
    assert bench.part("BlkIOReconcile").reason == f"broken: could not be loaded: {WHY}"


@pytest.mark.parametrize(
    "args",
    [
        ["--lost-cores=0.1", "--lost"],
        ["--lost-cores", "0.1", "-lost-on", "--log-level=info"],
    ],
)
async def test_its_flags_are_accepted_as_without_effect(lost, args):
    """Those that begin with its name, as all flags of plugins should."""
    flags = lost.flags
    flags.string("log-level", "info", "level")
    lost.args = args
    lost.build()
    flags.set_from_config({"lost-window": "5m", "lost-pools": [1, {"a": 2}], "log-level": "debug"})
    assert {"lost-cores", "lost-window", "lost-pools"} <= set(flags.inert_set())
    assert flags["lost-window"].owner == "plugin Lost"
    with pytest.raises(OptionError, match="no flag of this name"):
        flags.set_from_config({"loster": 1})


def test_a_name_that_is_taken_stays_taken(lost):
    """By whoever came first."""
    assert not lost.registry.register_unloadable("Good", WHY)
    assert lost.registry.get("Good").error == ""
