"""What-ifs over devices: gangs that are planned whole, pods that leave for others."""

from collections.abc import AsyncIterator

import pytest

from koord_scheduler.framework.groupplan import GroupPlan, NoGroupPlan
from koord_scheduler.framework.handle import Handle
from koord_scheduler.framework.interfaces import PreEnqueuePlugin
from koord_scheduler.plugin import POD, ClusterPod
from koord_scheduler.plugin.testing import PluginHarness, ProfileHarness, fake_cluster, make_pod
from koord_scheduler_plugins.device_share.plugin import DEVICE_OBJECTS, DeviceShare
from tests.support.scheduler.devices import CORE, RATIO, device_object, gpu


class Planner(PreEnqueuePlugin):
    """Gives the test its handle."""

    def __init__(self, args: object, handle: Handle) -> None:
        self.handle = handle

    def pre_enqueue(self, pod: ClusterPod) -> None:
        """Every pod may be tried."""


NAMES = ("PrioritySort", "DefaultBinder", "DefaultPreemption", "DeviceShare", "Planner")
CONFIG = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "profiles": [
        {
            "schedulerName": "default-scheduler",
            "plugins": {
                "multiPoint": {"enabled": [{"name": name} for name in NAMES]},
                "bind": {"disabled": [{"name": "*"}], "enabled": [{"name": "RecordingBinder"}]},
            },
        }
    ],
}


@pytest.fixture
async def kit() -> AsyncIterator[ProfileHarness]:
    """Two nodes with two cards each."""
    cluster = fake_cluster()
    made = ProfileHarness(CONFIG, cluster, {"Planner": Planner}, installed=True)
    for name in ("n1", "n2"):
        amounts = {"pods": "110", CORE: "200", RATIO: "200"}
        node = {"metadata": {"name": name}, "status": {"allocatable": amounts}}
        cluster.apply({"kind": "Node", **node})
        made.informers.apply(DEVICE_OBJECTS, device_object(name, [gpu(0), gpu(1)]))
    made.server.answer(lambda call: {} if call.method == "PATCH" else None)
    async with made:
        yield made


def asks(name: str, percent: int, **more) -> ClusterPod:
    amounts = {CORE: str(percent), RATIO: str(percent)}
    spec = {"containers": [{"name": "main", "resources": {"requests": amounts}}]}
    return make_pod(name, spec={**spec, "schedulerName": "default-scheduler"}, **more)


def plan(kit: ProfileHarness, *percents: int) -> GroupPlan | NoGroupPlan:
    planner = kit.plugin("Planner")
    assert isinstance(planner, Planner)
    pods = [asks(f"m{at}", percent) for at, percent in enumerate(percents)]
    return planner.handle.groups().plan(pods, kit.cluster.state.view())


async def test_members_of_a_gang_do_not_get_the_same_cards(kit):
    found = plan(kit, 100, 100, 100, 100)
    assert isinstance(found, GroupPlan)
    assert sorted(found.nodes.values()) == ["n1", "n1", "n2", "n2"]
    assert isinstance(plan(kit, 100, 100, 100, 100, 100), NoGroupPlan)


async def test_shares_of_a_gang_do_not_fit_between_each_other(kit):
    """Four cards have room for four shares of 60, and none for a fifth, though 160 are free."""
    assert isinstance(plan(kit, 60, 60, 60, 60), GroupPlan)
    assert isinstance(plan(kit, 60, 60, 60, 60, 60), NoGroupPlan)
    assert isinstance(plan(kit, 60, 40, 60, 40, 200), GroupPlan)


async def test_a_plan_changes_nothing(kit):
    plan(kit, 200, 200)
    assert isinstance(plan(kit, 200, 200), GroupPlan)


async def test_pods_with_devices_leave_for_one_of_higher_priority(kit):
    """The victim is the pod whose leaving frees a card: what it holds goes with it."""
    low = [asks(f"low{at}", 100, priority=1) for at in range(3)]
    for one in low:
        assert (await kit.schedule(one)).node is not None
    kit.cluster.pod("bystander", "n1", priority=0)
    kit.cluster.pod("bystander2", "n2", priority=0)
    high = await kit.schedule(asks("high", 200, priority=10))
    assert high.node is None
    assert high.nominated is not None
    assert {one.name for one in high.victims} <= {one.name for one in low}
    assert len(high.victims) == 1


async def test_a_card_is_kept_for_the_pod_that_is_nominated_to_it():
    """Its victim has left, and pods of lower priority come first; others take what is left."""
    cluster = fake_cluster()
    cluster.node("n1")
    at = PluginHarness(DeviceShare, cluster)
    at.informers.apply(DEVICE_OBJECTS, device_object("n1", [gpu(0), gpu(1)]))
    async with at:
        waits = asks("high", 100, priority=10, status={"nominatedNodeName": "n1"})
        cluster.state.put(POD, waits)
        low = asks("low", 200, priority=1)
        assert at.decide(low).rejections == {"n1": "Insufficient gpu devices"}
        assert at.decide(asks("one", 100, priority=1)).node == "n1"
        assert at.decide(asks("higher", 200, priority=20)).node == "n1"
        cluster.delete("Pod", "default/high")
        assert at.decide(low).node == "n1"
