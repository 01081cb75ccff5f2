"""Nodes whose resources are used alike."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord_scheduler.framework.status import CycleState
from koord_scheduler.plugin import Code
from koord_scheduler.plugin.testing import assert_forms_agree
from koord_scheduler_plugins.node_resources import (
    NodeResourcesBalancedAllocation,
    NodeResourcesBalancedAllocationArgs,
)
from tests.support.clusters import Json
from tests.support.scheduler.resources import GPU, NAMES, PODS, VIEWS, read_args, requesting, view


def plugin(*resources: str) -> NodeResourcesBalancedAllocation:
    value = {"resources": [{"name": name} for name in resources]}
    args, faults = read_args(NodeResourcesBalancedAllocationArgs, value)
    assert faults == []
    return NodeResourcesBalancedAllocation(args, None)  # type: ignore[arg-type]


SMALL, LARGE = {"cpu": "4", "memory": "10000"}, {"cpu": "6", "memory": "10000"}
WIDE = {"cpu": "10", "memory": "20000"}


@pytest.mark.parametrize(
    ("resources", "asked", "nodes", "scores"),
    [
        # 3000/4000 and 5000/10000; both half.
        ((), {"cpu": "3", "memory": "5000"}, [(SMALL, None), (LARGE, None)], [87, 100]),
        ((), {"cpu": "3", "memory": "5000"},
         [(WIDE, {"cpu": "3", "memory": "5000"}), (WIDE, {"cpu": "3", "memory": "10000"})],
         [95, 92]),
        # What is there counts as requested, without any default; more than all is all.
        ((), {"cpu": "3"}, [(SMALL, {"memory": "0"}), (SMALL, {"memory": "9000"})], [62, 92]),
        ((), {"cpu": "9", "memory": "10000"}, [(SMALL, None)], [100]),
        # One resource alone is balanced.
        ((), {"cpu": "1"}, [({"cpu": "4"}, None), ({}, None)], [100, 100]),
        # 0.75, 0.5 and 0.125: the deviation is 0.2568.
        (("cpu", "memory", GPU), {"cpu": "3", "memory": "5000", "gpu": "1"},
         [({**SMALL, GPU: "8"}, None)], [74]),
        # Of three, those that the pod does not request do not count, if they are not native.
        (("cpu", "memory", GPU), {"cpu": "3", "memory": "5000"},
         [({**SMALL, GPU: "8"}, {GPU: "8"})], [87]),
        # Only two of three on one of the nodes.
        (("cpu", "memory", GPU), {"cpu": "3", "memory": "5000", "gpu": "1"},
         [(SMALL, None), ({**SMALL, GPU: "8"}, None)], [87, 74]),
    ],
)  # fmt: skip
def test_scores(
    resources: tuple[str, ...],
    asked: Json,
    nodes: list[tuple[Json, Json | None]],
    scores: list[int],
) -> None:
    found = plugin(*resources).score_all(CycleState(), requesting(**asked), view(*nodes))
    assert found.tolist() == scores


@pytest.mark.parametrize(
    ("asked", "skipped"), [({}, True), ({"gpu": "1"}, True), ({"cpu": "1m"}, False)]
)
def test_pods_that_request_nothing_are_not_scored(asked: Json, skipped: bool) -> None:
    nodes = view((SMALL, None), (LARGE, None))
    status = plugin().pre_score(CycleState(), requesting(**asked), nodes, np.ones(2, np.bool_))
    assert (status is not None and status.code is Code.SKIP) == skipped


@given(PODS, VIEWS, st.sampled_from([(), ("cpu",), NAMES, NAMES[:3], (*NAMES, "pods")]))
def test_both_forms_agree(asks: ClusterPod, nodes: View, resources: tuple[str, ...]) -> None:
    assert_forms_agree(plugin(*resources), asks, nodes)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"resources": [{"name": "cpu", "weight": 2}]}, "resources[0].weight"),
        ({"resources": [{"name": "cpu"}, {"name": "cpu"}]}, "resources[1].name"),
        ({"resources": [{"weight": 1}]}, "resources[0].name"),
    ],
)
def test_bad_arguments(value: Json, place: str) -> None:
    args, faults = read_args(NodeResourcesBalancedAllocationArgs, value)
    assert args is None
    assert any(place in fault for fault in faults)
