"""Scores by the shape: how full the volumes would be."""

import numpy as np
import pytest

from koord_scheduler.framework.status import Code, CycleState
from koord_scheduler_plugins.volume_binding import VolumeBinding
from koord_scheduler_plugins.volume_binding.podvolumes import (
    ShapePoint,
    ShapeScorer,
    VolumeBindingArgs,
)
from tests.support.scheduler.volumes import Storage

FULLER = (ShapePoint(utilization=0, score=0), ShapePoint(utilization=100, score=10))
GI = 1 << 30


@pytest.mark.parametrize(
    ("shape", "classes", "score"),
    [
        (FULLER, {}, 0),
        (FULLER, {"a": (5, 10)}, 50),
        (FULLER, {"a": (10, 10)}, 100),
        (FULLER, {"a": (1, 3)}, 33),
        (FULLER, {"a": (5, 10), "b": (8, 10)}, 65),
        (FULLER, {"a": (5, 10), "b": (6, 10), "c": (6, 10)}, 57),
        (FULLER, {"a": (0, 0)}, 100),
        (FULLER, {"a": (11, 10)}, 100),
        ((ShapePoint(utilization=0, score=10), ShapePoint(utilization=100)), {"a": (3, 10)}, 70),
        ((ShapePoint(utilization=50, score=4),), {"a": (9, 10)}, 40),
        ((ShapePoint(utilization=50, score=4),), {"a": (1, 10)}, 40),
    ],
)
def test_a_broken_line_over_the_mean_of_classes(
    shape: tuple[ShapePoint, ...], classes: dict[str, tuple[int, int]], score: int
) -> None:
    """Both forms; outside of the points it is level."""
    scorer = ShapeScorer(shape)
    assert scorer.score(classes) == score
    columns = {
        name: (np.array([requested]), np.array([capacity]))
        for name, (requested, capacity) in classes.items()
    }
    assert scorer.score_all(columns, 1).tolist() == [score]


def test_only_volumes_that_are_there_are_scored() -> None:
    """And only if the arguments have a shape."""
    storage = Storage()
    for zone in "abc":
        storage.node(f"n{zone}", zone=zone)
    storage.storage_class()
    storage.volume("half", "a", size="2Gi")
    storage.volume("full", "b", size="1Gi")
    storage.claim("data", size="1Gi")
    view, pod = storage.view(), storage.wanted("data")
    every = np.ones(3, np.bool_)
    for shape, feasible, code in (
        (None, every, Code.SKIP),
        (FULLER, every, Code.SUCCESS),
        (FULLER, np.array([False, False, True]), Code.SKIP),
    ):
        plugin = VolumeBinding(VolumeBindingArgs(shape=shape), storage.handle())
        state = CycleState()
        assert plugin.pre_filter(state, pod, view) is None
        status = plugin.pre_score(state, pod, view, feasible)
        assert (status.code if status else Code.SUCCESS) is code
        if code is Code.SUCCESS:
            assert plugin.score_all(state, pod, view).tolist() == [50, 100, 0]
