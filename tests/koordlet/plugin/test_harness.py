"""The harness treats a plugin as the daemon does, and reports to a test what went wrong."""

import asyncio
import time

import pytest

from koord.api.eviction import EvictionOutcome
from koord.api.nodeslo import NodeSLO
from koord.api.qos import KubeQoS
from koord.plugin import Unavailable
from koord.util.errors import OptionError
from koordlet.plugin import ClaimScope, ExtensionPlugin, Level, StateType, kinds, resources
from koordlet.plugin.testing import CapturedLog, PluginHarness, cpu_seconds, make_pod


class Watcher(ExtensionPlugin):
    """Notes what it reads once a second."""

    def init_flags(self, flags):
        self.factor = flags.int("factor", 1, "factor")

    def setup(self, client, metric_cache, states_informer):
        self.client, self.cache, self.seen, self.changes = client, metric_cache, [], 0
        states_informer.register_callbacks(StateType.ALL_PODS, "watcher", "", self.changed)
        self.count = self.metrics.counter("rounds_total", "Rounds.")

    def changed(self, state_type, state, target):
        self.changes += 1

    async def run(self, stop):
        async for _ in stop.every(1.0):
            value = self.cache.last(kinds.NODE_CPU_USAGE)
            self.seen.append(None if value is None else value * self.factor.value)
            self.count.inc()
            self.log.info("cpu.seen", cores=value)


async def test_rounds_metrics_logs_and_flags():
    """A plugin sees the values held for it; the test sees its logs, metrics and rounds."""
    harness = PluginHarness(Watcher(), args=["--factor=10"])
    harness.hold(kinds.NODE_CPU_USAGE, 1.5)
    async with harness:
        await harness.rounds(2)
        harness.hold(kinds.NODE_CPU_USAGE, 2.0)
        await harness.rounds(1)
        assert harness.plugin.seen == [15, 15, 15, 20]
        assert harness.metric("rounds_total") == 4
        assert harness.log.named("cpu.seen")[-1] == {"cores": 2.0}
        assert harness.cost.rounds == 4
        assert 0 < harness.cost.cpu_per_round < 0.1
        harness.drop(kinds.NODE_CPU_USAGE)
        await harness.advance(5)
        assert harness.plugin.seen[-1] is None


async def test_stopping_and_starting_is_what_a_gate_does():
    """The plugin can be switched off and on without a second setup."""
    async with PluginHarness(Watcher()) as harness:
        await harness.stop()
        seen = len(harness.plugin.seen)
        await harness.advance(5)
        assert len(harness.plugin.seen) == seen
        await harness.start()
        assert len(harness.plugin.seen) == seen + 1


async def test_callbacks_are_delivered():
    """A change of the pods reaches the plugin's callback."""
    async with PluginHarness(Watcher()) as harness:
        before = harness.plugin.changes
        harness.set_pods(make_pod("a"), make_pod("b"))
        await harness.advance(1)
        assert harness.plugin.changes == before + 1


async def test_the_client_is_the_standalone_one_by_default():
    """A plugin under test has no API server unless the test brings one."""
    async with PluginHarness(Watcher()) as harness:
        with pytest.raises(Unavailable):
            await harness.plugin.client.get("/api/v1/nodes")


async def test_what_a_plugin_raises_is_raised_in_the_test():
    """A failing round does not go unnoticed."""

    class Fails(Watcher):
        async def run(self, stop):
            async for turn in stop.every(1.0):
                if turn == 2:
                    raise RuntimeError("bang")

    with pytest.raises(RuntimeError, match="bang"):
        async with PluginHarness(Fails()) as harness:
            await harness.advance(10)


async def test_a_run_that_ends_early_has_no_more_rounds():
    """Waiting for rounds that will not come ends with a message."""

    class Brief(Watcher):
        async def run(self, stop):
            return

    with pytest.raises(AssertionError, match="run returned after 0 of 1 rounds"):
        async with PluginHarness(Brief()) as harness:
            await harness.rounds()


