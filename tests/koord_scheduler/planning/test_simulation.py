"""A list of pods in a cluster: where each goes, what stays pending, how full nodes get."""

from random import Random
from typing import Any

import pytest
from plankit import Accounts, NoDrafts, planned, small_cluster

from koord.cluster.facts import ClusterPod
from koord.controlplane.testing.objects import make_pod
from koord_scheduler.planning.profiles import UnknownScheduler
from koord_scheduler.planning.simulation import Simulated, Simulation, Utilization


def pending(name: str, cpu: Any = 1, scheduler: str = "koord-scheduler") -> ClusterPod:
    return make_pod(name, cpu=cpu, phase="Pending", spec={"schedulerName": scheduler})


async def play(pods: list[ClusterPod], cpus: dict[str, Any], **points: Any) -> Simulated:
    profiles, services = await planned(small_cluster(**cpus), **points)
    return Simulation(profiles, services).play(pods, ("cpu", "gpu"), Random(1))


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


async def test_nothing_is_tried_when_a_pod_asks_for_another_scheduler() -> None:
    with pytest.raises(UnknownScheduler):
        await play([pending("one"), pending("two", scheduler="other")], {"a": 4})
