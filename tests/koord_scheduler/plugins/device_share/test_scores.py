"""Scores of nodes and reservations by their devices; the cases are those of spec 09, 19.11.

A request by percent counts in bytes as well here, which Koordinator's does not.
"""

import pytest

from koord.api.devices.allocation import DeviceScorer, instance_request
from koord.api.devices.layout import DeviceTable, used_key
from koord.api.devices.requests import pod_devices
from koord_scheduler.plugin.koordinator import ReservationScore
from koord_scheduler_plugins.device_share.args import node_score
from koord_scheduler_plugins.device_share.reserved import (
    ReservedDeviceScores,
    ReservedShare,
    reserved_score,
)
from tests.support.scheduler.devices import (
    CORE,
    MEMORY,
    RATIO,
    RDMA_SHARE,
    device_object,
    gpu,
    nic,
    table,
)

GI = 1 << 30
CARD = {CORE: "100", RATIO: "100", MEMORY: str(16 * GI)}
WEIGHTS = ((RATIO, 1), (MEMORY, 1), (RDMA_SHARE, 1), ("koordinator.sh/fpga", 1))
LEAST, MOST = DeviceScorer(False, WEIGHTS), DeviceScorer(True, WEIGHTS)
RATIO_ONLY = ((RATIO, 1),)


def amounts(percent: int) -> dict[str, int]:
    return {CORE: percent, RATIO: percent, MEMORY: 16 * GI * percent // 100}


def node(*used: int, nics: int = 0) -> DeviceTable:
    """Cards of 16 GiB of which pods have so many percent."""
    devices = [gpu(minor, resources=CARD) for minor in range(len(used))]
    taken = {("gpu", minor): amounts(one) for minor, one in enumerate(used) if one}
    return table(device_object("n", [*devices, *(nic(at) for at in range(nics))]), taken)


def score(scorer: DeviceScorer, on: DeviceTable, **requests: int) -> int:
    names = {"core": CORE, "ratio": RATIO, "memory": MEMORY, "rdma": RDMA_SHARE}
    asked = {names[key]: amount for key, amount in requests.items()}
    wanted = pod_devices(asked.items(), {}, "")
    assert wanted is not None
    return node_score(
        scorer, on, {kind: instance_request(on, wanted, kind) for kind in wanted.requests}
    )


@pytest.mark.parametrize(
    ("used", "requests", "least", "most"),
    [
        pytest.param((0,), {"core": 100, "ratio": 100}, 0, 100, id="a whole card of one"),
        pytest.param((0, 0), {"core": 50, "ratio": 50}, 75, 25, id="half of a card of two"),
        pytest.param((25,), {"ratio": 50}, 25, 75, id="by percent"),
        pytest.param((25,), {"memory": 8 * GI}, 25, 75, id="by memory"),
        pytest.param((100,), {"ratio": 50}, 0, 100, id="more than there is"),
        pytest.param((0, 0), {"ratio": 200}, 0, 100, id="all of several cards"),
    ],
)
def test_scores_of_nodes(
    used: tuple[int, ...], requests: dict[str, int], least: int, most: int
) -> None:
    assert score(LEAST, node(*used), **requests) == least
    assert score(MOST, node(*used), **requests) == most


def test_scores_of_types_are_their_mean() -> None:
    """Upstream adds them: 94 and 92 are 186 there."""
    on = table(
        device_object("n", [*(gpu(at) for at in range(10)), *(nic(at) for at in range(10))]),
        {("gpu", 0): {RATIO: 25}, ("rdma", 0): {RDMA_SHARE: 50}},
    )
    one_each = DeviceScorer(False, ((RATIO, 1), (RDMA_SHARE, 1)))
    assert score(one_each, on, ratio=50) == 92
    assert score(one_each, on, rdma=25) == 92
    assert score(one_each, on, ratio=35, rdma=5) == (94 + 94) // 2


@pytest.mark.parametrize(
    ("free", "request_", "least", "most"),
    [(100, 50, 50, 50), (0, 50, 0, 100), (50, 30, 20, 80), (75, 50, 25, 75)],
)
def test_scores_of_one_device(free: int, request_: int, least: int, most: int) -> None:
    for is_most, wanted in ((False, least), (True, most)):
        scorer = DeviceScorer(is_most, RATIO_ONLY)
        assert scorer.score({RATIO: 100}, {RATIO: free}, {RATIO: request_}) == wanted


def share(left: dict[int, int], *, restricted: bool) -> ReservedShare:
    every = {
        used_key("gpu", minor, name): amount
        for minor, percent in left.items()
        for name, amount in amounts(percent).items()
    }
    return ReservedShare(left=every, types=frozenset({"gpu"}), restricted=restricted)


@pytest.mark.parametrize(
    ("used", "left", "restricted", "least", "most"),
    [
        pytest.param((0,), {0: 50}, True, 0, 100, id="all that is left of it"),
        pytest.param((0,), {0: 75}, True, 25, 75, id="of its card it has 75 percent"),
        pytest.param((0, 0), {1: 75}, True, 25, 75, id="the other card does not count"),
        pytest.param((0, 0), {1: 75}, False, 75, 25, id="the rest of the node counts"),
        pytest.param((0, 0), {0: 100, 1: 100}, True, 75, 25, id="two cards"),
        pytest.param((25, 0), {0: 75}, True, 25, 75, id="a consumer has the rest"),
    ],
)
def test_scores_of_reservations(
    used: tuple[int, ...], left: dict[int, int], restricted: bool, least: int, most: int
) -> None:
    """14.6: a pod that wants half of a card."""
    wanted = pod_devices({CORE: 50, RATIO: 50}.items(), {}, "")
    assert wanted is not None
    offer = share(left, restricted=restricted)
    assert reserved_score(LEAST, node(*used), wanted, offer) == least
    assert reserved_score(MOST, node(*used), wanted, offer) == most


def test_a_reservation_without_such_devices_has_no_score() -> None:
    wanted = pod_devices({RDMA_SHARE: 50}.items(), {}, "")
    assert wanted is not None
    assert reserved_score(MOST, node(0, nics=1), wanted, share({0: 50}, restricted=False)) == 0


@pytest.mark.parametrize(
    ("scores", "wanted"),
    [([20, 50], [40, 100]), ([0, 0], [0, 0]), ([], []), ([30], [100])],
)
def test_the_best_reservation_has_the_highest_score(scores: list[int], wanted: list[int]) -> None:
    found = [ReservationScore(str(at), one) for at, one in enumerate(scores)]
    normalize = ReservedDeviceScores.normalize_reservation_score
    normalize(None, None, None, found)  # type: ignore[arg-type]
    assert [one.score for one in found] == wanted
