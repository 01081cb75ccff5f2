"""The order in which plugins are called, and what switching gates does."""

import asyncio

import pytest

from koord.component.flags import FeatureSpec
from koord.plugin import Stop
from koordlet.plugin import Limits

OFF = FeatureSpec()


async def test_all_are_prepared_then_the_enabled_ones_are_set_up_then_they_run(bench):
    """init_flags reaches every plugin, the rest only those that are on, each stage in turn."""
    order: list[str] = []

    class Ordered(bench.Recorder):
        def init_flags(self, flags):
            order.append(f"init_flags {self.name}")

        def setup(self, client, metric_cache, states_informer):
            order.append(f"setup {self.name}")

        async def run(self, stop):
            order.append(f"run {self.name}")
            await stop.wait()

    for name, spec in (("A", OFF), ("B", None), ("C", FeatureSpec(default=True))):
        plugin = Ordered()
        if spec is None:
            plugin.gates = ("CPUBurst",)
        bench.add(name, plugin, spec)
    await bench.start()

    assert order == [
        *(f"init_flags {name}" for name in ("A", "B", "C")),
        *(f"{stage} {name}" for stage in ("setup", "run") for name in ("B", "C")),
    ]
    assert bench.runner("A").state == "disabled"


async def test_toggling_a_gate_starts_and_stops_without_a_second_setup(bench):
    """Setup comes with the first start; live disable ends the run in order, live enable begins
    another one."""
    plugin = bench.add("P", bench.Recorder(), OFF)
    await bench.start()
    assert plugin.calls == ["init_flags"]

    bench.gates.replace_map({"P": True})
    await bench.clock.advance(2.5)
    assert plugin.calls[1:] == ["setup", "run"]
    assert plugin.turns == 3

    bench.gates.replace_map({"P": False})
    await bench.clock.advance(0)
    assert plugin.calls[2:] == ["run", "returned", "stop"]
    assert bench.runner("P").state == "disabled"

    bench.gates.replace_map({"P": True})
    await bench.clock.advance(0)
    assert plugin.calls[5:] == ["run"]
    assert plugin.calls.count("setup") == 1


async def test_off_and_on_in_one_breath_is_another_run(bench):
    """The plugin ends and starts again, also when it was off for a moment between two looks."""
    plugin = bench.add("P", bench.Recorder())
    await bench.start()
    bench.gates.replace_map({"P": False})
    bench.gates.replace_map({"P": True})
    await bench.clock.advance(0)
    assert plugin.calls[2:] == ["run", "returned", "stop", "run"]


async def test_off_and_on_while_it_ends_is_another_run(bench):
    """Also when the gate is on again before the old run has returned."""

    class Slow(bench.Recorder):
        async def stop(self) -> None:
            await self.clock.sleep(2)
            self.calls.append("stop")

    plugin = bench.add("P", Slow())
    await bench.start()
    await bench.switch(P=False)
    await bench.clock.advance(1)
    await bench.switch(P=True)
    assert bench.runner("P").state == "stopping"
    await bench.clock.advance(1.5)
    assert plugin.calls[2:] == ["run", "returned", "stop", "run"]


async def test_any_of_a_plugins_gates_enables_it(bench):
    """A plugin that serves several of koordlet's gates runs while one of them is on."""
    plugin = bench.Recorder()
    plugin.gates = ("BECPUEvict", "CPUEvict")
    bench.add("CPUEvictor", plugin, None)
    await bench.start()
    states = []
    for gates in (
        {},
        {"CPUEvict": True},
        {"CPUEvict": True, "BECPUEvict": True},
        {"BECPUEvict": True},
        {},
    ):
        bench.gates.replace_map(gates)
        await bench.clock.advance(0)
        states.append(bench.runner("CPUEvictor").state.value)
    assert states == ["disabled", "running", "running", "running", "disabled"]
    assert plugin.calls.count("run") == 1


async def test_exit_stops_every_plugin(bench):
    """The daemon's stop signal ends each run, then calls its stop."""
    plugins = [bench.add(name, bench.Recorder()) for name in ("A", "B")]
    await bench.start()
    await bench.finish()
    for plugin in plugins:
        assert plugin.calls[-2:] == ["returned", "stop"]


