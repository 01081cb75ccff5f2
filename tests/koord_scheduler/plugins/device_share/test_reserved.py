"""Spec 09, 19.10: devices of reservations, case by case."""

from collections.abc import Collection

import pytest

from koord.api.devices.allocation import FILTERING, DevicesUnavailable
from koord.api.devices.layout import DeviceTable, used_key
from koord.api.devices.requests import PodDevices, pod_devices
from koord_scheduler_plugins.device_share.reserved import ReservedShare, allocate_reserved
from tests.support.scheduler.devices import (
    CORE,
    H8_TRAITS,
    MEMORY,
    RATIO,
    d8,
    device_object,
    gpu,
    h8,
    table,
    whole,
)

GI = 1 << 30
CARD = {CORE: "100", RATIO: "100", MEMORY: str(8 * GI)}


def amounts(percent: int) -> dict[str, int]:
    return {CORE: percent, RATIO: percent, MEMORY: 8 * GI * percent // 100}


def share(*percents: int, restricted: bool, taken_over: bool = False) -> ReservedShare:
    """A reservation of cards, with so much left of each."""
    left = {
        used_key("gpu", minor, name): amount
        for minor, percent in enumerate(percents)
        for name, amount in amounts(percent).items()
        if amount
    }
    types = frozenset({"gpu"})
    return ReservedShare(left=left, types=types, restricted=restricted, taken_over=taken_over)


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
        pytest.param(False, (25, 100), (75, 0), 50, 1, id="R10: all reservations together"),
        pytest.param(False, (0, 0), (100, 100), 50, None, id="R11: all of them are consumed"),
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


def whole_cards(count: int) -> PodDevices:
    wanted = pod_devices({"nvidia.com/gpu": count}.items(), {}, "")
    assert wanted is not None
    return wanted


def cards_of(minors: Collection[int], **more: bool) -> ReservedShare:
    """A reservation, or pods, with these cards."""
    left = {used_key("gpu", minor, CORE): 100 for minor in minors}
    return ReservedShare(left=left, types=frozenset({"gpu"}), **more)


@pytest.mark.parametrize(
    ("mine", "count", "used", "wanted"),
    [
        pytest.param((2, 5), 4, (), [0, 1, 2, 5], id="on both NUMA nodes"),
        pytest.param((6,), 2, (), [6, 7], id="the switch that it is on"),
        pytest.param((6,), 2, (7,), [4, 6], id="the NUMA node that it is on"),
        pytest.param((6,), 2, (4, 5, 7), [0, 6], id="any"),
        pytest.param((0, 7), 1, (), None, id="R12: not all of them"),
    ],
)
def test_a_reservation_gets_the_cards_of_the_pods_that_it_takes_over(
    mine: tuple[int, ...], count: int, used: tuple[int, ...], wanted: list[int] | None
) -> None:
    """And further ones, by the topology."""
    of_node, offer = table(d8(), whole(*used)), cards_of(mine, taken_over=True)
    if wanted is None:
        with pytest.raises(DevicesUnavailable, match="Insufficient"):
            allocate_reserved(of_node, whole_cards(count), FILTERING, offer)
        return
    found, way = allocate_reserved(of_node, whole_cards(count), FILTERING, offer)
    assert ([one.minor for one in found["gpu"]], way) == (wanted, "topology")


@pytest.mark.parametrize(
    ("mine", "count", "wanted"),
    [
        pytest.param((3,), 2, [2, 3], id="the partition that it is in"),
        pytest.param((3,), 4, [0, 1, 2, 3], id="a larger one"),
        pytest.param((3, 4), 2, None, id="R12: of two partitions"),
        pytest.param((3, 4), 8, list(range(8)), id="all"),
    ],
)
def test_partitions_of_cards_that_are_taken_over(
    mine: tuple[int, ...], count: int, wanted: list[int] | None
) -> None:
    of_node, offer = table(h8(), node=H8_TRAITS), cards_of(mine, taken_over=True)
    if wanted is None:
        with pytest.raises(DevicesUnavailable, match="Insufficient Partitioned GPU Devices"):
            allocate_reserved(of_node, whole_cards(count), FILTERING, offer)
        return
    found, way = allocate_reserved(of_node, whole_cards(count), FILTERING, offer)
    assert ([one.minor for one in found["gpu"]], way) == (wanted, "partition")


@pytest.mark.parametrize("type_of_reservation", ["rdma", "fpga"])
def test_devices_of_another_type_cannot_be_taken_over(type_of_reservation: str) -> None:
    """R12: no GPU at all, the other way round."""
    left = {used_key(type_of_reservation, 0, "koordinator.sh/x"): 100}
    offer = ReservedShare(left=left, types=frozenset({type_of_reservation}), taken_over=True)
    with pytest.raises(DevicesUnavailable, match=f"Insufficient {type_of_reservation} devices"):
        allocate_reserved(table(d8()), whole_cards(1), FILTERING, offer)


def test_where_the_node_adds_cards_those_of_the_reservation_stay_preferred() -> None:
    """The switch with both cards free is not better than the reserved card."""
    of_node = table(d8(), whole(1))
    found, _ = allocate_reserved(of_node, whole_cards(2), FILTERING, cards_of((0,)))
    assert [one.minor for one in found["gpu"]] == [0, 2]
    found, _ = allocate_reserved(
        table(h8(), node=H8_TRAITS), whole_cards(2), FILTERING, cards_of((5,))
    )
    assert [one.minor for one in found["gpu"]] == [4, 5]
