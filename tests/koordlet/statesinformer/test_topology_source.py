"""This node's topology, made from what machine, node, pods and kubelet say."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koord.api.machine import NumaMemory, format_cpulist
from koord.api.node import Node
from koord.api.pod import Container
from koord.util.errors import Unavailable
from koord.util.health import OK, HealthStatus
from koord.util.stop import Stop
from koordlet.plugin.testing import SimulatedClock
from koordlet.plugin.testing.scripted import make_pod
from koordlet.statesinformer.informer import StatesInformer, StateType
from koordlet.statesinformer.topology_source import (
    CONFIG_INTERVAL,
    KubeletSource,
    TopologySource,
    cpu_manager_state_file,
)
from tests.support.kube.inline_executor import InlineExecutor
from tests.support.machines import PAIRS, machine, topology

STATIC = {"cpuManagerPolicy": "static", "kubeReserved": {"cpu": "1"}}
GIVEN = '{"policyName":"static","entries":{"p":{"c":"1"}}}'


class Kubelet:
    """Answers as a test wants it to, and counts questions."""

    def __init__(self) -> None:
        self.config: Any = {"cpuManagerPolicy": "none"}
        self.error = ""
        self.asked = 0

    async def __call__(self) -> Any:
        self.asked += 1
        if self.error:
            raise Unavailable(self.error)
        return self.config


class Scene:
    """A source with all that it looks at."""

    def __init__(self, directory: Path) -> None:
        self.clock = SimulatedClock()
        self.states = StatesInformer(self.clock)
        self.kubelet = Kubelet()
        self.checkpoint = cpu_manager_state_file(directory)
        self.machine: Any = machine()
        self.huge_pages = False
        self.callbacks = 0
        self.source = self.make()
        self.states.register_callbacks(
            StateType.NODE_TOPOLOGY, "test", "count", lambda *_: self._count()
        )
        self._stop = Stop(self.clock)
        self._tasks: list[asyncio.Task[None]] = []

    def make(self, *, ask: bool = True) -> TopologySource:
        kubelet = self.kubelet if ask else None
        return TopologySource(
            self.states,
            self.clock,
            machine=lambda: self.machine,
            kubelet=KubeletSource(kubelet, self.checkpoint.parent, self.clock),
            huge_pages=lambda: self.huge_pages,
            interval=3.0,
        )

    async def start(self) -> None:
        self.states.set_node(Node("n1"))
        self.states.set_pods(())
        for run in (self.source.run, self.states.run):
            self._tasks.append(asyncio.create_task(run(self._stop)))
        await self.clock.settle()

    async def seconds(self, count: float) -> None:
        await self.clock.advance(count)

    async def end(self) -> None:
        self._stop.set()
        await asyncio.wait_for(asyncio.gather(*self._tasks), 60)

    def write(self, text: str) -> None:
        """Replace the checkpoint as the kubelet does."""
        new = self.checkpoint.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.checkpoint)

    @property
    def ls(self) -> str:
        """The CPUs of the LS pools."""
        found = self.states.node_topology()
        return (
            "none"
            if found is None
            else format_cpulist(cpu for pool in found.ls_pools for cpu in pool.cpus)
        )

    def _count(self) -> None:
        self.callbacks += 1


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    asyncio.get_running_loop().set_default_executor(InlineExecutor())
    scene = Scene(tmp_path)
    yield scene
    await scene.end()


async def test_the_topology_is_there_at_once(scene):
    """And callbacks are called once, not at each look."""
    await scene.start()
    assert scene.ls == "0-7"
    assert scene.source.health() == OK

    await scene.seconds(30)
    assert scene.callbacks == 1


async def test_it_follows_everything(scene):
    """Pods, the node's annotations, CPUs that go offline, huge pages, the kubelet's checkpoint."""
    await scene.start()
    status = {"scheduling.koordinator.sh/resource-status": '{"cpuset":"7"}'}
    asked = (Container("main", requests={"cpu": "1"}),)
    scene.states.set_pods((make_pod("a", annotations=status, containers=asked),))
    await scene.seconds(3)
    assert scene.ls == "0-6"

    reserved = {"node.koordinator.sh/reservation": '{"reservedCPUs":"0"}'}
    scene.states.set_node(Node("n1", annotations=reserved))
    await scene.seconds(3)
    assert scene.ls == "1-6"

    scene.machine = machine(topology([(0, 1), (2,)], [(4, 5), (6, 7)]))
    await scene.seconds(3)
    assert scene.ls == "1-2,4-6"

    scene.machine = replace(machine(), memory={n: NumaMemory(8, {2 << 20: 4}) for n in (0, 1)})
    scene.huge_pages = True
    await scene.seconds(3)
    assert str(scene.states.node_topology().zones[0].resources["memory"]) == "4"

    scene.kubelet.config = STATIC
    scene.write(GIVEN)
    await scene.seconds(CONFIG_INTERVAL + 3)
    assert scene.ls == "2-6"
    scene.write(GIVEN.replace('"1"', '"1-3"'))
    await scene.seconds(3)
    assert scene.ls == "4-6"
    assert scene.callbacks == 7


async def test_nothing_is_said_before_pods_are_known(scene):
    """CPUs that a pod has of its own would be shared until then."""
    task = asyncio.create_task(scene.source.run(stop := Stop(scene.clock)))
    scene.states.set_node(Node("n1"))
    scene.states.set_pods((), provisional=True)
    await scene.seconds(30)
    assert scene.ls == "none"
    assert "not known yet" in scene.source.health().reason
    stop.set()
    await asyncio.wait_for(task, 60)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (None, "found them not read"),
        (replace(machine(), memory={}), 'CPUs on "0-1", memory on ""'),
        (machine(PAIRS, 1024), "CPUs and memory on the same nodes"),
    ],
)
async def test_a_machine_that_is_not_understood(scene, broken, message):
    """Not read yet, without NUMA information, or with memory on other nodes than CPUs."""
    scene.machine = broken
    await scene.start()
    assert scene.ls == "none"
    assert message in scene.source.health().reason

    scene.machine = machine()
    await scene.seconds(3)
    assert scene.ls == "0-7"
    assert scene.source.health() == OK


async def test_a_broken_annotation_of_the_node_keeps_the_last_topology(scene):
    """It is not known then which CPUs are set aside."""
    await scene.start()
    broken = {"node.koordinator.sh/system-qos-resource": '{"cpuset":7}'}
    scene.states.set_node(Node("n1", annotations=broken))
    scene.states.set_pods((make_pod("a"),))
    await scene.seconds(6)

    assert scene.callbacks == 1
    health = scene.source.health()
    assert health.status is HealthStatus.DEGRADED
    assert "system-qos-resource.cpuset: wanted a text" in health.reason


async def test_a_broken_annotation_of_a_pod_is_named(scene):
    """And costs nothing else."""
    await scene.start()
    status = {"scheduling.koordinator.sh/resource-status": "{"}
    scene.states.set_pods((make_pod("a", annotations=status),))
    await scene.seconds(3)
    assert scene.ls == "0-7"
    assert "pod default/a" in scene.source.health().reason


class TestKubelet:
    """What counts when the kubelet does not say all."""

    async def test_it_is_asked_once_a_minute(self, scene):
        """Koordinator asks every three seconds."""
        await scene.start()
        await scene.seconds(10 * CONFIG_INTERVAL)
        assert 10 <= scene.kubelet.asked <= 11

    async def test_one_that_refuses_is_asked_more_and_more_rarely(self, scene):
        """Until it answers, and then the topology is there."""
        scene.kubelet.error = "kubelet: refused with 403"
        await scene.start()
        await scene.seconds(600)
        assert 10 <= scene.kubelet.asked <= 16
        assert scene.ls == "none"
        reason = scene.source.health().reason
        assert "kubelet: refused with 403; " in reason
        assert "cpu_manager_state: wanted to see which CPUs" in reason
        assert "--disable-query-kubelet-config" in reason

        scene.kubelet.error = ""
        await scene.seconds(CONFIG_INTERVAL + 10)
        assert scene.ls == "0-7"
        assert scene.source.health() == OK

    async def test_its_checkpoint_will_do(self, scene):
        """While its configuration was never known."""
        scene.kubelet.error = "refused"
        scene.write(GIVEN)
        await scene.start()
        assert scene.ls == "0,2-7"
        found = scene.states.node_topology()
        assert found.cpu_manager.policy == "static"
        assert found.topology_policy is None
        assert "its checkpoint is in force" in scene.source.health().reason

        scene.kubelet.error, scene.kubelet.config = "", STATIC
        await scene.seconds(10)
        assert scene.states.node_topology().topology_policy == "None"
        assert scene.ls == "0,2-7"

    async def test_a_checkpoint_that_names_no_policy_will_not_do(self, scene):
        """An empty one is that of a kubelet which has not started."""
        scene.kubelet.error = "refused"
        scene.write("")
        await scene.start()
        assert scene.ls == "none"
        assert "refused; nor does" in scene.source.health().reason

    async def test_its_last_answer_stays(self, scene):
        """While the kubelet is away."""
        scene.kubelet.config = STATIC
        scene.write(GIVEN)
        await scene.start()
        scene.kubelet.error = "refused"
        await scene.seconds(300)
        assert scene.ls == "0,2-7"
        assert scene.states.node_topology().cpu_manager.reserved_cpus == {0}
        assert "its last answer is in force" in scene.source.health().reason

    @pytest.mark.parametrize("config", [{"cpuManagerPolicy": 7}, [], None])
    async def test_nonsense_is_no_configuration(self, scene, config):
        """The last good one stays."""
        await scene.start()
        scene.kubelet.config = config
        await scene.seconds(CONFIG_INTERVAL + 5)
        assert scene.ls == "0-7"
        assert "kubeletconfig" in scene.source.health().reason

    async def test_a_broken_checkpoint(self, scene):
        """The last good one stays; without any, nothing is said."""
        scene.kubelet.config = STATIC
        scene.write("{")
        await scene.start()
        assert scene.ls == "none"
        assert "wanted the kubelet's CPU manager state" in scene.source.health().reason

        scene.write(GIVEN)
        await scene.seconds(3)
        assert scene.ls == "0,2-7"
        for broken in ("{", '{"entries":[]}', " " * (1 << 20) + "{}", '{"entries":{"p":7}}'):
            scene.write(broken)
            await scene.seconds(3)
            assert scene.ls == "0,2-7"
            assert scene.source.health().status is HealthStatus.DEGRADED
        scene.checkpoint.unlink()
        await scene.seconds(3)
        assert scene.ls == "0,2-7"

    async def test_a_broken_checkpoint_does_not_matter_without_the_static_policy(self, scene):
        """As nothing is given away."""
        scene.write("{")
        await scene.start()
        assert scene.ls == "0-7"

    async def test_a_static_policy_without_checkpoint(self, scene):
        """Means that we look in the wrong place, so which CPUs are shared is not known."""
        scene.kubelet.config = STATIC
        await scene.start()
        assert scene.ls == "none"
        assert "see --var-lib-kubelet-dir" in scene.source.health().reason

        scene.write("")
        await scene.seconds(3)
        assert scene.ls == "0-7"
        assert scene.source.health() == OK

    async def test_a_new_policy_in_the_checkpoint(self, scene):
        """Means that the kubelet was started anew: it is asked at once."""
        scene.write(GIVEN.replace("static", "none"))
        await scene.start()
        assert scene.ls == "0-7"
        scene.kubelet.config = STATIC
        scene.write(GIVEN)
        await scene.seconds(3)
        assert scene.ls == "0,2-7"
        assert scene.kubelet.asked == 2

    async def test_one_that_is_not_to_be_asked(self, scene):
        """Is not looked at, either."""
        scene.write(GIVEN)
        scene.source = scene.make(ask=False)
        await scene.start()
        await scene.seconds(60)
        assert scene.ls == "0-7"
        assert scene.states.node_topology().topology_policy == "None"
        assert scene.kubelet.asked == 0
        assert scene.source.health() == OK
