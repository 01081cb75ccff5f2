"""Consumers in the account, whichever of pod and Reservation comes first."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.reservation import ALLOCATED
from koord.cluster.account import Account
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.state import Snapshot
from koord_scheduler_plugins.reservation.consumers import (
    CONSUMERS,
    allocated_text,
    pool_name,
    reservation_info,
)
from koord_scheduler_plugins.reservation.objects import Reservation
from tests.support.clusters import node, read_node
from tests.support.reservations import pod, reservation


def consumer(name: str, where: str = "n", uid: str = "uid-r", cpu: str = "1", **more: Any) -> Any:
    return pod(name, where, {"cpu": cpu}, annotations={ALLOCATED: allocated_text("r", uid)}, **more)


def used(account: Account, found: Reservation) -> dict[str, int]:
    pool = account.freeze().pool(CONSUMERS, pool_name(found.uid, found.node))
    return dict(pool.allocated)


def test_consumers_are_those_that_are_bound_to_its_node():
    account = Account([CONSUMERS])
    for one in (
        consumer("a"),
        consumer("b", cpu="2"),
        consumer("unbound", ""),
        consumer("elsewhere", "m"),
        consumer("another", uid="uid-s"),
        pod("none", "n", {"cpu": "4"}),
        pod("odd", "n", {"cpu": "4"}, annotations={ALLOCATED: "{"}),
    ):
        account.put(one)

    assert used(account, reservation()) == {"cpu": 3000, "pods": 2}
    members = account.freeze().pool(CONSUMERS, "uid-r@n").members
    assert set(members) == {"default/a", "default/b"}
    assert set(account.unread(CONSUMERS)) == {"default/odd"}
    pools = set(account.freeze().other_pools(CONSUMERS, None))
    assert pools == {"uid-r@n", "uid-r@m", "uid-s@n"}


def test_a_pod_cannot_count_as_several():
    """A request of "pods" is not taken for their number."""
    account = Account([CONSUMERS])
    text = allocated_text("r", "uid-r")
    account.put(pod("p", "n", {"pods": "5", "cpu": "1"}, annotations={ALLOCATED: text}))

    assert used(account, reservation()) == {"cpu": 1000, "pods": 1}


@pytest.mark.parametrize("first", ["pod", "reservation"])
def test_whichever_comes_first(first):
    """Defect D1 mended: a consumer that is seen before its reservation counts."""
    account, known = Account([CONSUMERS]), {}

    def put_pod() -> None:
        account.put(consumer("p"))

    def put_reservation() -> None:
        known["r"] = reservation(allocateOnce=False)

    steps = [put_pod, put_reservation]
    for step in steps if first == "pod" else reversed(steps):
        step()
    found = reservation_info(known["r"], used(account, known["r"]))

    assert (found.used, found.remaining, found.consumers) == ({"cpu": 1000}, {"cpu": 3000}, 1)


def test_a_what_if_frees_what_a_consumer_holds():
    snapshot = Snapshot()
    snapshot.keep_account(CONSUMERS)
    for name in "nm":
        snapshot.put_node(read_node(node(name)))
    one = consumer("p")
    snapshot.put_pod(one)

    what_if = HypotheticalCluster(snapshot.view())
    what_if.remove("default/p", "n")
    gone = what_if.view().account
    what_if.add(one, "m")
    moved = what_if.view().account

    assert gone.pool(CONSUMERS, "uid-r@n").allocated == {}
    assert moved.pool(CONSUMERS, "uid-r@n").allocated == {}
    there = snapshot.view().account.pool(CONSUMERS, "uid-r@n")
    assert there.allocated == {"cpu": 1000, "pods": 1}


EVENTS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["", "n", "m"]), st.integers(0, 3)),
    max_size=12,
)


@given(EVENTS, st.randoms(use_true_random=False))
def test_any_order_of_events_ends_in_the_same_account(events, random):
    """The last event of each pod decides, and no event of another pod."""
    last = {name: (where, cpu) for name, where, cpu in events}
    account, shuffled = Account([CONSUMERS]), Account([CONSUMERS])
    for name, where, cpu in events:
        account.put(consumer(name, where, cpu=str(cpu)))
    for name in random.sample(sorted(last), len(last)):
        shuffled.put(consumer(name, last[name][0], cpu=str(last[name][1])))

    assert used(account, reservation()) == used(shuffled, reservation())
