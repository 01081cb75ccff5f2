"""Scores of nodes and pods: the examples of spec 06 §5.7 and §5.9."""

import numpy as np
import pytest

from koord_descheduler_plugins.low_node_load.args import (
    ExcessCoverage,
    node_scores,
    weights_of,
)

MIB = 1 << 20
CAPACITY = np.array([[10_000, 40_960 * MIB, 110]], np.int64)
NAMES = ("cpu", "memory", "pods")


@pytest.mark.parametrize(
    ("weights", "cpu", "memory", "score"),
    [
        ({"cpu": 1, "memory": 1}, 8500, 4096, 475),
        ({"cpu": 1, "memory": 1}, 9000, 10240, 575),
        ({"cpu": 1, "memory": 1}, 12000, 0, 500),
        ({"cpu": 1, "memory": 3}, 7500, 34816, 825),
        ({}, 7500, 34816, 0),
        ({"cpu": 2**62, "memory": 2**62}, 8500, 4096, 475),
    ],
)
def test_nodes(weights: dict[str, int], cpu: int, memory: int, score: int) -> None:
    """What is above the capacity counts as the capacity."""
    usage = np.array([[cpu, memory * MIB, 5]], np.int64)
    every = np.ones(3, np.bool_)
    assert node_scores(usage, CAPACITY, weights_of(weights, NAMES), every).tolist() == [score]


def test_a_resource_without_capacity_scores_nothing_but_weighs() -> None:
    usage, capacity = np.array([[5000, 7, 0]]), np.array([[10_000, 0, 0]])
    weights = weights_of({"cpu": 1, "memory": 1}, NAMES)
    assert node_scores(usage, capacity, weights, np.ones(3, np.bool_)).tolist() == [250]


@pytest.mark.parametrize(
    ("cpu", "memory", "score"),
    [(2000, 5, 1.3667), (3000, 4, 1.5833), (4000, 3, 1.1667), (5000, 2, 0.9333)],
)
def test_pods(cpu: int, memory: int, score: float) -> None:
    """An excess of 4000m and 4 GiB, weights 1 and 2."""
    cover = ExcessCoverage({0: 4000, 1: 4096 * MIB}, [1, 2, 0])
    assert cover((cpu, memory * 1024 * MIB))[0] == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize(
    ("share", "score"), [(0.1, 0.1), (0.99, 0.99), (1, 2), (2, 1.5), (10, 1.1)]
)
def test_pods_of_one_resource(share: float, score: float) -> None:
    """The largest share is reported beside."""
    assert ExcessCoverage({0: 1000}, [1, 1, 0])((round(share * 1000), 9)) == pytest.approx(
        (score, share)
    )


def test_resources_without_weight_or_excess() -> None:
    """Nothing is divided by nothing; a share counts whatever the weight."""
    assert ExcessCoverage({}, [1, 1, 1])((1, 1)) == (0.0, 0.0)
    assert ExcessCoverage({2: 2}, [1, 1, 0])((1000, 1000)) == (0.0, 0.0)
    assert ExcessCoverage({2: 2}, [1, 1, 0])((1000, 1000, 1)) == (0.0, 0.5)
