"""Victims where it helps: on the NUMA node, and with the devices, that a pod needs.

What is chosen is compared with all sets of pods that could leave.
"""

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.annotations import DEVICE_ALLOCATED
from koord.api.devices.requests import ALLOCATE_HINT
from koord_scheduler.plugin import ClusterPod
from koord_scheduler.plugin.testing import PluginHarness, fake_cluster, make_pod
from koord_scheduler_plugins.default_preemption import DefaultPreemption
from koord_scheduler_plugins.device_share.plugin import DEVICE_OBJECTS, DeviceShare
from koord_scheduler_plugins.node_numa_resource.plugin import TOPOLOGIES, NodeNUMAResource
from tests.support.scheduler.devices import CARD, CORE, MEMORY, RATIO, d8, h8
from tests.support.scheduler.numa import held, topology_object

SINGLE = {"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"}
PRIORITY = 10
Feasible = Callable[[Collection[str]], bool]
"""Whether the pod fits when pods of these names are there."""


def cost(victims: Collection[str], priorities: Mapping[str, int]) -> tuple[int, int, int]:
    """The order of kube-scheduler, without budgets and times: less is better."""
    found = [priorities[name] for name in victims]
    return max(found), sum(one + 2**31 for one in found), len(found)


def cheapest(priorities: Mapping[str, int], feasible: Feasible) -> tuple[int, int, int] | None:
    """The least cost of any pods of lower priority without which the pod fits; None: of none."""
    lower = [name for name, priority in priorities.items() if priority < PRIORITY]
    return min(
        (
            cost(victims, priorities)
            for count in range(1, len(lower) + 1)
            for victims in combinations(lower, count)
            if feasible(priorities.keys() - set(victims))
        ),
        default=None,
    )


async def victims_of(
    at: PluginHarness, pod: ClusterPod, priorities: Mapping[str, int], feasible: Feasible
) -> list[str] | None:
    """Schedule the pod; return its victims, each of which is needed; None: there are none."""
    async with at:
        found = await at.schedule(pod)
    if not found.nominated:
        assert not found.victims
        return None
    victims = [one.name for one in found.victims]
    stay = priorities.keys() - set(victims)
    assert feasible(stay)
    assert not any(feasible(stay | {name}) for name in victims)
    return victims


def harness(plugin: Any, **labels: str) -> PluginHarness:
    cluster = fake_cluster()
    amounts = {"nvidia.com/gpu": 8, "koordinator.sh/rdma": 400}
    cluster.node("n1", cpu=64, memory="512Gi", labels=labels, allocatable=amounts)
    return PluginHarness(plugin, cluster, extra_plugins={"DefaultPreemption": DefaultPreemption})


# CPUs: two NUMA nodes with four cores of one thread each.

