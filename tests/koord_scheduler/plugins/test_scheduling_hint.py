"""Nodes that a pod's annotation names."""

import json
from typing import Any

import numpy as np
import pytest

from koord.cluster.decoder import Decoder
from koord.cluster.keptfields import reads_of
from koord.cluster.kinds import POD
from koord.controlplane.testing import make_pod
from koord_scheduler.framework.status import CycleState
from koord_scheduler.plugin import Code, Status
from koord_scheduler_plugins.scheduling_hint import SchedulingHint, SchedulingHintArgs
from tests.support.scheduler.framework import Kit, PlainFilter, make_view
from tests.support.scheduler.framework import make_pod as pending

HINT = "internal.scheduling.koordinator.sh/scheduling-hint"
OLD = "scheduling.koordinator.sh/scheduling-hint"
NODES = {"a": "4", "b": "4", "c": "4"}


def hinted(value: Any, key: str = HINT) -> Any:
    text = value if isinstance(value, str) else json.dumps(value)
    return make_pod("web", phase="Pending", annotations={key: text})


async def feasible(pod: Any, rejected: str = "", most: int = 100) -> set[str]:
    """The nodes that a search with the plugin leaves."""
    plugin = SchedulingHint(SchedulingHintArgs(max_hint_nodes=most), None)  # type: ignore[arg-type]
    rejects = PlainFilter({name: Status.unschedulable("no") for name in rejected.split()})
    search = await Kit().search(preFilter={"SchedulingHint": plugin}, filter={"F": rejects})
    nodes = make_view(**NODES)
    found = search.search(CycleState(), pod, nodes)
    return {nodes.node(row).name for row in np.flatnonzero(found.feasible).tolist()}


@pytest.mark.parametrize(
    ("value", "rejected", "names"),
    [
        ({}, "", {"a", "b", "c"}),
        ({"nodeNames": ["a", "c"]}, "", {"a", "c"}),
        ({"nodeNames": ["a", "c"]}, "a", {"c"}),
        ({"nodeNames": ["a", "other"]}, "", {"a"}),
        ({"nodeNames": ["other"]}, "", set()),
        ({"preferredNodeNames": ["b", "a"]}, "", {"b"}),
        ({"preferredNodeNames": ["b", "a"]}, "b", {"a"}),
        ({"preferredNodeNames": ["b", "a"]}, "a b", {"c"}),
        ({"preferredNodeNames": ["other", "c"]}, "", {"c"}),
        ({"nodeNames": ["a", "c"], "preferredNodeNames": ["b", "c"]}, "", {"c"}),
        ({"nodeNames": ["a", "c"], "preferredNodeNames": ["b"]}, "", {"a", "c"}),
        ({"extensions": {"x": {}}}, "", {"a", "b", "c"}),
    ],
)
async def test_hints(value: Any, rejected: str, names: set[str]) -> None:
    """The only nodes to look at; those that are taken, the first feasible one, whatever scores."""
    assert await feasible(hinted(value), rejected) == names


async def test_both_annotations() -> None:
    """That of older versions counts where the other is not there."""
    assert await feasible(hinted({"nodeNames": ["a"]}, OLD)) == {"a"}
    both = {HINT: '{"nodeNames": ["b"]}', OLD: '{"nodeNames": ["a"]}'}
    assert await feasible(make_pod("web", phase="Pending", annotations=both)) == {"b"}
    assert await feasible(pending()) == {"a", "b", "c"}


async def test_no_more_preferred_nodes_than_are_allowed() -> None:
    """Of those that the pod names."""
    pod = hinted({"preferredNodeNames": ["a", "b"]})
    assert await feasible(pod, "a", most=1) == {"b", "c"}
    assert await feasible(pod, "a", most=2) == {"b"}


@pytest.mark.parametrize("text", ["{", "[]", '{"nodeNames": "a"}', '{"nodeNames": [1]}'])
def test_a_malformed_hint_fails_the_cycle(text: str) -> None:
    """Rather than placing the pod where it must not go."""
    plugin = SchedulingHint(SchedulingHintArgs(), None)  # type: ignore[arg-type]
    answer = plugin.pre_filter(CycleState(), hinted(text), make_view(**NODES))
    assert isinstance(answer, Status)
    assert answer.code is Code.ERROR
    assert "scheduling-hint" in answer.message


def test_a_long_hint_is_kept_whole() -> None:
    """A hundred nodes with the longest names."""
    names = [f"{at:03}" + "n" * 250 for at in range(100)]
    annotations = {HINT: json.dumps({"preferredNodeNames": names})}
    data = json.dumps({"metadata": {"name": "web", "annotations": annotations}}).encode()
    pod = Decoder(reads_of(SchedulingHint)).object(POD, data)
    assert dict(pod.annotations) == annotations


@pytest.mark.parametrize(("most", "faults"), [(1, 0), (0, 1), (-1, 1)])
def test_arguments(most: int, faults: int) -> None:
    """At least one node."""
    assert len(list(SchedulingHintArgs(max_hint_nodes=most).validate())) == faults
