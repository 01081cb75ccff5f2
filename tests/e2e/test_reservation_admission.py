"""The component reservation-admission, as Kubernetes' own plugin decides by its policy."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from koord_scheduler_plugins.reservation.objects import read_reservation

POLICY = "koord-scheduler-reservations"
WEB = {"labelSelector": {"matchLabels": {"app": "web"}}}
Json = dict[str, Any]


def reservation(*missing: str, requests: Json | None = None, **spec: Any) -> Json:
    container = {"name": "main", "resources": {"requests": requests or {"cpu": "4"}}}
    found: Json = {"owners": [WEB], "ttl": "1h", "template": {"spec": {"containers": [container]}}}
    found |= spec
    kept = {key: value for key, value in found.items() if key not in missing}
    return {"metadata": {"name": "r"}, "spec": kept}


def expressions(operator: str, *values: str) -> Json:
    one = {"key": "app", "operator": operator, **({"values": list(values)} if values else {})}
    return reservation(owners=[{"labelSelector": {"matchExpressions": [one]}}])


def asks(before: Json | None, after: Json) -> Json:
    """A request; before None: the Reservation is created."""
    return {
        "user": "jane",
        "operation": "CREATE" if before is None else "UPDATE",
        "group": "scheduling.koordinator.sh",
        "kindGroup": "scheduling.koordinator.sh",
        "version": "v1alpha1",
        "kind": "Reservation",
        "resource": "reservations",
        "name": "r",
        "object": after,
        "oldObject": before,
    }


GOOD: dict[str, Json] = {
    "an owner by labels": reservation(),
    "an owner by its controller": reservation(
        owners=[{"controller": {"kind": "Job", "name": "a"}}]
    ),
    "pods that have a controller": reservation(owners=[{"controller": {"controller": True}}]),
    "one pod": reservation(owners=[{"object": {"namespace": "shop", "name": "a"}}]),
    "labels that are there": expressions("Exists"),
    "one of several labels": expressions("In", "web", "db"),
    "no end": reservation(ttl="0"),
    "a long time": reservation(ttl="1h30m0.5s"),
    "a moment": reservation("ttl", expires="2030-01-01T00:00:00Z"),
    "a number": reservation(requests={"cpu": 4, "example.com/gpu": 0}),
    "nothing requested": reservation(template={"spec": {"containers": [{"name": "main"}]}}),
    "pre-allocation": reservation(preAllocation=True, allocatePolicy="Restricted"),
    "a taint": reservation(taints=[{"key": "a", "effect": "NoSchedule"}]),
}
BAD: dict[str, tuple[Json, str]] = {
    "no spec": ({"metadata": {"name": "r"}}, "the reservation misses the template spec"),
    "no template": (reservation("template"), "the reservation misses the template spec"),
    "no owners": (reservation("owners"), "the reservation misses the owner spec"),
    "an empty list of owners": (reservation(owners=[]), "the reservation misses the owner spec"),
    "no end at all": (reservation("ttl"), "the reservation misses the expiration spec"),
    "an owner without parts": (reservation(owners=[WEB, {}]), "every pod is an owner"),
    "an empty selector": (reservation(owners=[{"labelSelector": {}}]), "every pod is an owner"),
    "an empty reference": (
        reservation(owners=[{"object": {"name": ""}, "controller": {}}]),
        "every pod is an owner",
    ),
    "an unknown operator": (expressions("Near", "web"), "the operator of a label selector"),
    "no values": (expressions("In"), "the operator of a label selector"),
    "too many values": (expressions("Exists", "web"), "the operator of a label selector"),
    "a negative time": (reservation(ttl="-5s"), "ttl -5s is no duration of 0 or more"),
    "no time": (reservation(ttl="soon"), "ttl soon is no duration of 0 or more"),
    "a negative amount": (
        reservation(requests={"cpu": "-4"}),
        "requests of containers that are no amounts of 0 or more: main",
    ),
    "no amount": (
        reservation(requests={"cpu": "many"}),
        "requests of containers that are no amounts of 0 or more: main",
    ),
    "a negative overhead": (
        reservation(template={"spec": {"overhead": {"cpu": "-1"}}}),
        "the overhead is no amount of 0 or more",
    ),
    "a taint without a key": (
        reservation(taints=[{"effect": "NoSchedule"}]),
        "a taint has no key, or an effect that is none",
    ),
    "a taint of no kind": (
        reservation(taints=[{"key": "a", "effect": "Sometimes"}]),
        "a taint has no key, or an effect that is none",
    ),
}


@pytest.fixture
def decide(deciding: Callable[[str], Callable[..., list[str]]]) -> Callable[..., list[str]]:
    return partial(deciding("reservation-admission"), POLICY)


def test_reservations_that_make_sense_are_created(decide: Any) -> None:
    assert decide(*(asks(None, one) for one in GOOD.values())) == [""] * len(GOOD)


def test_absurd_reservations_are_refused(decide: Any) -> None:
    found = decide(*(asks(None, one) for one, _ in BAD.values()))
    changed = decide(*(asks(reservation(), one) for one, _ in BAD.values()))
    for what, (_, why), *answers in zip(BAD, BAD.values(), found, changed, strict=True):
        for answer in answers:
            assert why in answer, what


def test_the_scheduler_finds_the_same() -> None:
    """The API server refuses nothing of which it would make sense."""
    for what, one in GOOD.items():
        assert read_reservation(one).spec is not None, what
    for what, (one, _) in BAD.items():
        assert read_reservation(one).problems, what


def test_pre_allocation_needs_a_policy_that_can_have_it(decide: Any) -> None:
    """The scheduler reads it, but would never find a node."""
    wanted = "preAllocation needs allocatePolicy Restricted"
    for more in ({}, {"allocatePolicy": "Aligned"}):
        [answer] = decide(asks(None, reservation(preAllocation=True, **more)))
        assert wanted in answer


def test_what_leaves_the_spec_as_it_is_is_allowed(decide: Any) -> None:
    """Also of a Reservation that was there before the policy."""
    bad = reservation("owners")
    labelled = {**bad, "metadata": {"name": "r", "labels": {"team": "a"}}}
    assert decide(asks(bad, {**bad, "status": {"phase": "Failed"}}), asks(bad, labelled)) == [
        "",
        "",
    ]
