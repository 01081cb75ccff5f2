"""Real pods that act as reservations."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from koord.api.reservation import CURRENT_OWNER, OPERATING_MODE, OWNERS
from koord.util.errors import InvalidObject
from koord_scheduler_plugins.reservation.consumers import reservation_info
from koord_scheduler_plugins.reservation.objects import (
    AllocatePolicy,
    current_owner,
    is_operating,
    operating_reservation,
)
from koord_scheduler_plugins.reservation.owners import owners_match
from tests.support.reservations import MINE, pod

LABELS = {OPERATING_MODE: "Reservation"}


def operating(owners=None, **annotations):
    found = {OWNERS: json.dumps([MINE] if owners is None else owners), **annotations}
    one = pod("holder", "n", {"cpu": "4"}, LABELS, found)
    return replace(one, phase="Running", ready=True)


def test_a_pod_that_acts_as_a_reservation():
    one = operating()
    found = operating_reservation(one)

    assert is_operating(one)
    assert not is_operating(pod())
    assert found.spec is not None
    assert (found.spec.policy, found.spec.allocate_once) == (AllocatePolicy.ALIGNED, True)
    assert (found.allocatable, found.node, found.uid) == ({"cpu": 4000}, "n", one.uid)
    assert owners_match(found.spec.owners, pod("p"))
    assert reservation_info(found, {}).matchable
    assert not reservation_info(found, {"pods": 1}).matchable


@pytest.mark.parametrize(
    ("facts", "is_matchable"),
    [({"ready": False}, False), ({"phase": "Pending"}, False), ({"node": ""}, False), ({}, True)],
)
def test_it_can_be_had_while_it_is_ready(facts, is_matchable):
    found = operating_reservation(replace(operating(), **facts))

    assert reservation_info(found, {}).matchable is is_matchable


def test_a_finished_pod_holds_nothing_any_more():
    assert operating_reservation(replace(operating(), phase="Succeeded")).terminated


@pytest.mark.parametrize("owners", [[{}], {}, "web", [{"labelSelector": {}}]])
def test_absurd_owners_are_a_problem(owners):
    found = operating_reservation(operating(owners))

    assert found.spec is None
    assert found.problems
    assert not reservation_info(found, {}).matchable


def test_the_current_owner():
    text = json.dumps({"namespace": "shop", "name": "p", "uid": "u"})
    found = current_owner(operating(**{CURRENT_OWNER: text}))

    assert found is not None
    assert (found.namespace, found.name, found.uid) == ("shop", "p", "u")
    taken = operating_reservation(operating(**{CURRENT_OWNER: text}))
    assert not reservation_info(taken, {}).matchable
    assert current_owner(operating()) is None
    assert current_owner(operating(**{CURRENT_OWNER: "{}"})) is None
    malformed = operating_reservation(operating(**{CURRENT_OWNER: "{"}))
    assert CURRENT_OWNER in malformed.problems[0]


@given(st.text())
def test_annotations_of_any_text_raise_invalid_object_at_most(text):
    one = pod("holder", "n", labels=LABELS)
    one = replace(one, annotations=((CURRENT_OWNER, text), (OWNERS, text)))
    assert operating_reservation(one).name == "holder"
    try:
        current_owner(one)
    except InvalidObject:
        return
