"""The predictors: the worked examples of Koordinator's, and pods whose peak is not known."""

import pytest

from koord.api.nodemetric import Amounts
from koordlet.prediction.prediction import (
    Demand,
    most_conservative,
    predict_by_classes,
    predict_by_pods,
)

from .conftest import GIB, MIB

FACTOR = 1.1
COLD = Demand(Amounts(1000, GIB), None)
KNOWN = Demand(Amounts(2000, 2 * GIB), Amounts(500, GIB))
ENDING = Demand(Amounts(4000, 4 * GIB), Amounts(3000, GIB), ending=True)
PEAKS = (Amounts(300, 512 * MIB), Amounts(1000, GIB), Amounts(0, 0))


def test_a_node_with_room():
    node = Amounts(3000, 3 * GIB)
    by_pods = predict_by_pods([COLD, KNOWN, ENDING], node, FACTOR)
    assert by_pods.reclaimable == Amounts(1450, 966367642)
    assert by_pods.peak == Amounts(1550, 2254857830)
    by_classes = predict_by_classes([COLD, KNOWN, ENDING], PEAKS, node, FACTOR)
    assert by_classes.reclaimable == Amounts(1570, 1449551463)
    assert by_classes.peak == Amounts(1430, 1771674009)
    result = most_conservative([by_pods, by_classes])
    assert result.reclaimable == Amounts(1450, 966367642)
    assert result.peak == Amounts(1550, 2254857830)


def test_a_small_node():
    node = Amounts(1000, GIB)
    by_pods = predict_by_pods([COLD, KNOWN, ENDING], node, FACTOR)
    by_classes = predict_by_classes([COLD, KNOWN, ENDING], PEAKS, node, FACTOR)
    assert by_pods.reclaimable == Amounts(450, 0)
    assert by_classes.reclaimable == Amounts(0, 0)
    assert most_conservative([by_pods, by_classes]).reclaimable == Amounts(0, 0)


def test_a_peak_above_the_request_leaves_nothing():
    pod = Demand(Amounts(1000, GIB), Amounts(1035, 0))
    found = predict_by_pods([pod], Amounts(8000, 8 * GIB), FACTOR)
    assert found.peak.milli_cores == 1138
    assert found.reclaimable == Amounts(0, GIB)


def test_an_idle_node():
    idle = (Amounts(25, 5242880),) * 3
    found = predict_by_classes([], idle, Amounts(8000, 8 * GIB), FACTOR)
    assert found.peak == Amounts(82, 17301504)
    assert found.reclaimable == Amounts(0, 0)


def test_a_pod_without_a_peak_keeps_its_request_in_both():
    """Upstream's second predictor never sees it, so its request is neither asked for nor used."""
    node = Amounts(8000, 8 * GIB)
    assert predict_by_pods([COLD], node, FACTOR).reclaimable == Amounts(0, 0)
    assert predict_by_pods([COLD], node, FACTOR).peak == COLD.request
    found = predict_by_classes([COLD], [Amounts(100, MIB)], node, FACTOR)
    assert found.reclaimable == Amounts(890, GIB - int(1.1 * MIB))


@pytest.mark.parametrize("first", [None, Amounts(8000, 8 * GIB)])
def test_without_the_nodes_capacity_only_the_peak_is_known(first):
    found = most_conservative(
        [predict_by_pods([KNOWN], first, FACTOR), predict_by_pods([KNOWN], None, FACTOR)]
    )
    assert found.reclaimable is None
    assert found.peak == Amounts(550, 1181116006)
