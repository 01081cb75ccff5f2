"""Nodes with scarce resources are for the pods that request those."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord_scheduler.framework.status import CycleState
from koord_scheduler.plugin import Code, NodeInfo
from koord_scheduler.plugin.testing import assert_forms_agree
from koord_scheduler_plugins.node_resources import (
    ScarceResourceAvoidance,
    ScarceResourceAvoidanceArgs,
)
from tests.support.scheduler.framework import make_pod
from tests.support.scheduler.resources import NAMES, PODS, VIEWS, read_args, view

NAMED = {
    "mem": "memory",
    "gpu": "example.com/gpu",
    "rdma": "example.com/rdma",
    "fpga": "example.com/fpga",
    "xx": "example.com/xx",
    "ephemeral": "ephemeral-storage",
}


def amounts(names: str, **more: str) -> dict[str, str]:
    return {**{NAMED.get(name, name): "1" for name in names.split()}, **more}


def plugin(*scarce: str) -> ScarceResourceAvoidance:
    args, _ = read_args(ScarceResourceAvoidanceArgs, {"resources": list(scarce)})
    return ScarceResourceAvoidance(args, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("node", "pod", "scarce", "score"),
    [
        ("cpu mem gpu xx", "cpu mem", "gpu", 50),
        ("cpu mem", "cpu mem", "gpu", 100),
        ("cpu mem gpu", "cpu mem", "gpu", 0),
        ("cpu mem ephemeral gpu", "cpu mem", "gpu", 50),
        ("cpu mem gpu rdma fpga", "cpu mem", "gpu rdma", 33),
        ("cpu mem gpu rdma", "cpu mem gpu", "gpu", 100),
    ],
)
def test_scores(node: str, pod: str, scarce: str, score: int) -> None:
    """Koordinator's table; the number of pods is no resource here."""
    made = plugin(*amounts(scarce))
    nodes = view((amounts(node, pods="10"), None), (amounts("cpu", pods="10"), None))
    asks = make_pod(requests=amounts(pod))
    assert made.score_all(CycleState(), asks, nodes).tolist() == [score, 100]
    assert made.score(CycleState(), asks, NodeInfo(nodes, 0)) == score


@pytest.mark.parametrize(("pod", "skips"), [("cpu", False), ("cpu gpu", True)])
def test_a_pod_that_requests_all_that_is_scarce_is_skipped(pod: str, skips: bool) -> None:
    """All nodes would score the same."""
    nodes, asks = view((amounts("cpu gpu"), None)), make_pod(requests=amounts(pod))
    made = plugin("example.com/gpu")
    answer = made.pre_score(CycleState(), asks, nodes, np.ones(1, np.bool_))
    assert (answer is not None and answer.code is Code.SKIP) is skips


@pytest.mark.parametrize(
    ("resources", "fault"),
    [([], "resources: without any"), ([""], "resources[0]: Invalid value"), (["x"], "")],
)
def test_arguments_are_checked(resources: Any, fault: str) -> None:
    """None at all is a warning."""
    _, faults = read_args(ScarceResourceAvoidanceArgs, {"resources": resources})
    assert [text[: len(fault)] for text in faults] == ([fault] if fault else [])


@given(st.sets(st.sampled_from((*NAMES, "pods"))), PODS, VIEWS)
def test_both_forms_agree(scarce: set[str], pod: ClusterPod, nodes: View) -> None:
    """On any nodes and pods."""
    assert_forms_agree(plugin(*scarce), pod, nodes)
