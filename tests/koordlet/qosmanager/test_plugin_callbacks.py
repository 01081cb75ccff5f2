"""Callbacks of plugins: called while the plugin is on, at its cost, and never otherwise."""

import asyncio
import json
from typing import Any

import pytest

from koord.api.nodeslo import NodeSLO
from koord.component.flags import FeatureSpec
from koord.component.plugins.registry import PluginBlocked
from koord.plugin import Stop
from koord.util.ownedfiles import OwnedDirectory
from koordlet.plugin import WAITS_FOR_EVENTS, ExtensionPlugin, StateType

OFF = FeatureSpec()


class Listener(ExtensionPlugin):
    """Notes setup and callbacks; a callback does what `deed` does."""

    limits = WAITS_FOR_EVENTS

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.deed: Any = lambda: None

    def setup(self, client: object, metric_cache: object, states_informer: Any) -> None:
        self.calls.append("setup")
        for state in (StateType.ALL_PODS, StateType.NODE_SLO_SPEC):
            states_informer.register_callbacks(state, "listener", "", self.changed)

    def changed(self, state_type: StateType, state: object, target: object) -> Any:
        self.calls.append(state_type.value)
        return self.deed()

    async def run(self, stop: Stop) -> None:
        self.calls.append("run")
        await stop.wait()


class Errand(Listener):
    async def run(self, stop: Stop) -> None:
        self.calls.append("run")


@pytest.fixture
async def listener(bench):
    """A listener P that is on."""
    plugin = bench.add("P", Listener())
    await bench.start()
    assert sorted(plugin.calls) == ["AllPods", "run", "setup"]
    plugin.calls.clear()
    return plugin


async def test_a_plugin_that_is_off_is_left_alone(bench):
    """Neither setup nor callbacks; both when it is switched on, with the states of then."""
    plugin = bench.add("P", Listener(), OFF)
    await bench.start()
    bench.states.send_callback("AllPods")
    bench.states.set_node_slo(NodeSLO({"a": 1}))
    await bench.clock.advance(10)
    assert plugin.calls == []

    await bench.switch(P=True)
    assert plugin.calls[0] == "setup"
    assert sorted(plugin.calls[1:]) == ["AllPods", "NodeSLOSpec", "run"]

    bench.states.set_node_slo(NodeSLO({"a": 2}))
    await bench.clock.settle()
    assert plugin.calls[4:] == ["NodeSLOSpec"]

    await bench.switch(P=False)
    bench.states.set_node_slo(NodeSLO({"a": 3}))
    await bench.clock.advance(10)
    assert plugin.calls[5:] == []

    await bench.switch(P=True)
    assert sorted(plugin.calls[5:]) == ["AllPods", "NodeSLOSpec", "run"]


async def test_an_unpublished_state_is_not_an_initial_state(bench):
    """There is no NodeSLO: no call."""
    plugin = bench.add("P", Listener())
    await bench.start()
    assert "NodeSLOSpec" not in plugin.calls


async def test_a_plugin_in_quarantine_is_left_alone(bench, tmp_path):
    """Until it is released by hand."""
    sentence = {"reason": "hung", "at": "2026-01-01T00:00:00Z", "version": "1.0"}
    content = {"boot_id": "boot-1", "plugins": {"P": sentence}}
    (tmp_path / "quarantine.json").write_text(json.dumps(content))
    bench.run_dir = OwnedDirectory.open(tmp_path)
    plugin = bench.add("P", Listener())
    await bench.start()
    bench.states.send_callback("AllPods")
    await bench.clock.advance(10)
    assert plugin.calls == []

    assert bench.manager.release("P")
    await bench.clock.settle()
    assert sorted(plugin.calls) == ["AllPods", "run", "setup"]


async def test_a_plugin_whose_setup_failed_gets_no_callbacks(bench):
    """Also those that it had registered already."""

    class Half(Listener):
        def setup(self, client: object, metric_cache: object, states_informer: Any) -> None:
            super().setup(client, metric_cache, states_informer)
            raise RuntimeError("half of it")

    plugin = bench.add("P", Half())
    await bench.start()
    bench.states.send_callback("AllPods")
    await bench.clock.advance(10)
    assert plugin.calls == ["setup"]


