"""Spec 08, 18.13: CPUs and NUMA nodes of reservations, case by case."""

import pytest

from koord.api.machine import format_cpulist, parse_cpulist
from koord_scheduler.plugin import Status
from koord_scheduler_plugins.node_numa_resource.accumulator import BindPolicy
from koord_scheduler_plugins.node_numa_resource.allocation import (
    Need,
    ReservedCpus,
    allocate_reserved,
)
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