CPU_PODS = st.lists(
    st.tuples(st.sampled_from((0, 4)), st.integers(0, 3), st.sampled_from((-5, 0, 1, 9, 10, 30))),
    unique_by=lambda one: one[0] + one[1],
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(CPU_PODS, st.integers(1, 4))
def test_pods_of_one_numa_node_leave(pods: list[tuple[int, int, int]], cpus: int) -> None:
    """Each of the pods has one CPU, and the new one gets all of its CPUs of one NUMA node."""
    where = {f"p{at}": first + offset for at, (first, offset, _) in enumerate(pods)}
    priorities = {f"p{at}": one[2] for at, one in enumerate(pods)}

    def feasible(stay: Collection[str]) -> bool:
        taken = {where[name] for name in stay}
        return any(len(set(range(first, first + 4)) - taken) >= cpus for first in (0, 4))

    if feasible(priorities):
        return
    at = harness(NodeNUMAResource, **SINGLE)
    for name, cpu in where.items():
        zones = {cpu // 4: {"cpu": "1"}}
        annotations = held(str(cpu), zones)
        at.cluster.pod(name, "n1", cpu=1, annotations=annotations, priority=priorities[name])
    at.informers.apply(TOPOLOGIES, topology_object("n1", "2x1x4x1"))
    pod = make_pod(
        "new",
        cpu=cpus,
        priority=PRIORITY,
        labels={"koordinator.sh/qosClass": "LSR"},
        phase="Pending",
    )
    found = asyncio.run(victims_of(at, pod, priorities, feasible))
    wanted = cheapest(priorities, feasible)
    assert (None if found is None else cost(found, priorities)) == wanted


async def test_the_only_pod_of_a_numa_node_leaves_in_place_of_two() -> None:
    """By their order alone z would come back first, and x and y would leave."""
    at = harness(NodeNUMAResource, **SINGLE)
    of_pods = {"x": ("0-1", 5, 20), "y": ("2-3", 1, 30), "z": ("4-5", 5, 10)}
    for name, (cpus, priority, started) in of_pods.items():
        zone = int(cpus[0]) // 4
        status = {"startTime": f"2026-01-01T00:00:{started}Z"}
        at.cluster.pod(
            name,
            "n1",
            cpu=2,
            annotations=held(cpus, {zone: {"cpu": "2"}}),
            priority=priority,
            status=status,
        )
    at.informers.apply(TOPOLOGIES, topology_object("n1", "2x1x4x1"))
    labels = {"koordinator.sh/qosClass": "LSR"}
    async with at:
        found = await at.schedule(make_pod("new", cpu=4, priority=PRIORITY, labels=labels))
    assert [one.name for one in found.victims] == ["z"]


# GPUs: 8 cards on 4 switches of 2 NUMA nodes, or with partitions.

GPU_PODS = st.lists(
    st.tuples(st.integers(0, 7), st.sampled_from((-5, 0, 1, 9, 10, 30))),
    unique_by=lambda one: one[0],
    min_size=4,
    max_size=8,
)
PAIRS = [{first, first + 1} for first in range(0, 8, 2)]
FOURS = [{0, 1, 2, 3}, {4, 5, 6, 7}]
ANY = [set(pair) for pair in combinations(range(8), 2)]


@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize(
    ("count", "places", "scope", "partitioned"),
    [
        pytest.param(2, PAIRS, "PCIe", False, id="two of a switch"),
        pytest.param(4, FOURS, "NUMANode", False, id="four of a NUMA node"),
        pytest.param(2, ANY, "", False, id="any two"),
        pytest.param(4, FOURS, "", True, id="a partition of four"),
        pytest.param(2, PAIRS, "", True, id="a partition of two"),
    ],
)
@given(pods=GPU_PODS)
def test_pods_with_cards_that_help_leave(
    count: int,
    places: Sequence[set[int]],
    scope: str,
    partitioned: bool,
    pods: list[tuple[int, int]],
) -> None:
    """Each of the pods has one card."""
    where = {f"p{at}": minor for at, (minor, _) in enumerate(pods)}
    priorities = {f"p{at}": one[1] for at, one in enumerate(pods)}

    def feasible(stay: Collection[str]) -> bool:
        taken = {where[name] for name in stay}
        return any(not place & taken for place in places)

    if feasible(priorities):
        return
    labels = {"node.koordinator.sh/gpu-model": "H800"} if partitioned else {}
    labels |= {"node.koordinator.sh/gpu-partition-policy": "Honor"} if partitioned else {}
    at = harness(DeviceShare, **labels)
    for name, minor in where.items():
        amounts = {CORE: "100", RATIO: "100", MEMORY: str(CARD)}
        given_card = {"gpu": [{"minor": minor, "resources": amounts}]}
        at.cluster.apply(with_card(name, json.dumps(given_card), priorities[name]))
    at.informers.apply(DEVICE_OBJECTS, h8("n1") if partitioned else d8("n1"))
    hint = {ALLOCATE_HINT: json.dumps({"gpu": {"requiredTopologyScope": scope}})} if scope else {}
    pod = make_pod(
        "new",
        priority=PRIORITY,
        annotations=hint,
        phase="Pending",
        spec={"containers": gpus(count)},
    )
    found = asyncio.run(victims_of(at, pod, priorities, feasible))
    wanted = cheapest(priorities, feasible)
    assert (None if found is None else cost(found, priorities)) == wanted


def gpus(count: int) -> list[Any]:
    amounts = {"nvidia.com/gpu": str(count)}
    return [{"name": "main", "resources": {"requests": amounts, "limits": amounts}}]


def with_card(name: str, text: str, priority: int) -> dict[str, Any]:
    meta = {"name": name, "namespace": "default", "uid": f"uid-default-{name}"}
    return {
        "kind": "Pod",
        "metadata": {**meta, "annotations": {DEVICE_ALLOCATED: text}},
        "spec": {"nodeName": "n1", "priority": priority, "containers": gpus(1)},
        "status": {"phase": "Running"},
    }
