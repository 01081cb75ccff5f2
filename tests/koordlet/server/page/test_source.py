"""What the agent gives its status page, at first and then."""

import json
from contextlib import closing

import pytest

from koord.api.nodeslo import merge_nodeslo
from koord.api.pod import Pod
from koord.api.qos import KubeQoS
from koord.component.page.sections import CURSORS
from koord.util.clock import stamp
from koord.util.health import Health, HealthStatus, PartHealth
from koordlet.executor.claims.claim import Change, Key, Target
from koordlet.host.resources import CPU_QUOTA
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import (
    DEFAULT_INTERVALS,
    NODE_CPU_USAGE,
    POD_CPU_USAGE,
    RetentionClass,
    Sample,
)
from koordlet.plugin.testing.scripted import SimulatedClock
from koordlet.server.page import AgentPage, AgentPageSources, ChangeAnnotations
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.podmeta import PodMeta

HOSTILE = "<script>alert(1)</script>"
POD = PodMeta(
    Pod("shop", HOSTILE, "uid-web"),
    "kubepods/web",
    (),
    Pod("a", "b", "c").qos_class,
    KubeQoS.BURSTABLE,
)


class Agent:
    """An agent with one pod, and a page of it."""

    def __init__(self, cache, clock):
        self.cache, self.clock = cache, clock
        self.health = PartHealth(HealthStatus.OK)
        self.looked = 0
        self.flushed = 0
        self.states = states = StatesInformer(clock)
        states.set_pods([POD])
        health = Health()
        health.register("sampling", lambda: self.health)
        self.annotations = ChangeAnnotations(clock.wall)
        self.page = AgentPage(
            AgentPageSources(
                node="node-1",
                cache=cache,
                states=states,
                health=health,
                cpu_limits=dict,
                plugins=self.plugins,
                dry_run=lambda: {"observeOnly": "", "plugins": []},
                decisions=list,
                explain=self.explain,
                flush=self.flush,
                audit=lambda query: {"pod": query.pod, "flushed": self.flushed},
                annotations=self.annotations,
            ),
            clock,
        )

    def plugins(self):
        self.looked += 1
        return [{"name": "CPUSuppress", "state": "running"}]

    async def explain(self, place):
        return lambda: {"about": place}

    async def flush(self):
        self.flushed += 1

    def run(self, seconds=1):
        """Sample for so long."""
        for _ in range(seconds):
            self.clock.tick(1)
            samples = [Sample(NODE_CPU_USAGE, 1.0, ()), Sample(POD_CPU_USAGE, 0.5, (POD.uid,))]
            self.cache.append(stamp(self.clock), samples)


@pytest.fixture
def agent():
    clock = SimulatedClock()
    retentions = {RetentionClass.NODE: 1800.0, RetentionClass.POD: 300.0}
    with closing(
        MetricCache(None, "boot", clock, intervals=DEFAULT_INTERVALS, retentions=retentions)
    ) as cache:
        yield Agent(cache, clock)


async def test_the_first_answer_has_everything(agent):
    agent.run(5)
    answer = await agent.page.snapshot()
    assert answer["whole"] is True
    sections = json.loads(json.dumps(answer["sections"], allow_nan=False))
    assert set(sections) == {
        *("health", "plugins", "dryRun", "decisions", "lines", "measured", "capacity"),
        *("node", "qos", "pods", "sparklines", "nodeslo", "charts", "marks"),
    }
    assert len(sections["charts"]["cpu"]["t"]) == 4  # the newest tick may not be whole yet
    [pod] = sections["pods"]
    assert pod["name"] == f"shop/{HOSTILE}"
    assert sections["sparklines"][POD.uid][-1] == 0.5


