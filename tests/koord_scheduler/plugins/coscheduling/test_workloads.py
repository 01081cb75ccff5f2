"""Gangs of Kubernetes' own Workloads."""

from typing import Any

import pytest

from koord_scheduler_plugins.coscheduling.gangs import WORKLOADS
from tests.support.scheduler.gangs import World


def workload(world: World, *groups: Any, name: str = "job") -> None:
    meta = {"namespace": "default", "name": name, "uid": name}
    world.services.informers.apply(
        WORKLOADS, {"metadata": meta, "spec": {"podGroups": list(groups)}}
    )


def group(minimum: int | None, name: str = "workers") -> Any:
    policy = {"basic": {}} if minimum is None else {"gang": {"minCount": minimum}}
    return {"name": name, "policy": policy}


def add(world: World, name: str, group: str = "workers", **more: str) -> str:
    reference = {"name": "job", "podGroup": group, **more}
    return world.api.add_pod(name, workloadRef=reference)


async def test_pods_wait_for_their_workload_and_for_each_other():
    world = await World().begin(4)
    for name in "ab":
        add(world, name)
    await world.settle()
    assert [world.place(f"default/{name}") for name in "ab"] == ["gated", "gated"]
    workload(world, group(3))
    await world.settle()
    assert world.bound == []
    add(world, "c")
    await world.settle()
    assert world.bound == ["a", "b", "c"]
    await world.end()


async def test_a_group_that_does_not_fit_holds_nothing():
    world = await World().begin(2)
    workload(world, group(3))
    for name in "abc":
        add(world, name)
    await world.settle()
    assert world.bound == []
    assert world.state.assumed_count == 0
    world.api.add_node("n1")
    await world.advance(15)
    assert world.bound == ["a", "b", "c"]
    await world.end()


async def test_replicas_of_a_group_are_gangs_of_their_own():
    world = await World().begin(2)
    workload(world, group(2))
    for name, key in (("a0", "0"), ("b0", "0"), ("a1", "1"), ("b1", "1")):
        add(world, name, podGroupReplicaKey=key)
    await world.settle()
    assert world.bound in (["a0", "b0"], ["a1", "b1"])
    await world.end()


async def test_a_replacement_counts_together_with_those_that_run():
    world = await World().begin(4)
    workload(world, group(2))
    for name in "ab":
        add(world, name)
    await world.settle()
    world.api.delete_pod("default/a")
    add(world, "c")
    await world.settle()
    assert world.bound == ["a", "b", "c"]
    await world.end()


async def test_pods_of_a_basic_group_are_placed_one_by_one():
    world = await World().begin(1)
    workload(world, group(None), group(2, "others"))
    for name in "ab":
        add(world, name)
    await world.settle()
    assert len(world.bound) == 1
    await world.end()


@pytest.mark.parametrize("name", ["none", ""])
async def test_a_pod_of_a_group_that_the_workload_does_not_have_waits(name):
    world = await World().begin(4)
    workload(world, group(1))
    add(world, "a", name)
    await world.settle()
    assert (world.place("default/a") == "gated") == bool(name)
    await world.end()


async def test_a_workload_that_is_not_understood_leaves_the_last_good_one():
    world = await World().begin(4)
    workload(world, group(2))
    workload(world, group(0))
    for name in "ab":
        add(world, name)
    await world.settle()
    assert world.bound == ["a", "b"]
    reason = world.services.custom_resources.health().reason
    assert "default/job: workload.spec.podGroups[0].policy.gang.minCount" in reason
    await world.end()


async def test_labels_name_the_gang_before_a_workload():
    world = await World().begin(4)
    reference = {"name": "job", "podGroup": "workers"}
    world.add("a", 2, workloadRef=reference)
    await world.settle()
    world.add("b", 2)
    await world.settle()
    assert world.bound == ["a", "b"]
    await world.end()


async def test_nothing_is_kept_of_workloads_whose_pods_have_gone():
    world = await World().begin(4)
    key = add(world, "a")
    await world.settle()
    world.api.delete_pod(key)
    await world.settle()
    assert world.plugin._workloads._gangs == {}
    await world.end()