async def test_a_run_that_makes_no_rounds(monkeypatch):
    """Waiting for rounds has an end."""
    monkeypatch.setattr("koordlet.plugin.testing.harness.ROUND_TIMEOUT", 10.0)

    class Waits(Watcher):
        async def run(self, stop):
            await stop.wait()

    with pytest.raises(AssertionError, match="no 1 rounds within 10"):
        async with PluginHarness(Waits()) as harness:
            await harness.rounds()


async def test_a_run_that_ignores_stop_fails_the_test():
    """What the daemon would have to cancel is a defect."""

    class Deaf(Watcher):
        async def run(self, stop):
            while True:
                await self.clock.sleep(1)

    with pytest.raises(AssertionError, match="did not return within 5 s"):
        async with PluginHarness(Deaf()):
            pass


async def test_tasks_left_behind_fail_the_test():
    """A plugin ends what it starts."""

    class Spawns(Watcher):
        async def run(self, stop):
            self.child = asyncio.create_task(self.clock.sleep(1e6))
            await stop.wait()

    with pytest.raises(AssertionError, match="1 tasks of the plugin still ran"):
        async with PluginHarness(Spawns()):
            pass


def test_a_bad_flag_is_an_option_error():
    """The command line is parsed as the daemon does."""
    with pytest.raises(OptionError, match="factor"):
        PluginHarness(Watcher(), args=["--factor=many"])


def test_captured_log_keeps_levels_and_facts():
    """Every level is kept, in order."""
    log = CapturedLog()
    for level in ("debug", "info", "warning", "error", "exception"):
        getattr(log, level)("thing.done", level_was=level)
    assert [event.level for event in log.events] == ["debug", "info", "warning", "error", "error"]
    assert len(log.named("thing.done")) == 5
    log.clear()
    assert log.events == []


def test_cpu_seconds_does_not_count_waiting():
    """Sleeping costs nothing."""
    assert cpu_seconds(lambda: time.sleep(0.01), repeat=1) < 0.005
    assert cpu_seconds(lambda: sum(range(100_000))) > 0.0001


class Reaper(Watcher):
    """Evicts the first pod that is still there, each second."""

    gates = ("CPUEvict",)

    def setup(self, client, metric_cache, states_informer):
        self.states, self.outcomes, self.feature = states_informer, [], ""

    async def run(self, stop):
        async for _ in stop.every(1.0):
            for pod in self.states.pods()[:1]:
                eviction = await self.evict(pod, reason="cpu 99 %", feature=self.feature)
                self.outcomes.append(eviction.outcome.value)


async def test_evictions_are_scripted():
    """The API server's responses are the test's; what holds before it is the daemon's own."""
    harness = PluginHarness(Reaper(), pods=[make_pod("crunch", namespace="jobs")])
    harness.evictions.answer(EvictionOutcome.REFUSED, message="needs 2", retry_after=2.0)
    async with harness:
        await harness.rounds(12)
        assert harness.plugin.outcomes[:2] == ["refused", "refused"]
        assert harness.plugin.outcomes[-1] == "under_way"
        asked = [each.outcome.value for each in harness.evictions.asked]
        assert asked == ["refused", "evicted"]
        assert harness.evictions.evicted == ["jobs/crunch"]
        assert [event.reason for event in harness.evictions.events] == [
            "evictPodFail",
            "evictPodSuccess",
        ]
        evicted, refused = harness.explain("jobs/crunch")
        assert (evicted["outcome"], evicted["feature"]) == ("evicted", "Reaper")
        assert (refused["outcome"], refused["message"]) == ("refused", "needs 2")


async def test_a_standing_answer_for_one_pod():
    """A PodDisruptionBudget that stays."""
    harness = PluginHarness(Reaper(), pods=[make_pod("web"), make_pod("crunch")])
    harness.evictions.answer(EvictionOutcome.REFUSED, pod="default/web")
    async with harness:
        await harness.advance(60)
        harness.set_pods(make_pod("crunch"))
        await harness.rounds(1)
        assert harness.evictions.evicted == ["default/crunch"]


