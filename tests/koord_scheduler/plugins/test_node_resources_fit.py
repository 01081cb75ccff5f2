"""Room on nodes, and scores by what is requested there."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord_scheduler.framework.status import CycleState
from koord_scheduler.plugin import Code, QueueingHint
from koord_scheduler.plugin.testing import assert_forms_agree
from koord_scheduler.plugin.vector import Mask, Verdicts
from koord_scheduler_plugins.node_resources import NodeResourcesFit, NodeResourcesFitArgs
from tests.support.clusters import Json, node, pod, read_node, read_pod
from tests.support.scheduler.framework import Kit, make_pod
from tests.support.scheduler.resources import GPU, NAMES, PODS, VIEWS, read_args, requesting, view

QUEUE, SKIP = QueueingHint.QUEUE, QueueingHint.SKIP
RATIO = "RequestedToCapacityRatio"


def plugin(value: Json | None = None) -> NodeResourcesFit:
    args, faults = read_args(NodeResourcesFitArgs, value)
    assert faults == []
    return NodeResourcesFit(args, None)  # type: ignore[arg-type]


def passing(one: NodeResourcesFit, pod: ClusterPod, nodes: View) -> Mask:
    found = one.filter_all(CycleState(), pod, nodes)
    return found.numbers == 0 if isinstance(found, Verdicts) else found


def strategy(kind: str, *resources: tuple[str, int], **more: Any) -> Json:
    listed = [{"name": name, "weight": weight} for name, weight in resources]
    return {"scoringStrategy": {"type": kind, "resources": listed, **more}}


ROOM = {"cpu": "10m", "memory": "20", "pods": "32", GPU: "5"}


@pytest.mark.parametrize(
    ("requests", "there", "reasons", "code"),
    [
        ({}, {"cpu": "10m", "memory": "20"}, (), None),
        ({"cpu": "1m", "memory": "1"}, {"cpu": "10m", "memory": "20"},
         ("Insufficient cpu", "Insufficient memory"), Code.UNSCHEDULABLE),
        ({"cpu": "1m", "memory": "1"}, {"cpu": "5m", "memory": "19"}, (), None),
        ({"cpu": "2m", "memory": "1"}, {"cpu": "5m", "memory": "20"}, ("Insufficient memory",),
         Code.UNSCHEDULABLE),
        ({"cpu": "11m"}, None, ("Insufficient cpu",), Code.UNSCHEDULABLE_AND_UNRESOLVABLE),
        ({"cpu": "11m", "memory": "1"}, {"memory": "20"},
         ("Insufficient cpu", "Insufficient memory"), Code.UNSCHEDULABLE_AND_UNRESOLVABLE),
        ({"cpu": "0"}, {"cpu": "10m"}, (), None),
        ({"gpu": "3"}, {"gpu": "3"}, (f"Insufficient {GPU}",), Code.UNSCHEDULABLE),
        ({"gpu": "6"}, None, (f"Insufficient {GPU}",), Code.UNSCHEDULABLE_AND_UNRESOLVABLE),
        ({"ephemeral-storage": "1"}, None, ("Insufficient ephemeral-storage",),
         Code.UNSCHEDULABLE_AND_UNRESOLVABLE),
        ({"example.com/other": "1"}, None, ("Insufficient example.com/other",),
         Code.UNSCHEDULABLE_AND_UNRESOLVABLE),
    ],
)  # fmt: skip
async def test_a_node_needs_room_for_all_that_is_requested(
    requests: Json, there: Json | None, reasons: tuple[str, ...], code: Code | None
) -> None:
    def named(amounts: Json) -> Json:
        return {GPU if name == "gpu" else name: amount for name, amount in amounts.items()}

    search = await Kit().search(filter={"NodeResourcesFit": plugin()})
    nodes = view((ROOM, None if there is None else named(there)))
    found = search.search(CycleState(), make_pod(requests=named(requests)), nodes)
    assert bool(found.feasible[0]) == (code is None)
    if code is not None:
        assert found.diagnosis.node_statuses is not None
        status = found.diagnosis.node_statuses.status(0)
        assert status is not None
        assert (status.code, status.reasons) == (code, reasons)


async def test_each_reason_counts_its_nodes() -> None:
    """A node with several is counted for each."""
    full = {"cpu": "1", "memory": "1Gi"}
    room = {**full, "pods": "1"}
    search = await Kit().search(filter={"NodeResourcesFit": plugin()})
    nodes = view((room, full), ({**room, "pods": "9"}, {"cpu": "1"}), ({**room, "pods": "0"}, None))
    found = search.search(CycleState(), requesting(cpu="1", memory="1Gi"), nodes)
    assert found.diagnosis.message() == (
        "0/3 nodes are available: 1 Insufficient memory, 2 Insufficient cpu, 2 Too many pods."
    )


@pytest.mark.parametrize(
    ("args", "feasible"),
    [
        ({}, 0),
        ({"ignoredResources": [GPU]}, 1),
        ({"ignoredResourceGroups": ["example.com"]}, 1),
        ({"ignoredResourceGroups": ["example.org"]}, 0),
    ],
)
def test_extended_resources_can_be_ignored(args: Json, feasible: int) -> None:
    found = passing(plugin(args), requesting(gpu="9"), view((ROOM, None)))
    assert found.sum() == feasible


def test_resources_of_kubernetes_cannot_be_ignored() -> None:
    """They are no extended ones, batch resources neither."""
    name = "kubernetes.io/batch-cpu"
    args = {"ignoredResources": [name, "cpu"], "ignoredResourceGroups": ["kubernetes.io"]}
    pods = make_pod(requests={name: "1"}), make_pod(requests={"cpu": "100"})
    for one in pods:
        assert not passing(plugin(args), one, view((ROOM, None)))[0]


LEAST = strategy("LeastAllocated", ("cpu", 1), ("memory", 1))
MOST = strategy("MostAllocated", ("cpu", 1), ("memory", 1))
SHAPE = [{"utilization": 0, "score": 10}, {"utilization": 100, "score": 0}]


def ratio(*resources: tuple[str, int], shape: Any = SHAPE) -> Json:
    return strategy(RATIO, *resources, requestedToCapacityRatio={"shape": shape})


SMALL, LARGE = {"cpu": "4", "memory": "10000"}, {"cpu": "6", "memory": "10000"}


@pytest.mark.parametrize(
    ("args", "asked", "nodes", "scores"),
    [
        # Pods without requests: each counts with 100m and 200 MiB.
        (None, {}, [(SMALL, None), (SMALL, None)], [48, 48]),
        # (4000-3000)/4000 and (10000-5000)/10000; (6000-3000)/6000 and the same.
        (None, {"cpu": "3", "memory": "5000"}, [(SMALL, None), (LARGE, None)], [37, 50]),
        (None, {"cpu": "3", "memory": "5000"},
         [({"cpu": "10", "memory": "20000"}, {"cpu": "3", "memory": "5000"}),
          ({"cpu": "10", "memory": "20000"}, {"cpu": "3", "memory": "10000"})], [45, 32]),
        # More than there is: nothing is free.
        (None, {"cpu": "3", "memory": "5000"}, [(SMALL, {"cpu": "3", "memory": "0"})], [25]),
        # A node without cpu is scored by its memory alone, one without both is 0.
        (None, {"cpu": "1", "memory": "5000"}, [({"memory": "10000"}, None), ({}, None)], [50, 0]),
        (strategy("LeastAllocated", ("memory", 1), ("cpu", 2)), {"cpu": "3", "memory": "5000"},
         [(SMALL, None), (LARGE, None)], [33, 50]),
        # A resource that the pod does not request counts only if it is native.
        (strategy("LeastAllocated", ("cpu", 1), (GPU, 9)), {"cpu": "2"},
         [({"cpu": "4", GPU: "1"}, None)], [50]),
        (strategy("LeastAllocated", (GPU, 1)), {"gpu": "1"}, [({GPU: "4"}, {GPU: "1"})], [50]),
        (strategy("LeastAllocated", ("pods", 1)), {"cpu": "1"}, [(SMALL, None)], [0]),
        (MOST, {"cpu": "3", "memory": "5000"}, [(SMALL, None), (LARGE, None)], [62, 50]),
        (MOST, {"cpu": "9", "memory": "5000"}, [(SMALL, None)], [75]),
        (MOST, {"cpu": "9", "memory": "5000"}, [({}, None)], [0]),
        (strategy("MostAllocated", ("memory", 1), ("cpu", 2)), {"cpu": "3", "memory": "5000"},
         [(SMALL, None), (LARGE, None)], [66, 50]),
        (ratio(("cpu", 1), ("memory", 1)), {"cpu": "3", "memory": "5000"},
         [(SMALL, None), (LARGE, None)], [38, 50]),
        # Bin packing of an extended resource: 0 to 100.
        (ratio((GPU, 1), shape=[{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]),
         {"gpu": "2"}, [({GPU: "8"}, {GPU: "4"}), ({GPU: "8"}, None)], [75, 25]),
        # Beyond its ends the line is even; a score of 0 does not count.
        (ratio(("cpu", 1), ("memory", 1), shape=[{"utilization": 30, "score": 3},
                                                 {"utilization": 60, "score": 0}]),
         {"cpu": "1", "memory": "9000"}, [(SMALL, None), (LARGE, None)], [30, 30]),
        (ratio(("cpu", 1), shape=SHAPE), {"cpu": "9"}, [(SMALL, None), ({}, None)], [0, 0]),
    ],
)  # fmt: skip
def test_scores(
    args: Json | None, asked: Json, nodes: list[tuple[Json, Json | None]], scores: list[int]
) -> None:
    """As in Kubernetes' documents; a pod that requests no memory counts with 200 MiB."""
    if asked == {}:
        nodes = [({"cpu": "4", "memory": "10000Mi"}, one) for _, one in nodes]
        scores = [(97 + 98) // 2] * len(nodes)
    found = plugin(args).score_all(CycleState(), requesting(**asked), view(*nodes))
    assert found.tolist() == scores


@pytest.mark.parametrize(("resource", "skipped"), [(GPU, True), ("cpu", False)])
def test_where_no_resource_counts_nothing_is_scored(resource: str, skipped: bool) -> None:
    """All nodes would have the score 0."""
    one, nodes = plugin(strategy("LeastAllocated", (resource, 1))), view((ROOM, None), (ROOM, None))
    status = one.pre_score(CycleState(), make_pod(), nodes, np.ones(2, np.bool_))
    assert (status is not None and status.code is Code.SKIP) == skipped


STRATEGIES = [
    {},
    {"ignoredResourceGroups": ["example.com"]},
    strategy("LeastAllocated", *((name, at + 1) for at, name in enumerate(NAMES))),
    strategy("MostAllocated", *((name, 9 - at) for at, name in enumerate(NAMES)), ("pods", 2)),
    ratio(*((name, at + 1) for at, name in enumerate(NAMES))),
    ratio(("cpu", 1), ("memory", 3), (GPU, 2),
          shape=[{"utilization": 13, "score": 7}, {"utilization": 37, "score": 2},
                 {"utilization": 71, "score": 9}]),
]  # fmt: skip


@given(PODS, VIEWS, st.sampled_from(STRATEGIES))
def test_both_forms_agree(asks: ClusterPod, nodes: View, args: Json) -> None:
    """With the same reasons, in the same order."""
    assert_forms_agree(plugin(args), asks, nodes)


def test_many_kinds_of_resources() -> None:
    """More than a table of all combinations is made for."""
    names = [f"example.com/r{at:02}" for at in range(14)]
    room = {**dict.fromkeys(names, "1"), "pods": "9"}
    nodes = view((room, None), (room, {names[3]: "1"}), (room, {names[13]: "1", names[0]: "1"}))
    asks = make_pod(requests=dict.fromkeys(names, "1"))
    assert_forms_agree(plugin(), asks, nodes)
    assert passing(plugin(), asks, nodes).tolist() == [True, False, False]


BAD = [
    ({"ignoredResources": ["-a"]}, "ignoredResources[0]"),
    ({"ignoredResourceGroups": ["a/b"]}, "ignoredResourceGroups[0]"),
    ({"scoringStrategy": {"type": "Best"}}, "scoringStrategy.type"),
    ({"scoringStrategy": {}}, "scoringStrategy.type"),
    (strategy("LeastAllocated", ("cpu", 101)), "scoringStrategy.resources[0].weight"),
    (strategy("LeastAllocated", ("cpu", -1)), "scoringStrategy.resources[0].weight"),
    (strategy(RATIO, ("cpu", 1)), "scoringStrategy.requestedToCapacityRatio"),
    (strategy(RATIO, requestedToCapacityRatio={"shape": []}), "requestedToCapacityRatio.shape"),
    (ratio(("cpu", 1), shape=SHAPE[::-1]), "shape[1].utilization"),
    (ratio(("cpu", 1), shape=[{"utilization": 101, "score": 1}]), "shape[0].utilization"),
    (ratio(("cpu", 1), shape=[{"utilization": 1, "score": 11}]), "shape[0].score"),
    (strategy("MostAllocated", requestedToCapacityRatio={"shape": SHAPE}),
     "scoringStrategy.requestedToCapacityRatio"),
    ({"unknown": 1}, "unknown"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "place"), BAD, ids=[place for _, place in BAD])
def test_bad_arguments(value: Json, place: str) -> None:
    args, faults = read_args(NodeResourcesFitArgs, value)
    assert args is None
    assert any(place in fault for fault in faults)


def test_defaults_of_arguments() -> None:
    args, _ = read_args(NodeResourcesFitArgs, {"scoringStrategy": {"type": "MostAllocated",
                        "resources": [{"name": GPU}]}})  # fmt: skip
    assert [(one.name, one.weight) for one in args.scoring_strategy.resources] == [(GPU, 1)]
    args, _ = read_args(NodeResourcesFitArgs, None)
    assert args.scoring_strategy.type == "LeastAllocated"
    named = [(one.name, one.weight) for one in args.scoring_strategy.resources]
    assert named == [("cpu", 1), ("memory", 1)]


def room(**allocatable: str) -> Json:
    return node("n", None, {"pods": "10", **allocatable})


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        (None, room(cpu="4"), QUEUE),
        (None, room(cpu="1"), SKIP),
        (room(cpu="1"), room(cpu="4"), QUEUE),
        (room(cpu="4"), room(cpu="3"), SKIP),
        (room(cpu="4", memory="1"), room(cpu="4", memory="2"), SKIP),
        (room(cpu="4", pods="1"), room(cpu="4", pods="2"), QUEUE),
        (None, room(cpu="4", pods="0"), SKIP),
    ],
)
def test_a_node_helps_that_has_more(old: Json | None, new: Json, hint: QueueingHint) -> None:
    _, event = plugin().events_to_register()
    assert event.hint is not None
    before = None if old is None else read_node(old)
    assert event.hint(requesting(cpu="2"), before, read_node(new)) is hint


def of(requests: Json, where: str = "n", name: str = "other") -> ClusterPod:
    return read_pod(pod(name, where, requests=requests))


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        (of({"cpu": "1"}), None, QUEUE),
        (of({"cpu": "1"}, ""), None, SKIP),
        (of({"cpu": "2"}), of({"cpu": "1"}), QUEUE),
        (of({"memory": "2"}), of({"memory": "1"}), SKIP),
        (of({"cpu": "2"}, ""), of({"cpu": "1"}, ""), SKIP),
        (of({"cpu": "2"}, "", "web"), of({"cpu": "1"}, "", "web"), QUEUE),
    ],
)
def test_a_pod_helps_that_leaves_or_shrinks(
    old: ClusterPod, new: ClusterPod | None, hint: QueueingHint
) -> None:
    event, _ = plugin().events_to_register()
    assert event.hint is not None
    assert event.hint(requesting(cpu="1"), old, new) is hint
