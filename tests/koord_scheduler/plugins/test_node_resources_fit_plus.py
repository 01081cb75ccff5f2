"""Resources that score nodes each in its own way."""

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
    NodeResourcesFitPlus,
    NodeResourcesFitPlusArgs,
)
from tests.support.clusters import Json
from tests.support.scheduler.framework import make_pod
from tests.support.scheduler.resources import GPU, NAMES, PODS, VIEWS, read_args, requesting, view

MOST, LEAST = "MostAllocated", "LeastAllocated"
DEFAULTS = {
    GPU: {"type": MOST, "weight": 2},
    "cpu": {"type": LEAST, "weight": 1},
    "memory": {"type": LEAST, "weight": 1},
}
NODE = {"cpu": "96", "memory": "512Gi", GPU: "8", "pods": "10", "ephemeral-storage": "1Ti"}
USED = {"cpu": "16", "memory": "32Gi", GPU: "4"}


def plugin(resources: Any = DEFAULTS) -> NodeResourcesFitPlus:
    args, _ = read_args(NodeResourcesFitPlusArgs, {"resources": resources})
    return NodeResourcesFitPlus(args, None)  # type: ignore[arg-type]


def scores(
    pod: ClusterPod, *nodes: tuple[Json, Json | None], resources: Any = DEFAULTS
) -> list[int]:
    """Of both forms."""
    made, nodes_ = plugin(resources), view(*nodes)
    found = made.score_all(CycleState(), pod, nodes_).tolist()
    plain = [made.score(CycleState(), pod, NodeInfo(nodes_, row)) for row in range(len(nodes_))]
    assert plain == found
    return found


@pytest.mark.parametrize(
    ("pod", "nodes", "wanted"),
    [
        (requesting(cpu="16", memory="32Gi", gpu="2"), [(NODE, USED), (NODE, None)], [75, 56]),
        (requesting(cpu="16", memory="32Gi"), [(NODE, USED), (NODE, None)], [76, 88]),
        (requesting(cpu="100", gpu="9"), [(NODE, None)], [66]),
        (make_pod(requests={"ephemeral-storage": "1Gi"}), [(NODE, None)], [100]),
        # Weights stay where a node, or every one, lacks the resource.
        (requesting(gpu="1", cpu="48"), [({"cpu": "96"}, None)], [16]),
    ],
)  # fmt: skip
def test_scores(pod: ClusterPod, nodes: Any, wanted: list[int]) -> None:
    """The worked examples of Koordinator's formula."""
    assert scores(pod, *nodes) == wanted


def test_containers_without_requests_count_with_defaults() -> None:
    """100m and 200 MiB, of the pod and of those that are there."""
    one = {"cpu": {"type": LEAST, "weight": 1}}
    spec = {
        "containers": [
            {"name": "a", "resources": {"requests": {"cpu": "300m"}}},
            {"name": "b"},
        ]
    }
    nodes = [({"cpu": "1"}, {"memory": "1Gi"})]
    assert scores(make_pod(**spec), *nodes, resources=one) == [50]


@pytest.mark.parametrize(("order", "score"), [((1, 5), 40), ((5, 1), 50)])
def test_init_containers_and_sidecars(order: tuple[int, int], score: int) -> None:
    """A sidecar runs beside the init containers after it: 6 cores of 10, or 5."""
    init = [
        {
            "name": f"c{cpu}",
            "resources": {"requests": {"cpu": str(cpu)}},
            **({"restartPolicy": "Always"} if cpu == 1 else {}),
        }
        for cpu in order
    ]
    main = {"name": "main", "resources": {"requests": {"cpu": "2"}}}
    pod = make_pod(containers=[main], initContainers=init)
    one = {"cpu": {"type": LEAST, "weight": 1}}
    assert scores(pod, ({"cpu": "10"}, None), resources=one) == [score]


def test_overhead_counts_in_millicores() -> None:
    """As every other part of a pod."""
    container = {"name": "m", "resources": {"requests": {"cpu": "1"}}}
    pod = make_pod(containers=[container], overhead={"cpu": "250m"})
    one = {"cpu": {"type": MOST, "weight": 1}}
    assert scores(pod, ({"cpu": "5"}, None), resources=one) == [25]


@pytest.mark.parametrize(
    ("pod", "skips"),
    [(requesting(cpu="1"), False), (make_pod(), True), (requesting(storage="1"), True)],
)
def test_nothing_to_score_is_skipped(pod: ClusterPod, skips: bool) -> None:
    """All nodes would score the same."""
    every = np.ones(1, np.bool_)
    answer = plugin().pre_score(CycleState(), pod, view((NODE, None)), every)
    assert (answer is not None and answer.code is Code.SKIP) is skips


@pytest.mark.parametrize(
    ("resources", "fault"),
    [
        ({}, "resources: without any"),
        ({"cpu": {"type": "Some", "weight": 1}}, "resources[cpu].type: Unsupported value"),
        ({"cpu": {"weight": 1}}, "resources[cpu].type: Required value"),
        ({"cpu": {"type": MOST, "weight": -1}}, "resources[cpu].weight: Invalid value"),
    ],
)
def test_arguments_are_checked(resources: Any, fault: str) -> None:
    """None at all is a warning."""
    _, faults = read_args(NodeResourcesFitPlusArgs, {"resources": resources})
    assert [text[: len(fault)] for text in faults] == [fault]


STRATEGIES = st.builds(
    lambda kind, weight: {"type": kind, "weight": weight},
    st.sampled_from([MOST, LEAST]),
    st.integers(0, 3),
)


@given(st.dictionaries(st.sampled_from((*NAMES, "pods")), STRATEGIES), PODS, VIEWS)
def test_both_forms_agree(resources: Any, pod: ClusterPod, nodes: View) -> None:
    """On any nodes and pods."""
    assert_forms_agree(plugin(resources), pod, nodes)