async def test_a_callback_that_raises_is_charged_to_its_plugin(bench, listener):
    """Errors, cost and health are the plugin's; the part `states` is well, and so is its run."""

    def fail() -> None:
        raise RuntimeError("bang")

    listener.deed = fail
    steps = bench.runner("P").meter.steps
    bench.states.send_callback("AllPods")
    await bench.clock.settle()
    assert bench.runner("P").meter.steps > steps
    assert bench.runner("P").errors == 1
    assert bench.metric("koordlet_plugin_errors_total", plugin="P") == 1
    assert bench.part("P").reason == "running: callback AllPods/listener: RuntimeError('bang')"
    assert bench.states.health().reason == ""
    [report] = bench.manager.describe()
    assert (report.errors, report.reason) == (1, bench.part("P").reason)

    listener.deed = lambda: None
    await bench.clock.advance(2)
    assert bench.part("P").reason == ""
    assert "run" not in listener.calls


async def test_sys_exit_in_a_callback_ends_nothing(bench, listener):
    """It is an error of the plugin as any other."""

    def leave() -> None:
        raise SystemExit(3)

    listener.deed = leave
    bench.states.send_callback("AllPods")
    await bench.clock.settle()
    assert "sys.exit()" in bench.part("P").reason


async def test_a_callback_that_holds_the_loop_is_a_failure_of_the_plugin(bench, listener):
    """Its run is ended, pauses grow, and in them no callback is called; then it is broken."""

    def block() -> None:
        raise PluginBlocked("plugin P: held it for 2.0 s")

    listener.deed = block
    bench.states.send_callback("AllPods")
    await bench.clock.settle()
    assert bench.runner("P").state == "retrying"
    assert bench.runner("P").rounds["blocked"] == 1
    assert bench.part("P").reason.startswith("retrying: callback AllPods/listener: plugin P: held")

    listener.calls.clear()
    bench.states.send_callback("AllPods")
    await bench.clock.settle()
    assert listener.calls == []

    for _ in range(60):
        bench.states.send_callback("AllPods")
        await bench.clock.advance(1)
    assert bench.runner("P").state == "broken"
    assert listener.calls.count("AllPods") == 4
    assert bench.runner("P").errors == 5


async def test_a_plugin_whose_run_has_returned_still_gets_callbacks(bench):
    """It is on; a callback of it that holds the loop starts it afresh after a pause."""
    plugin = bench.add("P", Errand())
    await bench.start()
    assert bench.runner("P").state == "finished"
    bench.states.send_callback("AllPods")
    await bench.clock.settle()
    assert plugin.calls.count("AllPods") == 2

    def block() -> None:
        plugin.deed = lambda: None
        raise PluginBlocked("held")

    plugin.deed = block
    bench.states.send_callback("AllPods")
    await bench.clock.settle()
    assert bench.runner("P").state == "retrying"
    await bench.clock.advance(2)
    assert bench.runner("P").state == "finished"
    assert plugin.calls.count("run") == 2


async def test_a_callback_that_runs_ends_with_its_plugin(bench, listener):
    """Cancelled when the gate goes off, dropped when it ignores that; no failure either way."""
    ended = []

    async def hang() -> None:
        while len(ended) < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("ignored")

    listener.deed = hang
    bench.states.send_callback("AllPods")
    await bench.clock.settle()
    bench.gates.replace_map({"P": False})
    await bench.clock.advance(20)
    assert ended
    assert bench.runner("P").state == "disabled"
    assert bench.runner("P").errors == 0

    listener.deed = lambda: None
    listener.calls.clear()
    await bench.switch(P=True)
    assert sorted(listener.calls) == ["AllPods", "run"]
    assert bench.part("P").status.value == "ok"


async def test_two_plugins_may_use_one_name(bench):
    """Names of callbacks are each plugin's own."""
    plugins = [bench.add(name, Listener()) for name in ("P", "Q")]
    await bench.start()
    assert all("AllPods" in plugin.calls for plugin in plugins)


async def test_a_callback_registered_by_a_run_gets_the_state_of_now(bench):
    """As one of setup does."""

    class Late(Listener):
        def setup(self, client: object, metric_cache: object, states_informer: Any) -> None:
            self.states = states_informer

        async def run(self, stop: Stop) -> None:
            self.states.register_callbacks("AllPods", "late", "", self.changed)
            await stop.wait()

    plugin = bench.add("P", Late())
    await bench.start()
    assert plugin.calls == ["AllPods"]
