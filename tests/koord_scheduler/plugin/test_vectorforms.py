"""Both forms of small plugins agree on random clusters; where they do not, the kit says it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_scheduler.plugin import (
    ClusterPod,
    CycleState,
    FilterPlugin,
    NodeInfo,
    NodeScore,
    NormalizeScorePlugin,
    PreScorePlugin,
    ScorePlugin,
    Status,
    View,
)
from koord_scheduler.plugin.testing import assert_forms_agree, disagreements
from koord_scheduler.plugin.vector import (
    Mask,
    Scores,
    VectorFilterPlugin,
    VectorNormalizeScorePlugin,
    VectorScorePlugin,
    default_normalize,
    tolerates_taints,
)
from tests.support.clusters import Cluster, node, pod
from tests.support.scheduler.framework import FreeCpu, PlainFilter, make_pod, make_view

ZONE = "zone"


class Taints(FilterPlugin, VectorFilterPlugin):
    """Rejects nodes with taints that the pod does not tolerate."""

    rejection = Status.unresolvable("node(s) had untolerated taint(s)")

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        for taint in node.node.taints:
            if taint.effect != "PreferNoSchedule" and not any(
                each.tolerates(taint) for each in pod.spec.tolerations
            ):
                return self.rejection
        return None

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask:
        return tolerates_taints(pod, nodes)


class EmptyZones(
    PreScorePlugin,
    ScorePlugin,
    VectorScorePlugin,
    NormalizeScorePlugin,
    VectorNormalizeScorePlugin,
):
    """Prefers zones with few pods: what other nodes have matters, too."""

    def pre_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Status | None:
        return Status.skip() if not nodes.traits.label(ZONE).present.any() else None

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        zone = node.labels.get(ZONE)
        if zone is None:
            return 0
        view = node.view
        return sum(
            view.node(row).labels.get(ZONE) == zone and not each.finished
            for row in range(len(view))
            for each in view.pods(row)
        )

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        zones = nodes.traits.label(ZONE)
        pods = nodes.requested[:, nodes.resources["pods"]].astype(np.intp)
        totals = zones.totals(pods, np.ones(len(nodes), np.bool_))
        return np.append(totals, 0)[zones.codes]

    def normalize_score(
        self, state: CycleState, pod: ClusterPod, scores: list[NodeScore]
    ) -> Status | None:
        highest = max((one.score for one in scores), default=0)
        for one in scores:
            one.score = 100 - (100 * one.score // highest if highest else 0)
        return None

    def normalize_scores(self, state: CycleState, pod: ClusterPod, scores: Scores) -> Scores:
        return default_normalize(scores, reverse=True)


TAINTS = [
    {"key": key, "effect": effect}
    for key in ("gpu", "spot")
    for effect in ("NoSchedule", "PreferNoSchedule", "NoExecute")
]
nodes = st.tuples(
    st.sampled_from([None, "a", "b"]),
    st.integers(0, 8),
    st.lists(st.sampled_from(TAINTS), max_size=2),
)
pods = st.tuples(st.integers(0, 9), st.integers(0, 4), st.booleans())
tolerations = st.lists(
    st.sampled_from(
        [{"key": "gpu", "operator": "Exists"}, {"operator": "Exists", "effect": "NoSchedule"}]
    ),
    max_size=2,
)


def random_view(made: Sequence[Any], running: Sequence[Any]) -> View:
    objects = [
        node(
            f"n{at}",
            {ZONE: zone} if zone else None,
            {"cpu": str(cpu), "pods": "10"},
            taints=taints,
        )
        for at, (zone, cpu, taints) in enumerate(made)
    ]
    placed = []
    for at, (place, cpu, finished) in enumerate(running):
        one = pod(f"p{at}", f"n{place}", requests={"cpu": str(cpu)})
        one["status"]["phase"] = "Succeeded" if finished else "Running"
        placed.append(one)
    return Cluster(nodes=objects, pods=placed).snapshot().view()


@given(st.lists(nodes, max_size=8), st.lists(pods, max_size=12), tolerations, st.integers(0, 5))
def test_forms_agree_on_random_clusters(
    made: list[Any], running: list[Any], tolerated: list[Any], cpu: int
) -> None:
    """The plain form is the oracle."""
    view = random_view(made, running)
    web = make_pod(tolerations=tolerated, requests={"cpu": str(cpu)})
    for plugin in (Taints(), FreeCpu(), EmptyZones()):
        assert_forms_agree(plugin, web, view)


class Wrong(FreeCpu):
    """Forgets in one form what is used already; another reason for the same."""

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask:
        return nodes.allocatable[:, nodes.resources["cpu"]] >= 2000

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        return np.full(len(nodes), 100)


def test_each_disagreement_is_named() -> None:
    """With the node and what both forms say."""
    view = random_view([("a", 1, []), ("a", 4, [])], [(1, 2, False)])
    found = disagreements(Wrong(), make_pod(requests={"cpu": "3"}), view)
    assert found == [
        "node n0: filter says Unschedulable (Insufficient cpu), filter_all Unschedulable "
        "(node(s) were rejected by a plugin)",
        "node n1: filter says Unschedulable (Insufficient cpu), filter_all Success",
        "node n1: score says 50, score_all 100",
    ]
    with pytest.raises(AssertionError, match="node n1: score says 50, score_all 100"):
        assert_forms_agree(Wrong(), make_pod(requests={"cpu": "3"}), view)


def test_normalizing_is_compared_too() -> None:
    """Of the same scores."""

    class Halves(EmptyZones):
        def normalize_scores(self, state: CycleState, pod: ClusterPod, scores: Scores) -> Scores:
            return scores // 2

    view = random_view([("a", 1, []), ("b", 1, [])], [(0, 0, False), (0, 0, False)])
    assert disagreements(Halves(), make_pod(), view) == [
        "node n0: normalize_score says 0, normalize_scores 1",
        "node n1: normalize_score says 100, normalize_scores 0",
    ]


def test_a_plugin_of_one_form_has_nothing_to_agree_on() -> None:
    """That is an error of the test."""
    with pytest.raises(TypeError, match="wanted both forms of Filter or of Score"):
        disagreements(PlainFilter({}), make_pod(), make_view(a="1"))
