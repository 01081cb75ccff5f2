"""A list of pods in a cluster: where each goes, what stays pending, how full nodes get."""

from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from koord.cluster.facts import ClusterPod
from koord.cluster.kinds import POD
from koord.cluster.state import ClusterState
from koord.cluster.view import View
from koord.controlplane.testing import make_pod
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.handle import Handle
from koord_scheduler.framework.interfaces import PostFilterPlugin, ReservePlugin, pod_changes
from koord_scheduler.framework.status import CycleState, NodeStatuses, PostFilterResult, Status
from koord_scheduler.planning.report import simulation_report
from koord_scheduler.planning.simulation import Simulated, Simulation, UnknownScheduler, Utilization
from koord_scheduler_plugins.default_preemption import DefaultPreemption, DefaultPreemptionArgs
from tests.support.scheduler.planning import Accounts, NoDrafts, planned, small_cluster


def pending(name: str, cpu: Any = 1, scheduler: str = "koord-scheduler") -> ClusterPod:
    return make_pod(name, cpu=cpu, phase="Pending", spec={"schedulerName": scheduler})


async def play(pods: list[ClusterPod], cpus: dict[str, Any], **points: Any) -> Simulated:
    profiles, services = await planned(small_cluster(**cpus), **points)
    return await Simulation(profiles, services).play(pods, ("cpu", "gpu"), Random(1))


async def test_each_pod_sees_those_before_it() -> None:
    pods = [pending(f"p{number}", cpu=2) for number in range(5)]
    result = await play(pods, {"a": 4, "b": 4})
    assert sorted(one.node or "" for one in result.pods) == ["", "a", "a", "b", "b"]
    (left,) = result.pending
    assert left.message == "0/2 nodes are available: 2 Insufficient cpu."
    assert result.before == {"cpu": Utilization(0.0, 0.0, 0.0)}
    assert result.after == {"cpu": Utilization(1.0, 1.0, 1.0)}


async def test_gated_pods_stay_pending() -> None:
    result = await play(
        [pending("draft-1"), pending("p")], {"a": 4}, preEnqueue={"NoDrafts": NoDrafts()}
    )
    assert [(one.pod.name, one.node, one.message) for one in result.pods] == [
        ("draft-1", None, "it is a draft"),
        ("p", "a", ""),
    ]


async def test_reserve_has_its_say() -> None:
    accounts = Accounts(most=1)
    pods = [pending("one"), pending("two")]
    result = await play(pods, {"a": 4}, reserve={"Accounts": accounts})
    assert [(one.node, one.message) for one in result.pods] == [("a", ""), (None, "no more")]
    assert accounts.reserved == {"default/one": "a"}
    assert result.after["cpu"].mean == 0.25


class Numbers(ReservePlugin):
    """Writes on each pod how many before it have a number: what an account would read."""

    def __init__(self) -> None:
        self.cluster: ClusterState | None = None

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        assert self.cluster is not None
        view = self.cluster.view()
        before = [one for row in range(len(view)) for one in view.pods(row) if one.annotations]
        pod_changes(state).annotations["number"] = str(len(before))
        return None

    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        """Nothing is kept."""


async def test_pods_have_what_reserve_writes_on_them() -> None:
    """Accounts read it: devices of one pod are not those of the next."""
    cluster, numbers = small_cluster(a=4), Numbers()
    numbers.cluster = cluster
    profiles, services = await planned(cluster, reserve={"Numbers": numbers})
    await Simulation(profiles, services).play([pending("one"), pending("two")], ("cpu",), Random(1))
    found = [cluster.pod(f"default/{name}") for name in ("one", "two")]
    assert [None if one is None else one.annotations for one in found] == [
        (("number", "0"),),
        (("number", "1"),),
    ]


async def test_nothing_is_tried_when_a_pod_asks_for_another_scheduler() -> None:
    with pytest.raises(UnknownScheduler):
        await play([pending("one"), pending("two", scheduler="other")], {"a": 4})


async def preempting(cpus: dict[str, Any], *running: ClusterPod) -> Simulation:
    """With DefaultPreemption, in a cluster where pods run."""
    cluster = small_cluster(**cpus)
    for pod in running:
        cluster.put(POD, pod)
    profiles, services = await planned(
        cluster, made=(("DefaultPreemption", default_preemption, Point.POST_FILTER),)
    )
    return Simulation(profiles, services)


def default_preemption(args: object, handle: Handle) -> DefaultPreemption:
    return DefaultPreemption(DefaultPreemptionArgs(), handle)


def running(name: str, node: str, cpu: int = 2, priority: int = 0) -> ClusterPod:
    return make_pod(name, cpu=cpu, priority=priority, node=node)


async def test_a_pod_without_room_preempts_others_as_its_profile_has_it() -> None:
    """The least important pods leave, on the node where that costs least."""
    simulation = await preempting(
        {"a": 4, "b": 4},
        running("a1", "a", priority=5),
        running("a2", "a", priority=5),
        running("b1", "b", priority=1),
        running("b2", "b", priority=9),
    )
    pod = replace(pending("vip", cpu=2), priority=10)
    result = await simulation.play([pod], ("cpu",), Random(1))
    assert [(one.pod.name, one.node, one.message) for one in result.pods] == [("vip", "b", "")]
    assert [(one.pod.name, one.node, one.by) for one in result.evicted] == [
        ("b1", "b", "default/vip")
    ]
    assert (result.before["cpu"], result.after["cpu"]) == (Utilization(1.0, 1.0, 1.0),) * 2
    report = simulation_report(result)
    assert report["evicted"] == [{"pod": "default/b1", "node": "b", "by": "default/vip"}]


async def test_a_pod_that_was_placed_before_may_have_to_leave() -> None:
    """It is shown as evicted, and its room is the other's."""
    simulation = await preempting({"a": 4})
    low, high = (replace(pending(name, cpu=3), priority=p) for name, p in (("low", 1), ("hi", 2)))
    result = await simulation.play([low, high], ("cpu",), Random(1))
    assert [(one.pod.name, one.node, one.message) for one in result.pods] == [
        ("low", None, "evicted from a for default/hi"),
        ("hi", "a", ""),
    ]
    assert result.after["cpu"].mean == 0.75


async def test_where_preemption_is_no_help_nobody_leaves_and_the_message_says_so() -> None:
    simulation = await preempting({"a": 4}, running("a1", "a", cpu=4, priority=50))
    result = await simulation.play([replace(pending("p"), priority=10)], ("cpu",), Random(1))
    [left] = result.pending
    assert result.evicted == ()
    assert left.message == (
        "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: "
        "1 No preemption victims found for incoming pod."
    )


class OnlyActs(PostFilterPlugin):
    """Cannot say what it would do."""

    async def post_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View, statuses: NodeStatuses
    ) -> PostFilterResult:
        raise AssertionError("a plan must not act")


async def test_plugins_that_can_only_act_are_not_called() -> None:
    result = await play([pending("p", cpu=9)], {"a": 4}, postFilter={"OnlyActs": OnlyActs()})
    [left] = result.pending
    assert left.message == "0/1 nodes are available: 1 Insufficient cpu."
