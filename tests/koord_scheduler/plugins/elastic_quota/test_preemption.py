"""Victims inside a quota, and pods of a quota that uses too much (worked examples 50 to 53)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.elasticquota import DEFAULT_QUOTA
from koord_scheduler_plugins.elastic_quota.preemption import (
    OverUse,
    QuotaPod,
    candidates,
    over_use,
    quota_victims,
    revoked,
)


def pod(key: str, priority: int = 0, cpu: int = 0, memory: int = 0, **more: Any) -> QuotaPod:
    values = {"quota": "q", "request": {"cpu": cpu, "memory": memory}} | more
    return QuotaPod(key=key, priority=priority, **values)


def keys(pods: list[QuotaPod] | None) -> list[str]:
    assert pods is not None
    return [one.key for one in pods]


def test_only_less_important_preemptible_pods_of_the_quota_are_candidates():
    """Example 50."""
    pods = [
        pod("p1", 1),
        pod("p2", 1, quota="other"),
        pod("p3", 1, preemptible=False),
        pod("equal", 5),
        pod("p0", 0),
    ]

    assert keys(candidates(pods, "q", 5)) == ["p0", "p1"]


def test_pods_of_the_default_quota_can_be_spared():
    """Example 51."""
    pods = [pod("p1", quota=DEFAULT_QUOTA)]

    assert candidates(pods, DEFAULT_QUOTA, 5, spare_default=True) == []
    assert keys(candidates(pods, DEFAULT_QUOTA, 5)) == ["p1"]


PODS = [
    pod("1", 10, 20, 0),
    pod("2", 9, 10, 1),
    pod("3", 8, 20, 0),
    pod("4", 7, 40, 0),
]


@pytest.mark.parametrize(
    ("limit", "wanted"),
    [
        pytest.param({"cpu": 50, "memory": 0}, {"2", "4"}, id="52"),
        pytest.param({"cpu": -1, "memory": -1}, {"1", "2", "3", "4"}, id="52, below zero"),
        pytest.param({"cpu": 90, "memory": 1}, set(), id="within"),
        pytest.param({"memory": 0}, {"2"}, id="only what the limit has"),
    ],
)
def test_pods_of_a_quota_that_uses_too_much(limit, wanted):
    assert set(keys(revoked(PODS, {"cpu": 90, "memory": 1}, limit))) == wanted


def test_pods_that_are_not_preemptible_are_not_revoked():
    pods = [pod("a", 1, 5, preemptible=False), pod("b", 2, 5)]

    assert keys(revoked(pods, {"cpu": 10}, {"cpu": 5})) == ["b"]


def test_of_equal_pods_the_one_started_last_goes():
    pods = [pod("old", cpu=5, started=1.0), pod("new", cpu=5, started=2.0)]

    assert keys(revoked(pods, {"cpu": 10}, {"cpu": 5})) == ["new"]


def test_over_use_is_tolerated_for_a_while():
    """Example 53."""
    over, revoke = OverUse(0.0).next(100.0, 120.0, over=True)
    assert (over, revoke) == (OverUse(0.0), False)
    over, revoke = over.next(110.0, 120.0, over=False)
    assert (over, revoke) == (OverUse(110.0), False)
    over, revoke = over.next(230.0, 120.0, over=True)
    assert (over, revoke) == (OverUse(110.0), False)
    assert over.next(231.0, 120.0, over=True) == (OverUse(231.0), True)


def test_nobody_is_a_victim_if_all_do_not_suffice():
    assert quota_victims(PODS, lambda freed: freed["cpu"] >= 91) is None


def test_the_least_important_pods_that_suffice_are_victims():
    assert keys(quota_victims(PODS, lambda freed: freed["cpu"] >= 50)) == ["3", "4"]


def test_protected_pods_come_back_first():
    pods = [pod("low", 1, 10, protected=True), pod("high", 2, 10)]

    assert keys(quota_victims(pods, lambda freed: freed["cpu"] >= 10)) == ["high"]


AMOUNTS = st.integers(0, 20)
LISTS = st.fixed_dictionaries({"cpu": AMOUNTS, "memory": AMOUNTS})
SOME_PODS = st.lists(
    st.builds(
        lambda at, priority, request, preemptible: QuotaPod(
            key=str(at), quota="q", priority=priority, request=request, preemptible=preemptible
        ),
        st.integers(0, 10**6),
        st.integers(0, 3),
        LISTS,
        st.booleans(),
    ),
    max_size=8,
    unique_by=lambda one: one.key,
)


@given(SOME_PODS, LISTS)
def test_no_victim_is_one_too_many(pods, short):
    def admitted(freed):
        return all(freed.get(key, 0) >= amount for key, amount in short.items())

    def freed_by(some):
        return {key: sum(one.request[key] for one in some) for key in short}

    victims = quota_victims(pods, admitted)

    assert (victims is not None) == admitted(freed_by(pods))
    for victim in victims or ():
        assert not admitted(freed_by([one for one in victims or () if one is not victim]))
    assert victims is None or admitted(freed_by(victims))


@given(SOME_PODS, LISTS)
def test_revoking_ends_over_use_or_takes_all_it_may(pods, limit):
    used = {key: sum(one.request[key] for one in pods) for key in limit}
    gone = revoked(pods, used, limit)

    assert all(one.preemptible for one in gone)
    left = {key: used[key] - sum(one.request[key] for one in gone) for key in used}
    if over_use(left, limit):
        assert {one.key for one in gone} == {one.key for one in pods if one.preemptible}