async def test_stop_before_the_states_are_known_runs_nothing(bench):
    """Plugins wait for the first look at node and pods, and not beyond the stop signal."""
    bench.synced = False
    plugin = bench.add("P", bench.Recorder())
    await bench.start()
    await bench.clock.advance(60)
    assert plugin.calls == ["init_flags", "setup"]
    await bench.finish()
    assert plugin.calls == ["init_flags", "setup"]


async def test_plugins_run_as_soon_as_the_states_are_known(bench):
    """The sync of the states informer is what starts them."""
    bench.synced = False
    plugin = bench.add("P", bench.Recorder())
    await bench.start()
    bench.sync()
    await bench.clock.settle()
    assert plugin.calls == ["init_flags", "setup", "run"]


async def test_a_run_that_ignores_the_stop_signal_is_cancelled_after_the_grace(bench):
    """Stop means: return within the grace, or be cancelled; stop() follows either way."""

    class Deaf(bench.Recorder):
        limits = Limits(grace=5.0)

        async def run(self, stop: Stop) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.calls.append("cancelled")
                raise

    plugin = bench.add("P", Deaf())
    await bench.start()
    bench.gates.replace_map({"P": False})
    await bench.clock.advance(4.9)
    assert plugin.calls == ["init_flags", "setup"]
    assert bench.runner("P").state == "stopping"
    await bench.clock.advance(0.2)
    assert plugin.calls[2:] == ["cancelled", "stop"]
    assert bench.part("P").status.value == "ok"


async def test_a_run_that_ignores_cancellation_too_is_dropped(bench):
    """Nothing a coroutine does keeps the daemon from ending it."""

    class Immortal(bench.Recorder):
        async def run(self, stop: Stop) -> None:
            while True:
                try:
                    await asyncio.Event().wait()
                except BaseException:
                    self.calls.append("ignored")

    plugin = bench.add("P", Immortal())
    await bench.start()
    bench.gates.replace_map({"P": False})
    await bench.clock.advance(11)
    assert plugin.calls[2:] == ["ignored", "ignored", "stop"]
    assert bench.runner("P").state == "disabled"
    await bench.finish()


@pytest.mark.parametrize("how", ["raises", "hangs", "exits"])
async def test_a_bad_stop_is_reported_and_does_not_hold_up_the_end(bench, how):
    """stop() has its own deadline, and what it raises ends there."""

    class Bad(bench.Recorder):
        limits = Limits(stop=3.0)

        async def stop(self) -> None:
            if how == "raises":
                raise RuntimeError("no way")
            if how == "exits":
                raise SystemExit(3)
            await asyncio.Event().wait()

    bench.add("P", Bad())
    await bench.start()
    bench.gates.replace_map({"P": False})
    await bench.clock.advance(3.1)
    assert bench.runner("P").state == "disabled"
    assert bench.runner("P").errors == 1


async def test_tasks_that_a_plugin_leaves_behind_end_with_it(bench):
    """A disabled plugin does nothing any more, whatever it started."""
    beats: list[float] = []

    class Spawner(bench.Recorder):
        async def run(self, stop: Stop) -> None:
            self.child = asyncio.create_task(self.beat())
            await stop.wait()

        async def beat(self) -> None:
            while True:
                beats.append(self.clock.monotonic())
                await self.clock.sleep(1)

    bench.add("P", Spawner())
    await bench.start()
    await bench.clock.advance(3)
    bench.gates.replace_map({"P": False})
    await bench.clock.advance(0)
    seen = len(beats)
    assert seen >= 3
    await bench.clock.advance(10)
    assert len(beats) == seen


async def test_a_run_that_returns_on_its_own_is_finished_not_failed(bench):
    """A plugin with a single errand is fine; switching it off and on runs it again."""

    class Errand(bench.Recorder):
        async def run(self, stop: Stop) -> None:
            self.calls.append("run")

    plugin = bench.add("P", Errand())
    await bench.start()
    await bench.clock.advance(1000)
    assert plugin.calls[2:] == ["run", "stop"]
    assert bench.runner("P").state == "finished"
    assert bench.part("P").status.value == "ok"
    bench.gates.replace_map({"P": False})
    await bench.clock.advance(0)
    bench.gates.replace_map({"P": True})
    await bench.clock.advance(0)
    assert plugin.calls[4:] == ["run", "stop"]