async def test_dry_run_and_budget_in_a_test():
    """As the flags would set them."""
    pods = [make_pod("crunch")]
    async with PluginHarness(Reaper(), pods=pods, dry_run=True) as harness:
        assert (harness.plugin.outcomes, harness.evictions.asked) == (["would_evict"], [])
    async with PluginHarness(Reaper(), pods=pods, evict_budget_per_hour=1) as harness:
        harness.set_pods(make_pod("sort"))
        await harness.rounds(1)
        assert harness.plugin.outcomes == ["evicted", "over_budget"]


async def test_a_slow_api_server():
    """The plugin waits, as it would for the real one."""
    harness = PluginHarness(Reaper(), pods=[make_pod("crunch")])
    harness.evictions.answer(EvictionOutcome.FAILED, message="no answer", after=10.0)
    async with harness:
        await harness.advance(9)
        assert harness.plugin.outcomes == []
        await harness.advance(1)
        assert harness.plugin.outcomes[0] == "failed"


async def test_without_an_api_server_evictions_are_unavailable():
    """With a message that says what to do."""
    with pytest.raises(Unavailable, match="evict default/crunch: wanted the Kubernetes API server"):
        async with PluginHarness(Reaper(), pods=[make_pod("crunch")], standalone=True):
            pass


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"reason": ""}, "say why"),
        ({"reason": "r", "feature": "MemoryEvict"}, "use one of Reaper, CPUEvict"),
        ({"reason": "r", "grace_seconds": -1}, "use 0 or more"),
    ],
)
async def test_a_wrong_request_fails_at_once(wrong, message):
    """Labels of metrics and events stay bounded and true."""
    async with PluginHarness(Reaper()) as harness:
        with pytest.raises(OptionError, match=message):
            await harness.plugin.evict(make_pod("crunch"), **wrong)
        eviction = await harness.plugin.evict(make_pod("a"), reason="r", feature="CPUEvict")
        assert eviction.accepted


class Hears(ExtensionPlugin):
    """Notes which states its callbacks get, and fails when it is said to."""

    fails = False

    def setup(self, client, metric_cache, states_informer):
        self.heard = []
        for state_type in StateType:
            states_informer.register_callbacks(state_type, "hears", "", self.hear)

    def hear(self, state_type, state, target):
        self.heard.append((state_type, len(target.pods)))
        if self.fails:
            raise ValueError("bang")

    async def run(self, stop):
        await stop.wait()


async def test_callbacks_get_the_states_that_are_there_at_the_start():
    """As in the daemon: those that are known when the plugin is switched on, each time it is."""
    plugin = Hears()
    harness = PluginHarness(plugin, pods=[make_pod("a")])
    harness.set_node_slo(NodeSLO())
    known = {StateType.ALL_PODS, StateType.NODE_METADATA, StateType.NODE_SLO_SPEC}
    async with harness:
        assert set(plugin.heard) == {(state_type, 1) for state_type in known}
        await harness.stop()
        plugin.heard.clear()
        harness.set_pods()
        await harness.advance(1)
        assert plugin.heard == []
        await harness.start()
        assert set(plugin.heard) == {(state_type, 0) for state_type in known}


async def test_what_a_callback_raises_is_raised_in_the_test():
    """By the call that let time pass."""
    plugin = Hears()
    async with PluginHarness(plugin) as harness:
        plugin.fails = True
        harness.set_pods(make_pod("a"))
        with pytest.raises(ValueError, match="bang"):
            await harness.advance(1)
        plugin.fails = False


class Quota(Hears):
    """May claim what BECPUSuppress may claim."""

    may_claim = (ClaimScope(resources.CPU_QUOTA, Level.QOS, frozenset({KubeQoS.BEST_EFFORT})),)


def test_shipped_plugins_that_are_on_are_in_the_way():
    """BECPUSuppress is on by default."""
    with pytest.raises(OptionError, match="BECPUSuppress is on and may claim it"):
        PluginHarness(Quota())
    with pytest.raises(OptionError, match="BECPUSuppress is on and may claim it"):
        PluginHarness(Quota(), gates=("Quota", "BECPUSuppress"))

    PluginHarness(Quota(), gates=("Quota",))
