"""Plugins that may claim the same value: who is on first has it, the others wait."""

import json

import pytest

from koord.api.qos import KubeQoS
from koord.component.flags import FeatureSpec
from koord.plugin import Stop
from koord.util.ownedfiles import OwnedDirectory
from koordlet.executor.claimmanager import ClaimManager
from koordlet.executor.journal import Journal
from koordlet.executor.kernel.view import InlineWorker, KernelView
from koordlet.executor.kernel.writer import Writer
from koordlet.host.files import Descriptors
from koordlet.host.host import Host
from koordlet.plugin import ClaimScope, Level, Target, resources
from koordlet.plugin.testing import FakeHost

OFF = FeatureSpec()


@pytest.fixture
def claimer(bench, tmp_path):
    """Makes plugins that claim the CPU weight of best-effort pods, on a fake host."""
    host = FakeHost(tmp_path)
    host.qos_group(KubeQoS.BEST_EFFORT)
    kernel, worker = Host(host.paths, Descriptors(0)), InlineWorker()

    async def in_earnest(_: str) -> bool:
        return False

    writer = Writer(kernel, Journal(None, ""), bench.clock)
    bench.claims = ClaimManager(writer, worker, bench.clock, dry_run=in_earnest)
    bench.kernel = KernelView(kernel, worker, bench.clock)
    target = Target.qos_class(host.layout, KubeQoS.BEST_EFFORT)

    class Claimer(bench.Recorder):
        may_claim = (ClaimScope(resources.CPU_SHARES, Level.QOS),)
        shares = 512

        async def run(self, stop: Stop) -> None:
            self.calls.append("run")
            await self.claim(target, resources.CPU_SHARES, self.shares, reason="test")
            await stop.wait()

    return lambda name, shares, spec=OFF: bench.add(name, _with(Claimer(), shares), spec)


def _with(plugin, shares):
    plugin.shares = shares
    return plugin


def states(bench):
    return {runner.name: runner.state.value for runner in bench.manager.runners}


def claimed(bench):
    return [(value["claims"][0]["plugin"], value["value"]) for value in bench.claims.in_force()]


async def test_a_plugin_that_is_off_blocks_no_other(bench, claimer):
    """What counts is what is on, not what is installed."""
    claimer("Shipped", 100)
    claimer("Mine", 300)
    bench.feature_gates = {"Mine": True}
    await bench.start()
    assert states(bench) == {"Shipped": "disabled", "Mine": "running"}
    assert claimed(bench) == [("Mine", 300)]


async def test_the_second_one_switched_on_is_refused_until_the_first_is_off(bench, claimer):
    """It is broken, with the owner's name, and starts by itself once the owner has ended."""
    _, mine = claimer("Shipped", 100), claimer("Mine", 300)
    bench.feature_gates = {"Shipped": True}
    await bench.start()
    await bench.switch(Mine=True)
    assert states(bench) == {"Shipped": "running", "Mine": "broken"}
    reason = bench.part("Mine").reason
    assert "cpu_shares" in reason
    assert "Shipped is on and may claim it" in reason
    assert "switch off Shipped or Mine" in reason
    assert mine.calls == ["init_flags"]

    await bench.switch(Shipped=False)
    assert states(bench) == {"Shipped": "disabled", "Mine": "running"}
    assert bench.part("Mine").status.value == "ok"
    assert claimed(bench) == [("Mine", 300)]

    await bench.switch(Shipped=True)
    assert states(bench) == {"Shipped": "broken", "Mine": "running"}


async def test_at_the_start_the_order_of_registration_decides(bench, claimer):
    """As it does among several that wait."""
    for name, shares in (("A", 100), ("B", 200), ("C", 300)):
        claimer(name, shares)
    bench.feature_gates = {"C": True, "B": True, "A": True}
    await bench.start()
    assert states(bench) == {"A": "running", "B": "broken", "C": "broken"}
    await bench.switch(A=False)
    assert states(bench) == {"A": "disabled", "B": "running", "C": "broken"}
    assert claimed(bench) == [("B", 200)]


async def test_one_change_may_swap_them(bench, claimer):
    """Off for one and on for the other, whichever comes first."""
    claimer("A", 100)
    claimer("B", 200)
    bench.feature_gates = {"A": True}
    await bench.start()
    for on, off in (("B", "A"), ("A", "B")):
        await bench.switch(**{on: True, off: False})
        assert states(bench) == {on: "running", off: "disabled"}
    assert claimed(bench) == [("A", 100)]


async def test_a_refused_plugin_that_is_switched_off_waits_no_longer(bench, claimer):
    """Its state is disabled, and the owner's end does not start it."""
    claimer("A", 100)
    claimer("B", 200)
    bench.feature_gates = {"A": True, "B": True}
    await bench.start()
    await bench.switch(B=False)
    assert states(bench) == {"A": "running", "B": "disabled"}
    await bench.switch(A=False)
    assert states(bench) == {"A": "disabled", "B": "disabled"}


async def test_a_plugin_that_never_runs_blocks_no_other(bench, claimer, tmp_path):
    """In quarantine, or with a setup that failed, it claims nothing."""
    sentence = {"reason": "hung", "at": "2026-01-01T00:00:00Z", "version": "1.0"}
    content = {"boot_id": "boot-1", "plugins": {"A": sentence}}
    (tmp_path / "quarantine.json").write_text(json.dumps(content))
    bench.run_dir = OwnedDirectory.open(tmp_path)
    claimer("A", 100)
    bad = claimer("B", 200)
    claimer("C", 300)
    bad.shares = None

    def setup(*_: object) -> None:
        raise RuntimeError("bang")

    bad.setup = setup
    bench.feature_gates = {"A": True, "B": True, "C": True}
    await bench.start()
    assert states(bench) == {"A": "quarantined", "B": "broken", "C": "running"}

    assert bench.manager.release("A")
    await bench.clock.settle()
    assert "C is on and may claim it" in bench.part("A").reason


async def test_a_plugin_in_a_pause_after_a_failure_keeps_its_turn(bench, claimer):
    """It is on, and comes back; else the two would take turns without end."""

    class Fails(bench.Recorder):
        may_claim = (ClaimScope(resources.CPU_SHARES, Level.QOS),)

        async def run(self, stop: Stop) -> None:
            raise RuntimeError("bang")

    bench.add("A", Fails())
    claimer("B", 200, FeatureSpec(default=True))
    await bench.start()
    await bench.clock.advance(100)
    assert states(bench) == {"A": "broken", "B": "broken"}
    assert "A is on" in bench.part("B").reason
