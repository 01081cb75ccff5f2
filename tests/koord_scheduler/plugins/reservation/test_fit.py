"""Fit of a pod through reservations (worked examples of section 19.2, and an oracle)."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_scheduler_plugins.reservation.fit import (
    NO_MATCH,
    PREEMPTION_FAILED,
    FitOptions,
    NodeRoom,
    Preemptible,
    filter_node,
    insufficient_on_node,
    reservation_reasons,
)
from koord_scheduler_plugins.reservation.matching import Affinity, Demands
from koord_scheduler_plugins.reservation.reserve_pod import reserve_pod
from tests.support.clusters import read_pod
from tests.support.reservations import GI, info

CPU_BY_NODE = "Insufficient cpu by node"
CPU = "Reservation(s) Insufficient cpu"
PODS = "Reservation(s) Too many pods"
OF_RESERVATION = "kubernetes.io/batch-cpu"
MEMORY_OF_BATCH = "kubernetes.io/batch-memory"
BATCH = {OF_RESERVATION: 7500, MEMORY_OF_BATCH: 10 * GI}


def cores(some: dict[str, float]) -> dict[str, int]:
    """Amounts of cpu are cores in the table, those of memory GiB."""
    scales = {"cpu": 1000, "memory": GI}
    return {name: int(value * scales.get(name, 1)) for name, value in some.items()}


@dataclass(kw_only=True)
class Row:
    """A row of the table; amounts of cpu in cores."""

    pod: dict[str, float]
    reserved: tuple[dict[str, Any], ...]
    requested: dict[str, float]
    consumed: float = 0
    on_node: dict[str, float] = field(default_factory=dict)
    inside: dict[str, float] = field(default_factory=dict)
    required: bool = True
    named: bool = False
    skip_node: bool = False
    reasons: tuple[str, ...] = ()


def aligned(cpu: int, used: float = 0, **more: Any) -> dict[str, Any]:
    return {"policy": "Aligned", "cpu": cpu, "used": used, **more}


def default(cpu: int, used: float = 0) -> dict[str, Any]:
    return {"policy": "", "cpu": cpu, "used": used}


def restricted(cpu: int, used: float = 0, **more: Any) -> dict[str, Any]:
    return {"policy": "Restricted", "cpu": cpu, "used": used, **more}


def _q(cpu: float, **more: float) -> dict[str, float]:
    return {"cpu": cpu, **more}


LIMITED = restricted(7, 2, limit=2, consumers=2)
BATCH_USED = _q(30, **{MEMORY_OF_BATCH: 2 * GI})
BATCH_POD = {OF_RESERVATION: 8000, MEMORY_OF_BATCH: 8 * GI}
BATCH_SHORT = f"Insufficient {OF_RESERVATION} by node"
DETAILS = f"{PODS}, requested: 1, used: 2, capacity: 2"

ROWS = {
    1: Row(pod=_q(8, memory=8), reserved=(aligned(6),), requested=_q(30)),
    2: Row(pod=_q(8), reserved=(aligned(6),), requested=_q(32), reasons=(CPU_BY_NODE,)),
    3: Row(pod=_q(6), reserved=(restricted(6),), requested=_q(30)),
    4: Row(pod=_q(8), reserved=(restricted(6),), requested=_q(30), reasons=(CPU,)),
    5: Row(
        pod={OF_RESERVATION: 6000, MEMORY_OF_BATCH: 8 * GI},
        reserved=(restricted(6, 6),),
        requested=BATCH_USED,
        consumed=6,
    ),
    6: Row(
        pod=BATCH_POD,
        reserved=(restricted(6, 2),),
        requested=BATCH_USED,
        consumed=2,
        reasons=(BATCH_SHORT,),
    ),
    7: Row(
        pod=BATCH_POD,
        reserved=(restricted(6, 6),),
        requested=BATCH_USED,
        consumed=6,
        required=False,
        reasons=(BATCH_SHORT,),
    ),
    8: Row(pod=_q(3), reserved=(LIMITED,), requested=_q(30), consumed=2, reasons=(PODS,)),
    9: Row(
        pod=_q(3), reserved=(LIMITED,), requested=_q(30), consumed=2, named=True, reasons=(DETAILS,)
    ),
    10: Row(
        pod=_q(3),
        reserved=(LIMITED,),
        requested=_q(30),
        consumed=2,
        named=True,
        inside=_q(1, pods=1),
    ),
    11: Row(pod=_q(6), reserved=(restricted(6, inner=2),), requested=_q(30), reasons=(CPU,)),
    12: Row(
        pod=_q(6),
        reserved=(restricted(7, 2, inner=1),),
        requested=_q(30),
        consumed=2,
        named=True,
        inside=_q(1, pods=1),
        reasons=(f"{CPU}, requested: 6000, used: 1000, capacity: 6000",),
    ),
    13: Row(pod=_q(4), reserved=(default(6, 6),), requested=_q(36), consumed=6, inside=_q(4)),
    14: Row(
        pod=_q(4),
        reserved=(default(6, 6),),
        requested=_q(38),
        consumed=6,
        on_node=_q(2),
        inside=_q(2),
    ),
    15: Row(
        pod=_q(4),
        reserved=(default(6, 6),),
        requested=_q(38),
        consumed=6,
        inside=_q(2),
        reasons=(CPU_BY_NODE,),
    ),
    16: Row(
        pod=_q(4),
        reserved=(default(6, 6),),
        requested=_q(38),
        consumed=6,
        on_node=_q(2),
        reasons=(CPU_BY_NODE,),
    ),
    17: Row(pod=_q(4), reserved=(restricted(6, 6),), requested=_q(38), consumed=6, inside=_q(4)),
    18: Row(
        pod=_q(4),
        reserved=(restricted(6, 6),),
        requested=_q(38),
        consumed=6,
        on_node=_q(4),
        reasons=(CPU,),
    ),
    19: Row(
        pod=_q(4),
        reserved=(restricted(6, 6), restricted(4, 1)),
        requested=_q(38),
        consumed=10,
        on_node=_q(4),
        reasons=(CPU, CPU),
    ),
    20: Row(
        pod=_q(4),
        reserved=(restricted(6, 6),),
        requested=_q(38),
        consumed=6,
        on_node=_q(2),
        inside=_q(2),
        reasons=(CPU,),
    ),
    21: Row(
        pod=_q(4, memory=4),
        reserved=(restricted(6, 6),),
        requested=_q(38, memory=32),
        consumed=6,
        on_node={"memory": 32},
        inside=_q(4),
    ),
    22: Row(
        pod=_q(4),
        reserved=(aligned(6, 6),),
        requested=_q(38),
        consumed=6,
        on_node=_q(2),
        skip_node=True,
    ),
    23: Row(
        pod=_q(4),
        reserved=(restricted(6, 6),),
        requested=_q(38),
        consumed=6,
        on_node=_q(4),
        skip_node=True,
        reasons=(CPU,),
    ),
}


def _info(at: int, one: dict[str, Any]) -> Any:
    allocatable = {"cpu": str(one["cpu"])}
    if "limit" in one:
        allocatable["pods"] = str(one["limit"])
    inner = {}
    if "inner" in one:
        inner["node.koordinator.sh/reservation"] = f'{{"resources":{{"cpu":"{one["inner"]}"}}}}'
    return info(
        f"r{at}",
        used=cores({"cpu": one["used"], "pods": one.get("consumers", 0)}),
        status={"allocatable": allocatable},
        annotations=inner,
        allocateOnce=False,
        allocatePolicy=one["policy"],
    )


@pytest.mark.parametrize("number", ROWS)
def test_worked_examples(number):
    row = ROWS[number]
    matched = [_info(at, one) for at, one in enumerate(row.reserved)]
    affinity = Affinity(selector={}, name="r0" if row.named else "") if row.required else None

    result = filter_node(
        Demands(requests=cores(row.pod), affinity=affinity),
        matched,
        NodeRoom(
            allocatable={"cpu": 32000, "memory": 32 * GI, **BATCH},
            requested=cores(row.requested),
            consumed=cores({"cpu": row.consumed}),
            matched=len(matched),
            pods=len(matched),
        ),
        Preemptible(on_node=cores(row.on_node), inside={"uid-r0": cores(row.inside)}),
        FitOptions(skip_node=row.skip_node),
    )

    assert result.reasons == row.reasons
    assert result.passes == (not row.reasons)


def room(cpu: int, requested: int, **more: Any) -> NodeRoom:
    return NodeRoom(allocatable={"cpu": cpu}, requested={"cpu": requested}, **more)


def test_without_affinity_a_pod_runs_beside_the_reservations():
    matched = [info(allocatePolicy="Restricted")]

    beside = filter_node(Demands(requests={"cpu": 5000}), matched, room(10000, 4000, matched=1))

    assert (beside.passes, beside.fitting) == (True, ())


def test_a_pod_that_must_have_a_reservation_finds_none():
    wanted = Demands(requests={}, affinity=Affinity(selector={}))

    assert filter_node(wanted, [], room(1, 0)).reasons == (NO_MATCH,)


@pytest.mark.parametrize(
    ("freed", "reasons"),
    [({}, ()), ({"cpu": 1000}, (PREEMPTION_FAILED,)), ({"cpu": 4000}, ())],
)
def test_a_node_without_matched_reservations_is_judged_in_what_ifs_only(freed, reasons):
    """Else NodeResourcesFit decides."""
    full = room(8000, 8000, pods=1)

    found = filter_node(Demands(requests={"cpu": 4000}), [], full, Preemptible(on_node=freed))

    assert (found.passes, found.reasons) == (not reasons, reasons)


def test_a_pod_that_ignores_reservations_is_judged_elsewhere():
    wanted = Demands(requests={"cpu": 5000}, ignored=True)

    assert filter_node(wanted, [info()], room(1, 1)).passes


def test_other_plugins_can_reject_a_reservation():
    wanted = Demands(requests={"cpu": 1000}, affinity=Affinity(selector={}))
    both = [info("r0"), info("r1")]

    def no_devices(one: Any) -> list[str]:
        return ["no devices"] if one.name == "r0" else []

    result = filter_node(wanted, both, room(10000, 8000, matched=2), others=no_devices)

    assert [one.name for one in result.fitting] == ["r1"]


def test_the_reserve_pod_is_counted_once_as_a_pod():
    full = room(10000, 4000, allowed_pods=2, pods=2)

    assert insufficient_on_node({}, full) == ["pods"]
    assert insufficient_on_node({}, NodeRoom(**{**as_dict(full), "matched": 1})) == []


def as_dict(one: NodeRoom) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__slots__}


def test_ignored_resources_are_not_looked_at():
    """Example 48."""
    node = NodeRoom(allocatable={"cpu": 1000, "example.com/gpu": 1}, requested={})
    wanted = {"cpu": 2000, "example.com/gpu": 2, "other.com/a/b": 1, "gpu": 1}
    options = FitOptions(
        ignored_resources=frozenset({"example.com/gpu", "cpu"}),
        ignored_groups=frozenset({"other.com", "", "gpu"}),
    )

    assert insufficient_on_node(wanted, node, options=options) == ["cpu", "gpu"]


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        ('{"resources":["cpu"]}', []),
        ('{"resources":["memory"]}', ["Reservation(s) Insufficient memory"]),
        ('{"resources":["gpu"]}', ["Reservation(s) Insufficient memory"]),
    ],
)
def test_restricted_options_choose_what_is_limited(options, reasons):
    found = info(
        requests={"cpu": "4", "memory": "1Gi"},
        allocatePolicy="Restricted",
        annotations={"scheduling.koordinator.sh/reservation-restricted-options": options},
    )

    assert reservation_reasons({"cpu": 1000, "memory": 2 * GI}, found) == reasons


AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "x"]), st.integers(0, 9))
NODES = st.dictionaries(st.sampled_from(["cpu", "memory", "x"]), st.integers(0, 40))


@given(AMOUNTS, AMOUNTS, AMOUNTS, NODES, NODES, AMOUNTS, st.sampled_from(["", "Restricted"]))
def test_the_fit_is_that_of_pods_laid_out_one_by_one(
    wanted, reserved, used, allocatable, others, inner, policy
):
    """The oracle: the reserve pod makes room for what it has left, and keeps what is inner."""
    named = {name: str(amount) for name, amount in reserved.items()}
    named |= {"cpu": f"{reserved['cpu']}m"} if "cpu" in reserved else {}
    kept = {name: f"{amount}m" if name == "cpu" else str(amount) for name, amount in inner.items()}
    text = '{"resources":{' + ",".join(f'"{k}":"{v}"' for k, v in kept.items()) + "}}"
    found = info(
        used=used,
        allocatePolicy=policy,
        allocateOnce=False,
        status={"allocatable": named},
        annotations={"node.koordinator.sh/reservation": text},
    )
    held = {name: max(0, amount - used.get(name, 0)) for name, amount in reserved.items()}
    names = {*held, *others, *wanted}
    requested = {name: others.get(name, 0) + held.get(name, 0) for name in names}
    result = filter_node(
        Demands(requests=wanted, affinity=Affinity(selector={})),
        [found],
        NodeRoom(allocatable=allocatable, requested=requested, matched=1, pods=1),
    )

    def fits(name: str, amount: int) -> bool:
        kept_back = max(0, held.get(name, 0) - max(0, held.get(name, 0) - inner.get(name, 0)))
        on_node = others.get(name, 0) + kept_back
        if amount > allocatable.get(name, 0) - on_node:
            return False
        if policy == "Restricted" and name in reserved:
            return amount + used.get(name, 0) <= reserved[name] - inner.get(name, 0)
        return True

    assert result.passes == all(fits(name, amount) for name, amount in wanted.items() if amount)


@given(
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 30),
    st.integers(0, 30),
    st.sampled_from(["", "Aligned", "Restricted"]),
    st.booleans(),
)
def test_a_reserve_pod_of_what_is_left_decides_as_koordinator(
    wanted, reserved, used, size, others, policy, required
):
    """There the pod takes all, and what consumers hold is taken off in each cycle."""
    used = min(used, reserved)
    found = info(
        used={"cpu": used},
        allocatePolicy=policy,
        allocateOnce=False,
        status={"allocatable": {"cpu": f"{reserved}m"}},
    )
    demands = Demands(
        requests={"cpu": wanted}, affinity=Affinity(selector={}) if required else None
    )
    held = reserve_pod(found.reservation, found.used)
    amount = dict(read_pod(held).spec.requests).get("cpu", 0)

    ours = room(size, others + used + amount, matched=1, pods=1)
    theirs = room(size, others + used + reserved, consumed={"cpu": used}, matched=1, pods=1)

    assert filter_node(demands, [found], ours) == filter_node(demands, [found], theirs)


def test_a_consumer_larger_than_its_reservation_is_counted_in_full():
    """Koordinator takes 8 cores off for a reserve pod of 6: two of the consumer are lost there."""
    found = info(
        used={"cpu": 8000},
        allocatePolicy="Aligned",
        allocateOnce=False,
        status={"allocatable": {"cpu": "6"}},
    )
    held = dict(read_pod(reserve_pod(found.reservation, found.used)).spec.requests)

    assert held.get("cpu", 0) == 0
    assert found.remaining == {"cpu": 0}
