"""Reservations from outside: what they say, and what is absurd."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util.errors import InvalidObject
from koord_scheduler_plugins.reservation.amounts import MAX_AMOUNT, MAX_RESOURCES
from koord_scheduler_plugins.reservation.matching import read_affinity, read_demands
from koord_scheduler_plugins.reservation.objects import (
    AllocatePolicy,
    Reservation,
    last_good,
    read_reservation,
)
from koord_scheduler_plugins.reservation.owners import MAX_ITEMS
from koord_scheduler_plugins.reservation.reserve_pod import reserve_pod
from tests.support.reservations import CREATED, MINE, NOW, pod, reservation, reservation_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
INNER = "node.koordinator.sh/reservation"
OPTIONS = "scheduling.koordinator.sh/reservation-restricted-options"


def test_a_reservation():
    found = reservation(
        requests={"cpu": "500m", "memory": "1Gi"},
        allocatePolicy="Restricted",
        allocateOnce=False,
        expires=CREATED,
        unschedulable=True,
        taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}],
        preAllocation=True,
        preAllocationPolicy={"mode": "Cluster", "enableMultiple": True},
        annotations={INNER: '{"resources":{"cpu":"4"},"reservedCPUs":"0-1"}'},
        status={"allocatable": {"cpu": "1"}, "allocated": {"cpu": "250m"}},
    )

    spec = found.spec
    assert spec is not None
    assert (found.problems, found.created, found.available) == ((), NOW, True)
    assert (spec.policy, spec.allocate_once, spec.ttl) == (AllocatePolicy.RESTRICTED, False, 3600.0)
    assert (spec.expires, spec.unschedulable, spec.pre_allocation) == (NOW, True, True)
    assert (spec.pre_allocation_by_cluster, spec.pre_allocation_multiple) == (True, True)
    assert [(one.key, one.value, one.effect) for one in spec.taints] == [("k", "v", "NoSchedule")]
    assert spec.requests == {"cpu": 500, "memory": 1 << 30}
    assert spec.inner == {"cpu": 2000}
    assert (found.allocatable, found.allocated) == ({"cpu": 1000}, {"cpu": 250})


def test_defaults():
    spec = reservation().spec

    assert spec is not None
    assert (spec.allocate_once, spec.policy, spec.unschedulable) == (
        True,
        AllocatePolicy.DEFAULT,
        False,
    )


def test_a_template_requests_what_its_pod_does():
    """Init containers run before the others, sidecars beside them; overhead is added."""

    def container(cpu: str, **more: Any) -> dict[str, Any]:
        return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **more}

    spec = reservation(
        template={
            "containers": [container("1"), container("2")],
            "initContainers": [container("1", restartPolicy="Always"), container("5")],
            "overhead": {"cpu": "100m", "memory": "1"},
        }
    ).spec

    assert spec is not None
    assert spec.requests == {"cpu": 6100, "memory": 1}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"template": None}, "the reservation misses the template spec"),
        ({"owners": []}, "the reservation misses the owner spec"),
        ({"ttl": None}, "the reservation misses the expiration spec"),
    ],
)
def test_validation_has_the_texts_of_koordinator(change, problem):
    item = reservation_json()
    item["spec"] |= change

    found = read_reservation(item)

    assert (found.spec, found.problems) == (None, (problem,))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"owners": [{"labelSelector": {}}]}, "owners[0]"),
        ({"owners": [MINE, {}]}, "owners[1]"),
        ({"owners": [{"object": {}, "controller": {}}]}, "owners[0]"),
        ({"owners": [MINE] * (MAX_ITEMS + 1)}, "owners"),
        (
            {"owners": [{"labelSelector": {"matchExpressions": [{"key": "a", "operator": "?"}]}}]},
            "matchExpressions[0].operator",
        ),
        ({"ttl": "-1s"}, "ttl"),
        ({"ttl": "a day"}, "ttl"),
        ({"expires": "tomorrow"}, "expires"),
        ({"allocatePolicy": "Lax"}, "allocatePolicy"),
        ({"preAllocationPolicy": {"mode": "All"}}, "mode"),
        ({"taints": [{"key": "k", "effect": "Nothing"}]}, "effect"),
        ({"taints": [{"key": "k", "effect": "NoSchedule"}] * (MAX_ITEMS + 1)}, "taints"),
    ],
)
def test_an_absurd_spec_is_a_problem_and_the_last_good_one_stays(change, named):
    good = reservation()
    item = reservation_json(phase="Succeeded")
    item["spec"] |= change

    found = read_reservation(item)
    counts = last_good(good, found)

    assert found.spec is None
    assert named in found.problems[0]
    assert (counts.spec, counts.phase) == (good.spec, "Succeeded")
    assert counts.problems == found.problems


@pytest.mark.parametrize(
    "annotation",
    [
        {INNER: '{"resources":{"cpu":"-1"}}'},
        {INNER: '{"reservedCPUs":"one"}'},
        {INNER: "[]"},
        {OPTIONS: '{"resources":"cpu"}'},
        {OPTIONS: json.dumps({"resources": ["cpu"] * (MAX_ITEMS + 1)})},
        {"scheduling.koordinator.sh/reservation-resize-allocatable": '{"resources":{"cpu":"x"}}'},
        {OPTIONS: " " * 300_000},
    ],
)
def test_an_absurd_annotation_is_a_problem_of_the_spec(annotation):
    found = reservation(annotations=annotation)

    assert found.spec is None
    assert next(iter(annotation)) in found.problems[0]


def test_amounts_below_zero_leave_the_last_good_ones():
    good = reservation(status={"allocatable": {"cpu": "2"}})
    bad = reservation(status={"allocatable": {"cpu": "-2"}})

    assert bad.allocatable is None
    assert last_good(good, bad).allocatable == {"cpu": 2000}
    assert last_good(None, bad).allocatable is None
    moved = reservation(node="m", status={"allocatable": {"cpu": "-2"}})
    assert last_good(good, moved).allocatable is None


def test_a_reservation_that_was_made_anew_has_nothing_of_the_old_one():
    item = reservation_json(ttl="never")
    item["metadata"]["uid"] = "another"

    assert last_good(reservation(), read_reservation(item)).spec is None


def test_amounts_are_bounded():
    many = {f"r{at}": "1" for at in range(MAX_RESOURCES + 1)}

    assert reservation(status={"allocatable": {"cpu": "9E"}}).allocatable == {"cpu": MAX_AMOUNT}
    assert "allocatable" in reservation(status={"allocatable": many}).problems[0]


@pytest.mark.parametrize(
    ("text", "order"),
    [("5", 5), ("-3", -3), ("0", None), ("", None), ("1.5", None), ("9" * 30, None), ("٣", None)],
)
def test_orders(text, order):
    label = "scheduling.koordinator.sh/reservation-order"

    assert reservation(labels={label: text}).order == order


@given(JSON, JSON, JSON, JSON)
def test_reading_a_reservation_raises_invalid_object_at_most(spec, part, status, annotation):
    item = reservation_json()
    names = ("owners", "taints", "ttl", "template", "preAllocationPolicy", "allocateOnce")
    for name in names if isinstance(part, list) else ():
        item["spec"][name] = part
    if isinstance(spec, dict):
        item["spec"] |= spec
    item["status"] = status
    item["metadata"]["annotations"] = {
        key: json.dumps(annotation, default=str) for key in (INNER, OPTIONS)
    }
    try:
        found = read_reservation(item)
    except InvalidObject:
        return
    assert isinstance(found, Reservation)
    assert (found.spec is None) <= bool(found.problems)
    assert reserve_pod(found) == reserve_pod(read_reservation(item))


@given(JSON)
def test_reading_anything_raises_invalid_object_at_most(value):
    with pytest.raises(InvalidObject):
        read_reservation(value)


@given(st.text() | JSON.map(lambda value: json.dumps(value)))
def test_reading_an_affinity_raises_invalid_object_at_most(text):
    try:
        read_affinity(text)
    except InvalidObject:
        return
    assert read_affinity(text) == read_affinity(text)


@given(JSON)
def test_reading_parts_of_an_affinity_raises_invalid_object_at_most(value):
    terms = {"reservationSelectorTerms": value}
    for part in (
        {"requiredDuringSchedulingIgnoredDuringExecution": terms},
        {"tolerations": value},
        {"reservationSelector": value},
        {"name": value},
    ):
        try:
            read_affinity(json.dumps(part))
        except InvalidObject:
            continue


def test_demands_of_a_pod():
    found = read_demands(
        pod(
            requests={"cpu": "1"},
            labels={"scheduling.koordinator.sh/reservation-ignored": "true"},
            annotations={
                "scheduling.koordinator.sh/reservation-affinity": "",
                "scheduling.koordinator.sh/exact-match-reservation": '{"resourceNames":["cpu"]}',
            },
        )
    )

    assert (found.requests, found.required, found.name) == ({"cpu": 1000}, True, "")
    assert (found.exact, found.ignored) == (("cpu",), True)


def test_a_pod_without_annotations_wants_nothing():
    found = read_demands(pod())

    assert (found.required, found.exact, found.ignored) == (False, (), False)
