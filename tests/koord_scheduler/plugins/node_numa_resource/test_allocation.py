"""Allocation on one node, by the worked cases of Koordinator's."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.machine import format_cpulist, parse_cpulist
from koord.api.nodetopology import BindPolicy
from koord_scheduler.plugin import Status
from koord_scheduler.plugin.koordinator import NUMANodeUse, NUMATopologyPolicy
from koord_scheduler.plugin.vector import ResourceSpec
from koord_scheduler_plugins.node_numa_resource.accumulator import NOT_ENOUGH
from koord_scheduler_plugins.node_numa_resource.allocation import (
    AmountScorer,
    Need,
    NumaOffer,
    allocate,
    numa_hints,
)
from koord_scheduler_plugins.node_numa_resource.holdings import (
    Allocation,
    parse_allocation,
    status_document,
)
from koord_scheduler_plugins.node_numa_resource.machine import Machine
from tests.support.scheduler.numa import held, machine_of

FULL, SPREAD = BindPolicy
GI = 2**30
BIG = "2x1x26x2"  # NUMA node 0 has CPUs 0-51, 1 has 52-103


def request(
    cpu: float, policy: BindPolicy | None = None, *, required: bool = True, **more: int
) -> Need:
    requests = {"cpu": int(cpu * 1000), **{name.replace("_", "-"): n for name, n in more.items()}}
    if policy is None:
        return Need(requests=requests)
    return Need(requests=requests, cpus=int(cpu), policy=policy, required=required)


def reported(found: Allocation | Status) -> str:
    """An allocation as text: CPUs; cores of each NUMA node."""
    if isinstance(found, Status):
        return ", ".join(found.reasons)
    numa = "/".join(f"{node}:{amounts.get('cpu', 0)}" for node, amounts in found.numa)
    return f"{format_cpulist(found.cpus)}; {numa}"


def existing(cpus: str, first: int = 0, second: int = 0) -> dict[str, str]:
    amounts: dict[int, Mapping[str, object]] = {
        node: {"cpu": str(amount)} for node, amount in ((0, first), (1, second)) if amount
    }
    return held(cpus, amounts)


@pytest.mark.parametrize(
    ("counted", "preferred", "wanted"),
    [
        (["1-4"], "", "0-15"),
        (["1-4", "2-5"], "", "0-1,5-15"),
    ],
)
def test_cpus_that_two_pods_can_have(counted: list[str], preferred: str, wanted: str) -> None:
    machine = machine_of("2x1x4x2", *(held(cpus) for cpus in counted), max_count=2)
    assert format_cpulist(machine.free) == wanted


def test_free_cpus() -> None:
    machine = machine_of("2x1x4x2", held("0-4"))
    assert format_cpulist(machine.free) == "5-15"
    assert format_cpulist(machine.free_with({1, 2})) == "1-2,5-15"
    assert format_cpulist(machine_of("2x1x4x2", held("2-5")).free) == "0-1,6-15"


@pytest.mark.parametrize(
    ("pods", "ratio", "reusable", "used", "available"),
    [
        pytest.param([], 1.5, {}, None, 24000, id="R1"),
        pytest.param([existing("0-3", 4)], 1.5, {}, 6000, 18000, id="R2"),
        pytest.param([existing("0-3", 8)], 1.5, {}, 10000, 14000, id="R3"),
        pytest.param([existing("0-3", 8)], None, {}, 8000, 8000, id="R4"),
        pytest.param([existing("0-3", 8)], 1.5, {0: {"cpu": 4000}}, 10000, 18000, id="R5"),
        pytest.param([existing("", 30)], 1.5, {}, 30000, 0, id="R6"),
    ],
)
def test_amounts_of_an_amplified_node(
    pods: list[dict[str, str]],
    ratio: float | None,
    reusable: dict[int, dict[str, int]],
    used: int | None,
    available: int,
) -> None:
    machine = machine_of("2x1x8x2", *pods, ratio=ratio, memory="32Gi")
    assert machine.used.get(0, {}).get("cpu") == used
    assert machine.available(reusable)[0]["cpu"] == available
    assert machine.available(reusable)[0]["memory"] == 32 * GI


LACKING = "Insufficient NUMA cpu"


@pytest.mark.parametrize(
    ("nodes", "need", "ratio", "pod", "wanted"),
    [
        pytest.param("0", request(4, gpu_memory=10 * GI), None, None, "; 0:4000", id="L1"),
        pytest.param("0", request(54), None, None, LACKING, id="L2"),
        pytest.param("0", request(4, FULL), None, None, "0-3; 0:4000", id="L3"),
        pytest.param("0", request(4, FULL), None, ("4-103", 48, 52), "0-3; 0:4000", id="L4"),
        pytest.param("0", request(4, FULL), None, ("1,3,5,7-103", 48, 52), LACKING, id="L5"),
        pytest.param("0", request(4, SPREAD), None, None, "0,2,4,6; 0:4000", id="L6"),
        pytest.param(
            "0", request(4, SPREAD), None, ("1,3,5,7-103", 48, 52), "0,2,4,6; 0:4000", id="L7"
        ),
        pytest.param("0", request(4, SPREAD), None, ("4-103", 48, 52), LACKING, id="L8"),
        pytest.param("0", request(4, SPREAD), 1.5, None, "0,2,4,6; 0:4000", id="L9"),
        pytest.param("0", request(4), 1.5, ("0-49,52-101", 50, 50), LACKING, id="L10"),
        pytest.param(
            "01",
            request(8, FULL),
            None,
            ("0-43,53-96", 48, 48),
            "44-47,98-101; 0:4000/1:4000",
            id="L11",
        ),
        pytest.param("01", request(4), None, None, "; 0:2000/1:2000", id="L12"),
        pytest.param("01", request(108), None, None, LACKING, id="L13"),
        pytest.param("01", request(4, FULL), None, None, "0-1,52-53; 0:2000/1:2000", id="L14"),
        pytest.param(
            "01",
            request(4, FULL),
            None,
            ("4-101", 48, 50),
            "0-1,102-103; 0:2000/1:2000",
            id="L15",
        ),
        pytest.param("01", request(4, SPREAD), None, None, "0,2,52,54; 0:2000/1:2000", id="L16"),
        pytest.param(
            "01",
            request(4, SPREAD),
            None,
            ("1,3,5,7-101,103", 48, 50),
            "0,2,4,102; 0:3000/1:1000",
            id="L17",
        ),
        pytest.param(
            "01",
            request(4, SPREAD),
            None,
            ("4-100", 48, 49),
            "0,2,101-102; 0:2000/1:2000",
            id="L18",
        ),
        pytest.param(
            "01",
            request(5, SPREAD),
            None,
            ("1,3,5,7-97,103", 48, 47),
            "0,2,4,98,100; 0:3000/1:2000",
            id="L19",
        ),
        pytest.param("01", request(3.5), 1.5, ("0-49,52-101", 50, 50), "; 0:1750/1:1750", id="L20"),
    ],
)
def test_allocation_in_numa_nodes(
    nodes: str, need: Need, ratio: float | None, pod: tuple[str, int, int] | None, wanted: str
) -> None:
    pods = [] if pod is None else [existing(*pod)]
    machine = machine_of(BIG, *pods, ratio=ratio)
    chosen = frozenset(int(one) for one in nodes)
    assert reported(allocate(machine, need, chosen, most=False)) == wanted


def test_the_node_with_less_comes_first_whatever_its_number() -> None:
    """NUMA nodes 1 and 3 of four, of which 1 has 2 CPUs left and 3 has 20."""
    machine = machine_of("4x1x10x2", held("", {1: {"cpu": "18"}}))
    found = allocate(machine, request(10), frozenset({1, 3}), most=False)
    assert reported(found) == "; 1:2000/3:8000"


def test_preferred_cpus_come_first() -> None:
    machine = machine_of("2x1x16x2", held("11,13,15,17"))
    offer = NumaOffer(preferred=frozenset({11, 13, 15, 17}))
    need = request(2, SPREAD, required=False)
    assert reported(allocate(machine, need, None, most=True, offer=offer)) == "11,13; "  # S9
    machine = machine_of("2x1x16x2", held("0,2"))
    offer = NumaOffer(preferred=frozenset({0, 2}))
    assert reported(allocate(machine, need, None, most=True, offer=offer)) == "0,2; "  # S7
    need = request(4, SPREAD, required=False)
    assert (
        reported(allocate(machine, need, None, most=True, offer=offer)) == "0-3; "
    )  # the rest by itself


def test_a_reserved_thread_makes_no_whole_core() -> None:
    machine = machine_of("1x1x2x2")
    assert reported(allocate(machine, request(4, FULL), None, most=False)) == "0-3; "
    taken = machine_of("1x1x2x2", held("1"))
    assert reported(allocate(taken, request(2, FULL), None, most=False)) == "2-3; "
    assert reported(allocate(taken, request(4, FULL), None, most=False)) == NOT_ENOUGH


@pytest.mark.parametrize(
    ("shape", "steps"),
    [
        pytest.param(
            "2x1x4x2",
            [
                (4, FULL, False, "0-3"),
                (4, FULL, False, "8-11"),
                (2, SPREAD, True, "4,6"),
                (4, FULL, True, "12-15"),
                (2, FULL, True, NOT_ENOUGH),
                (2, FULL, False, "5,7"),
            ],
            id="a",
        ),
        pytest.param(
            "2x2x8x2",
            [
                (6, FULL, False, "0-5"),
                (10, FULL, False, "32-41"),
                (20, FULL, False, "6-25"),
                (4, SPREAD, True, "48,50,52,54"),
                (9, SPREAD, True, "42,44,46,49,51,53,55-56,58"),
                (8, FULL, True, "26-31,60-61"),
            ],
            id="b",
        ),
    ],
)
def test_one_pod_after_the_other(
    shape: str, steps: list[tuple[int, BindPolicy, bool, str]]
) -> None:
    pods: list[dict[str, str]] = []
    for count, policy, required, wanted in steps:
        found = allocate(
            machine_of(shape, *pods), request(count, policy, required=required), None, most=False
        )
        assert reported(found).removesuffix("; ") == wanted
        if isinstance(found, Allocation):
            pods.append(held(format_cpulist(found.cpus)))


SCORER = AmountScorer(
    (ResourceSpec(name="cpu", weight=1), ResourceSpec(name="memory", weight=1)), False
)
BEST, RESTRICTED, SINGLE = NUMATopologyPolicy


def hints(machine: Machine, need: Need, policy: NUMATopologyPolicy = BEST) -> dict[str, list[str]]:
    found = numa_hints(machine, need, policy, SCORER, most=False)
    return {
        name: [
            f"{''.join(map(str, sorted(one.nodes or ())))}:{'y' if one.preferred else 'n'}"
            for one in each
        ]
        for name, each in found.items()
    }


@pytest.mark.parametrize(
    ("need", "policy", "ratio", "pod", "wanted"),
    [
        pytest.param(request(4, FULL), BEST, None, None, ["0:y", "1:y", "01:n"], id="H1"),
        pytest.param(request(4, FULL), BEST, None, ("4-103", 48, 52), ["0:y"], id="H2"),
        pytest.param(request(4, FULL), BEST, None, ("1,3,5,7-103", 48, 52), [], id="H3"),
        pytest.param(request(4, SPREAD), BEST, None, ("1,3,5,7-103", 48, 52), ["0:y"], id="H4"),
        pytest.param(request(4), BEST, 1.5, ("0-49,52-101", 50, 50), ["01:y"], id="H5"),
        pytest.param(request(4, FULL), RESTRICTED, None, None, ["0:y", "1:y", "01:y"], id="H7"),
    ],
)
def test_hints(
    need: Need,
    policy: NUMATopologyPolicy,
    ratio: float | None,
    pod: tuple[str, int, int] | None,
    wanted: list[str],
) -> None:
    pods = [] if pod is None else [existing(*pod)]
    machine = machine_of(BIG, *pods, ratio=ratio, zones={"hugepages-1Gi": "4Gi"})
    assert hints(machine, need, policy) == {"cpu": wanted}


def test_hints_need_all_resources() -> None:
    both = {"cpu": "4", "memory": "120Gi", "hugepages-1Gi": "4Gi"}
    machine = machine_of(BIG, held("", {0: both, 1: both}), zones={"hugepages-1Gi": "4Gi"})
    need = request(4, memory=4 * GI, hugepages_1Gi=4 * GI)
    assert hints(machine, need) == {"cpu": [], "memory": [], "hugepages-1Gi": []}  # H6
    assert hints(machine_of(BIG), Need(requests={"nvidia.com/gpu": 1})) == {}  # H8


def test_hints_of_a_large_machine_end_with_the_smallest_choices() -> None:
    machine = machine_of("8x1x4x2")
    found = numa_hints(machine, request(4, FULL), SINGLE, SCORER, most=False)
    assert [sorted(one.nodes or ()) for one in found["cpu"]] == [[node] for node in range(8)]


def test_scores_of_hints() -> None:
    machine = machine_of("2x1x4x2", memory="16Gi")
    need = request(3, memory=4 * GI)
    found = numa_hints(machine, need, SINGLE, SCORER, most=False)
    assert [one.score for one in found["cpu"]] == [68, 68, 84]  # 18.17 (d)


def test_uses_of_numa_nodes() -> None:
    """By amounts as well as by CPUs; a node whose number has no zone of its own is no error."""
    alone, both = NUMANodeUse.SINGLE, NUMANodeUse.SHARED
    assert machine_of("2x1x4x2", held("0-1")).uses(amounts=True) == {0: alone}
    assert machine_of("2x1x4x2", held("0-1"), held("7-8")).uses(amounts=True) == {0: both, 1: both}
    assert machine_of("2x1x4x2", held("", {1: {"cpu": "1"}})).uses(amounts=True) == {1: alone}
    assert machine_of("2x1x4x2", held("", {1: {"cpu": "1"}})).uses(amounts=False) == {}
    assert machine_of("2x1x4x2", held("", {9: {"cpu": "1"}}), held("4095")).uses(amounts=True) == {
        9: alone
    }


def test_statuses_as_they_are_written() -> None:
    cpus = Allocation(frozenset(range(4)))
    assert status_document(cpus) == {"cpuset": "0-3"}
    numa = Allocation(numa=((0, {"cpu": 4000, "memory": 8 * GI, "example.com/a": 2}),))
    resources = {"cpu": "4", "example.com/a": "2", "memory": "8Gi"}
    assert status_document(numa) == {"numaNodeResources": [{"node": 0, "resources": resources}]}
    assert status_document(Allocation()) == {}


@given(data=st.data(), policy=st.sampled_from(BindPolicy), required=st.booleans())
def test_a_whole_allocation_is_one_that_the_node_has(
    data: st.DataObject, policy: BindPolicy, required: bool
) -> None:
    """Only free CPUs, as many as are wanted, on cores as required, and amounts that add up."""
    shape: str = data.draw(st.sampled_from(["2x1x4x2", "2x2x2x2", "1x2x4x1"]))
    had = data.draw(st.sets(st.integers(0, 15), max_size=8))
    machine = machine_of(shape, held(format_cpulist(had)) if had else held())
    nodes = data.draw(st.none() | st.frozensets(st.sampled_from(sorted(machine.zones)), min_size=1))
    need = request(data.draw(st.integers(1, 8)), policy, required=required)
    found = allocate(machine, need, nodes, most=data.draw(st.booleans()))
    trial = allocate(machine, need, nodes, most=False, trial=True)
    assert isinstance(trial, Status) == isinstance(found, Status)
    if isinstance(found, Status):
        assert found.rejected
        return
    assert len(found.cpus) == need.cpus
    assert not found.cpus & had
    assert found.cpus <= machine.layout.all
    cores: dict[int, int] = {}
    for cpu in found.cpus:
        cores[machine.layout.cpus[cpu].core] = cores.get(machine.layout.cpus[cpu].core, 0) + 1
    if required and policy is SPREAD:
        assert set(cores.values()) == {1}
    if required and policy is FULL:
        assert set(cores.values()) == {machine.layout.cpus_per_core}
    if nodes is not None:
        assert machine.layout.nodes_of(found.cpus) <= nodes
        assert sum(amounts["cpu"] for _, amounts in found.numa) == 1000 * need.cpus


def parsed(**document: Any) -> Allocation:
    return parse_allocation(json.dumps(document))


def test_annotations_that_name_what_no_node_has() -> None:
    assert parsed(cpuset="0-3").cpus == parse_cpulist("0-3")
    for wrong in (
        {"cpuset": "0-99999"},
        {"cpuset": "4097"},
        {"cpuset": 7},
        {"numaNodeResources": [{"node": 64, "resources": {"cpu": "1"}}]},
        {"numaNodeResources": [{"node": -1, "resources": {"cpu": "1"}}]},
        {"numaNodeResources": [{"node": 0, "resources": {"cpu": "-1"}}]},
        {"numaNodeResources": [{"node": 0, "resources": {"cpu": "1"}}] * 2},
    ):
        with pytest.raises(Exception, match="wanted"):
            parsed(**wrong)
