"""Spec 09, 19.10: devices of reservations, case by case."""

import pytest

from koord_scheduler_plugins.device_share.allocation import FILTERING, DevicesUnavailable
from koord_scheduler_plugins.device_share.devices import DeviceTable, used_key
from koord_scheduler_plugins.device_share.requests import pod_devices
from koord_scheduler_plugins.device_share.reserved import ReservedShare, allocate_reserved
from tests.support.scheduler.devices import CORE, MEMORY, RATIO, device_object, gpu, table

GI = 1 << 30
CARD = {CORE: "100", RATIO: "100", MEMORY: str(8 * GI)}


def amounts(percent: int) -> dict[str, int]:
    return {CORE: percent, RATIO: percent, MEMORY: 8 * GI * percent // 100}


def share(*percents: int, restricted: bool) -> ReservedShare:
    """A reservation of cards, with so much left of each."""
    left = {
        used_key("gpu", minor, name): amount
        for minor, percent in enumerate(percents)
        for name, amount in amounts(percent).items()
        if amount
    }
    return ReservedShare(left=left, types=frozenset({"gpu"}), restricted=restricted)


def node(*percents: int) -> DeviceTable:
    """Two cards of which pods have so much, without what is left of the reservation."""
    cards = [gpu(minor, resources=CARD) for minor in (0, 1)]
    used = {("gpu", minor): amounts(one) for minor, one in enumerate(percents) if one}
    return table(device_object("n", cards), used)


@pytest.mark.parametrize(
    ("restricted", "left", "used", "percent", "minor"),
    [
        pytest.param(False, (25,), (0, 0), 50, 0, id="R1: the rest is the node's"),
        pytest.param(False, (25,), (25, 0), 50, 0, id="R2"),
        pytest.param(False, (0,), (100, 0), 50, 1, id="R3: nothing is left of it"),
        pytest.param(False, (50,), (50, 100), 50, 0, id="R4"),
        pytest.param(False, (50,), (50, 100), 60, None, id="R5"),
        pytest.param(False, (25,), (100, 100), 30, None, id="R6"),
        pytest.param(True, (50,), (50, 100), 50, 0, id="R7"),
        pytest.param(True, (25,), (50, 0), 50, None, id="R8"),
        pytest.param(True, (100, 100), (75, 50), 50, 1, id="R9"),
        pytest.param(True, (0,), (50, 0), 50, None, id="restricted, nothing left"),
        pytest.param(True, (50,), (0, 0), 50, 0, id="restricted, the other card is free"),
    ],
)
def test_what_an_owner_gets(
    restricted: bool,
    left: tuple[int, ...],
    used: tuple[int, ...],
    percent: int,
    minor: int | None,
) -> None:
    requests = {"koordinator.sh/gpu.shared": 1, CORE: percent, RATIO: percent}
    wanted = pod_devices(requests.items(), {}, "")
    assert wanted is not None
    offer = share(*left, restricted=restricted)
    if minor is None:
        with pytest.raises(DevicesUnavailable, match="Insufficient gpu devices"):
            allocate_reserved(node(*used), wanted, FILTERING, offer)
        return
    found, _ = allocate_reserved(node(*used), wanted, FILTERING, offer)
    assert [one.minor for one in found["gpu"]] == [minor]


def test_of_types_that_it_does_not_reserve_the_node_gives() -> None:
    wanted = pod_devices({"koordinator.sh/gpu.shared": 1, CORE: 50, RATIO: 50}.items(), {}, "")
    assert wanted is not None
    offer = ReservedShare(left={}, types=frozenset({"rdma"}), restricted=True)
    found, _ = allocate_reserved(node(0, 0), wanted, FILTERING, offer)
    assert [one.minor for one in found["gpu"]] == [0]
