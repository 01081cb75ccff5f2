"""Spec 08, 18.13: CPUs and NUMA nodes of reservations, case by case.

V12, V13 and V16 to V18 are in tests of the plugin Reservation.
"""

import json

import pytest

from koord.api.machine import format_cpulist, parse_cpulist
from koord.api.nodetopology import BindPolicy
from koord_scheduler.plugin import Status
from koord_scheduler_plugins.node_numa_resource.allocation import (
    Need,
    ReservedCpus,
    allocate,
    allocate_reserved,
)
from koord_scheduler_plugins.node_numa_resource.holdings import without_amounts
from tests.support.scheduler.numa import held, machine_of

Zones = dict[int, dict[str, int]]


@pytest.mark.parametrize(
    ("cpus", "numa", "restricted", "bound", "nodes", "wanted"),
    [
        pytest.param("4-10", {}, False, True, None, "4-7", id="V6"),
        pytest.param("4-10", {}, True, True, None, "4-7", id="V7"),
        pytest.param(
            "4-5",
            {},
            True,
            True,
            None,
            "not enough cpus available to satisfy request",
            id="V8",
        ),
        pytest.param("4-5", {}, False, True, None, "4-5,8-9", id="V8 without Restricted"),
        pytest.param("4-10", {0: {"cpu": 7000}}, True, True, {0}, "4-7", id="V9"),
        pytest.param("", {1: {"cpu": 7000}}, True, False, {1}, "", id="V10"),
        pytest.param("", {0: {"cpu": 2000}}, True, False, {0}, "Insufficient NUMA cpu", id="V11"),
        pytest.param("", {1: {"cpu": 7000}}, True, False, {0}, "Insufficient NUMA cpu", id="V14"),
    ],
)
def test_what_an_owner_gets(
    cpus: str,
    numa: Zones,
    restricted: bool,
    bound: bool,
    nodes: set[int] | None,
    wanted: str,
) -> None:
    """The pod wants 4 CPUs of 16 (of 32 with NUMA amounts) on two NUMA nodes."""
    of_pod = {
        node: {name: str(each["cpu"] // 1000) for name in each} for node, each in numa.items()
    }
    machine = machine_of("2x1x8x2" if numa else "2x1x4x2", held(cpus, of_pod or None))
    need = Need(requests={"cpu": 4000}, cpus=4 if bound else 0, policy=BindPolicy.FULL_PCPUS)
    found = allocate_reserved(
        machine,
        need,
        None if nodes is None else frozenset(nodes),
        ReservedCpus(cpus=parse_cpulist(cpus), numa=numa, restricted=restricted),
        most=False,
    )
    if isinstance(found, Status):
        assert found.message == wanted
        return
    assert format_cpulist(found.cpus) == wanted
    if nodes is not None:
        assert dict(found.numa) == {min(nodes): {"cpu": 4000}}


@pytest.mark.parametrize(
    ("cpu", "wanted"),
    [
        pytest.param(1000, {0: {"cpu": 1000}}, id="V12"),
        pytest.param(2000, "Insufficient NUMA cpu", id="V13"),
    ],
)
def test_what_is_left_beside_a_reservation(cpu: int, wanted: Zones | str) -> None:
    """Of 8 CPUs of a NUMA node 7 are reserved, of which a consumer has 4."""
    machine = machine_of("2x1x4x2", held("", {0: {"cpu": "3"}}), held("", {0: {"cpu": "4"}}))
    found = allocate(machine, Need(requests={"cpu": cpu}), frozenset({0}), most=False)
    if isinstance(found, Status):
        assert found.message == wanted
        return
    assert dict(found.numa) == wanted


@pytest.mark.parametrize(
    ("running", "cpus", "others", "nodes", "wanted"),
    [
        pytest.param("0-3", 8, "", None, "0-3,8-11", id="V19"),
        pytest.param("4-5,8-9", 8, "", None, "0-5,8-9", id="on both NUMA nodes"),
        pytest.param("4-7", 8, "12-15", {0}, "0-7", id="of one NUMA node"),
        pytest.param("4-7", 8, "", {1}, "", id="of another NUMA node"),
        pytest.param("4-7", 2, "", None, "", id="less than the pod has"),
    ],
)
def test_a_reservation_gets_the_cpus_of_the_pod_that_it_takes_over(
    running: str, cpus: int, others: str, nodes: set[int] | None, wanted: str
) -> None:
    zones = {0: {"cpu": "4"}} if nodes == {0} else None
    machine = machine_of("2x1x4x2", held(running, zones), held(others))
    need = Need(requests={"cpu": 1000 * cpus}, cpus=cpus, policy=BindPolicy.FULL_PCPUS)
    offer = ReservedCpus(
        cpus=parse_cpulist(running),
        numa={0: {"cpu": 4000}} if zones else {},
        taken_over=True,
    )
    chosen = None if nodes is None else frozenset(nodes)
    found = allocate_reserved(machine, need, chosen, offer, most=False)
    if isinstance(found, Status):
        assert (found.message, wanted) == ("not enough cpus available to satisfy request", "")
        return
    assert format_cpulist(found.cpus) == wanted


@pytest.mark.parametrize(
    ("consumers", "wanted"),
    [
        pytest.param(("6-7",), "8-9", id="V20: one consumer"),
        pytest.param(("6-7", "8-9"), "", id="V20: two"),
        pytest.param(("1-2",), "6-9", id="beside it"),
    ],
)
def test_what_consumers_leave(consumers: tuple[str, ...], wanted: str) -> None:
    left = without_amounts('{"cpuset":"6-9"}', {f"pod//{cpus}/": 1 for cpus in consumers})
    assert (json.loads(left)["cpuset"] if left else "") == wanted
