"""Reclaiming: a quota below its min takes back what others use of it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.elasticquota import PREEMPTIBLE, ROOT_QUOTA, ElasticQuota
from koord.api.podgroup import LIGHTWEIGHT_MIN_LABEL, LIGHTWEIGHT_NAME_LABEL
from koord_scheduler_plugins.elastic_quota.preemption import QuotaPod
from koord_scheduler_plugins.elastic_quota.reclaim import Excess
from koord_scheduler_plugins.elastic_quota.runtime import RuntimeOptions, Sums, compute
from koord_scheduler_plugins.elastic_quota.tree import build_trees
from tests.koord_scheduler.plugins.elastic_quota.test_elastic_quota import World


async def full(*, low: str = "2", b_min: str = "2", **args: Any) -> World:
    """Two nodes that b fills; a may have low of them. args: of the plugin."""
    world = await World().begin(2, 2, **{"enable_reclaim": True, **args})
    world.quota("a", "4", low)
    world.quota("b", "4", b_min)
    for at in range(4):
        world.add(f"b{at}", "b", bound=f"n{at // 2}", priority=9 - at)
    await world.settle()
    return world


async def test_a_quota_below_its_min_takes_back_what_it_has_lent():
    """Whatever the priority; who leaves is not admitted again, and nobody beyond min comes."""
    world = await full()
    world.add("a0", "a", priority=1)
    await world.settle()
    assert world.leaving == ["b3"]
    world.api.delete_pod("default/b3")
    world.add("again", "b", priority=1)
    await world.settle()
    await world.advance(15.0)
    assert world.bound == ["a0"]
    assert "Insufficient quotas, quotaName: b" in world.message("again")
    world.add("a1", "a", cpu="2")
    await world.settle()
    assert world.leaving == []
    await world.end()


@pytest.mark.parametrize(
    "case", ["off", "no guarantee", "guarantee of the other", "never", "not preemptible"]
)
async def test_nobody_leaves_where_nothing_is_to_be_taken_back(case):
    world = await full(
        enable_reclaim=case != "off",
        low="0" if case == "no guarantee" else "2",
        b_min="4" if case == "guarantee of the other" else "2",
        enable_min_quota_scale=False,
    )
    if case == "not preemptible":
        for at in range(4):
            world.api.delete_pod(f"default/b{at}")
        for at in range(4):
            world.add(f"f{at}", "b", bound=f"n{at // 2}", labels={PREEMPTIBLE: "false"})
    policy = {"preemptionPolicy": "Never"} if case == "never" else {}
    world.add("a0", "a", priority=9, **policy)
    await world.settle()
    assert (world.bound, world.leaving) == ([], [])
    await world.end()


async def test_the_quota_that_has_most_of_its_share_gives_first():
    world = await World().begin(3, 3, enable_reclaim=True)
    for name, low in (("a", "2"), ("b", "1"), ("c", "1")):
        world.quota(name, "6", low)
    for at in range(2):
        world.add(f"b{at}", "b", bound="n0", priority=1)
    for at in range(4):
        world.add(f"c{at}", "c", bound=f"n{int(at > 0)}", priority=5)
    await world.settle()
    world.add("a0", "a")
    await world.settle()
    (gone,) = world.leaving
    assert gone.startswith("c")
    await world.end()


async def test_a_gang_keeps_its_minimum_or_leaves_as_a_whole():
    """One of three members beyond two can leave; then both of the others together, or nobody."""
    world = await World().begin(4, enable_reclaim=True)
    world.quota("a", "4", "4")
    world.quota("b", "4", "0")
    labels = {LIGHTWEIGHT_NAME_LABEL: "g", LIGHTWEIGHT_MIN_LABEL: "2"}
    for at in range(3):
        world.add(f"g{at}", "b", bound="n0", labels=labels)
    world.add("b0", "b", bound="n0", priority=9)
    await world.settle()
    world.add("a0", "a")
    await world.settle()
    assert len(world.leaving) == 1
    (gone,) = world.leaving
    assert gone != "b0"
    world.api.delete_pod(f"default/{gone}")
    await world.advance(15.0)
    assert world.bound == ["a0"]
    world.add("a1", "a", cpu="3")
    await world.settle()
    assert world.leaving == sorted({"b0", "g0", "g1", "g2"} - {gone})
    await world.end()


@pytest.mark.parametrize("gate", ["", "ElasticQuotaImmediateIgnoreTerminatingPod"])
async def test_a_pod_that_leaves_already_is_taken_off_once(gate: str):
    """Also where it does not count in its quota any more."""
    world = World()
    world.services = replace(world.services, gates=gate.__eq__)
    await world.begin(4, 2, enable_reclaim=True)
    world.quota("a", "6", "3")
    world.quota("b", "6", "2")
    world.add("a0", "a", bound="n0")
    for at in range(5):
        world.add(f"b{at}", "b", bound=f"n{int(at > 2)}", priority=at)
    world.api.change("default/b4", metadata={"deletionTimestamp": "2026-07-24T06:52:45Z"})
    await world.settle()
    for name in ("a1", "a2"):
        world.add(name, "a")
    await world.settle()
    assert world.leaving == ["b0", "b4"]
    await world.end()


@given(
    st.lists(st.integers(0, 6), min_size=3, max_size=3),
    st.lists(st.tuples(st.sampled_from("bc"), st.integers(1, 4)), max_size=8),
)
def test_no_quota_falls_below_its_min_nor_gives_what_it_may_use(mins, pods):
    quotas = {
        name: ElasticQuota(
            name=name, parent=ROOT_QUOTA, min={"cpu": low}, max={"cpu": 20}, weight={"cpu": 1}
        )
        for name, low in zip("abc", mins, strict=True)
    }
    used = {name: {"cpu": sum(n for of, n in pods if of == name)} for name in "bc"}
    requested = {**used, "a": {"cpu": 6}}
    state = compute(
        build_trees(quotas)[""],
        Sums(requested=requested, used=used),
        {"cpu": 12},
        RuntimeOptions(scale_min=True),
    )
    excess = Excess(state, "a")
    left = {name: dict(amounts) for name, amounts in used.items()}
    for at, (name, amount) in enumerate(pods):
        before = left[name]["cpu"]
        if excess.take([QuotaPod(key=f"p{at}", quota=name, request={"cpu": amount})]):
            left[name]["cpu"] -= amount
            assert before > state.limit(name)["cpu"]
            assert left[name]["cpu"] >= state.scaled_min(name).get("cpu", 0)
    for name in "bc":
        assert excess.is_over(name) == (left[name]["cpu"] > state.limit(name)["cpu"])