async def test_then_only_what_changed_comes(agent):
    agent.run(5)
    now = (await agent.page.snapshot())["now"]
    agent.run(2)
    answer = await agent.page.changes(now)
    assert "whole" not in answer
    assert set(answer["sections"]) == {"measured", "charts"}
    assert list(answer["sections"]["charts"]) == ["cpu"]  # rows are the same, and the rest
    assert len(answer["sections"]["charts"]["cpu"]["t"]) == 2
    agent.health = PartHealth(HealthStatus.DEGRADED, "slow disk")
    agent.clock.tick(1)
    agent.annotations(
        Change("set", Key(Target.of_pod(POD), CPU_QUOTA), ("CPUBurst",), 1, 2, "throttled")
    )
    answer = await agent.page.changes(answer["now"])
    assert answer["sections"]["health"]["parts"] == [
        {"name": "sampling", "status": "degraded", "reason": "slow disk"}
    ]
    assert [mark["pod"] for mark in answer["sections"]["marks"]] == [f"shop/{HOSTILE}"]
    assert "plugins" not in answer["sections"]


async def test_another_nodeslo_is_shown_once(agent):
    now = (await agent.page.snapshot())["now"]
    agent.states.set_node_slo(merge_nodeslo({"spec": {"cpuBurstStrategy": {"policy": "auto"}}})[0])
    agent.run()
    answer = await agent.page.changes(now)
    assert {"path": "cpuBurstStrategy.policy", "value": "auto", "origin": "NodeSLO"} in answer[
        "sections"
    ]["nodeslo"]["values"]
    agent.run()
    assert "nodeslo" not in (await agent.page.changes(answer["now"]))["sections"]


async def test_pages_share_what_is_read_and_each_gets_each_point_once(agent):
    agent.run(3)
    times = {}
    for page in range(8):
        answer = await agent.page.snapshot()
        times[page] = [answer["now"], list(answer["sections"]["charts"]["cpu"]["t"])]
    assert agent.looked == 1
    assert len({now for now, _ in times.values()}) == 8
    for second in range(1, 13):
        agent.run()
        for page in range(8):
            if page == 0 or second % page == 0:
                answer = await agent.page.changes(times[page][0])
                assert "whole" not in answer
                times[page][0] = answer["now"]
                times[page][1] += answer["sections"].get("charts", {}).get("cpu", {"t": []})["t"]
    agent.clock.tick(1)
    whole = (await agent.page.snapshot())["sections"]["charts"]["cpu"]["t"]
    for page, (now, seen) in times.items():
        answer = await agent.page.changes(now)
        assert seen + answer["sections"]["charts"]["cpu"]["t"] == whole, page


async def test_a_reader_that_is_forgotten_gets_everything(agent):
    agent.run(3)
    first = (await agent.page.snapshot())["now"]
    for _ in range(CURSORS):
        await agent.page.snapshot()
    assert (await agent.page.changes(first))["whole"] is True
    assert (await agent.page.changes(float("nan")))["whole"] is True


async def test_after_a_step_of_the_clock_all_points_come_anew(agent):
    agent.run(3)
    now = (await agent.page.snapshot())["now"]
    agent.clock.step_wall(-7200)
    agent.run(1)
    answer = await agent.page.changes(now)
    assert answer["whole"] is True
    times = answer["sections"]["charts"]["cpu"]["t"]
    assert times == sorted(times)
    assert times[-1] <= agent.clock.wall()


async def test_a_pod_is_shown_with_its_charts_and_why_it_is_limited(agent):
    agent.run(10)
    found = await agent.page.detail("pod", POD.uid)
    assert found["charts"]["cpu"]["series"]["usage"] == [0.5] * 10
    assert found["explain"] == {"about": POD.uid}


async def test_details_of_nothing_are_none(agent):
    assert await agent.page.detail("pod", "../../etc/passwd") is None
    assert await agent.page.detail("explain", "x" * 513) is None
    assert await agent.page.detail("secrets", "x") is None
    assert await agent.page.detail("explain", "/kubepods") == {"about": "/kubepods"}
    assert await agent.page.detail("audit", "web") == {"pod": "web", "flushed": 1}
