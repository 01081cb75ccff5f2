"""Why a pod waits for its quota, and that what is advised helps."""

import re
from random import Random
from typing import Any

import pytest

from koord.api.elasticquota import ElasticQuota, quantity_text
from koord.api.podgroup import LIGHTWEIGHT_MIN_LABEL, LIGHTWEIGHT_NAME_LABEL
from koord_scheduler.planning.report import Running, explanation
from koord_scheduler_plugins.elastic_quota.advice import QuotaAdvice
from koord_scheduler_plugins.elastic_quota.tracker import QUOTAS
from tests.koord_scheduler.plugins.elastic_quota.test_elastic_quota import World

CASES = 500
REJECTED = "Insufficient (non-preemptible )?quotas"
WANTED = 0.95  # share of cases in which the advice must help


async def sentences(world: World, name: str) -> list[str]:
    found: Any = await explanation(
        Running(world.scheduler, world.state), f"default/{name}", is_leader=True
    )
    sentences: list[str] = found["decision"]["advice"]
    return sentences


async def test_an_explanation_names_quota_level_and_the_smallest_change():
    world = await World().begin(8)
    world.quota("dept", "6")
    world.quota("team", "2", parent="dept")
    world.add("p", "team", cpu="2")
    world.add("q", "team")
    await world.settle()
    assert await sentences(world, "q") == [
        "quota team (level 2 of 2) lacks 1 cpu: it may use 2, its max, and uses 2; 1 more is "
        "requested",
        "quota team would have room with spec.max.cpu of quota team: 3 instead of 2",
    ]
    await world.end()


async def test_a_guarantee_helps_where_others_have_borrowed():
    world = await World().begin(4)
    world.quota("a", "4")
    world.quota("b", "4")
    for name in ("a1", "a2", "a3", "a4"):
        world.add(name, "a")
    await world.settle()
    world.add("b1", "b", cpu="3")
    await world.settle()
    assert await sentences(world, "b1") == [
        "quota b (level 1 of 1) lacks 1 cpu: it may use 2, its share of what its parent has, and "
        "uses 0; 3 more is requested",
        "quota b would have room with spec.min.cpu of quota b: 3 instead of 0",
        "quota b has room for at most cpu:2 now",
        "besides, no node has cpu:3 free",
    ]
    await world.end()


@pytest.mark.parametrize("case", ["parent", "non-preemptible", "nodes", "missing parent"])
async def test_what_else_may_be_missing(case):
    parents = {"enable_check_parent_quota": True, "enable_runtime_quota": False}
    world = await World().begin(4, **(parents if case == "parent" else {}))
    labels = {"quota.scheduling.koordinator.sh/preemptible": "false"}
    if case == "parent":
        world.quota("top", "1")
        world.quota("a", "3", parent="top")
        world.add("p", "a", cpu="2")
        wanted = "quota top (level 1 of 2) lacks 1 cpu", "spec.max.cpu of quota top: 2 instead"
    elif case == "non-preemptible":
        world.quota("a", "3", "1")
        world.add("p", "a", cpu="2", labels=labels)
        wanted = "lacks 1 cpu of its min", "spec.min.cpu of quota a: 2 instead of 1"
    elif case == "nodes":
        world.quota("a", "9", "9")
        world.add("p", "a", cpu="5")
        wanted = "lacks 1 cpu: it may use 4", "nodes with cpu:5 more"
    else:
        world.quota("a", "3", parent="nobody")
        world.add("p", "a")
        wanted = "quota a may use nothing: a has parentName nobody", "parent of quota a: koordin"
    await world.settle()
    assert world.bound == []
    found = await sentences(world, "p")
    assert [any(text in one for one in found) for text in wanted] == [True, True], found
    await world.end()


async def test_of_a_gang_the_advice_is_about_all_its_pods():
    world = await World().begin(8, gangs=True)
    world.quota("a", "2")
    labels = {LIGHTWEIGHT_NAME_LABEL: "g", LIGHTWEIGHT_MIN_LABEL: "3"}
    for name in "xyz":
        world.add(name, "a", labels=labels)
    await world.settle()
    (waiting,) = [name for name in "xyz" if await sentences(world, name)]
    assert any(
        "spec.max.cpu of quota a: 3 instead of 2" in one for one in await sentences(world, waiting)
    )
    await world.end()


def random_quotas(draw: Random) -> list[dict[str, Any]]:
    """A tree of up to three levels."""
    found: list[dict[str, Any]] = []
    for at in range(draw.randint(1, 7)):
        parents = [one["name"] for one in found if one["level"] < 3]
        parent = draw.choice(["", *parents])
        level = 1 + next((one["level"] for one in found if one["name"] == parent), 0)
        high = draw.randint(0, 12)
        found.append(
            {
                "name": f"q{at}",
                "parent": parent,
                "level": level,
                "high": high,
                "low": draw.choice([0, 0, draw.randint(0, max(high, 1))]),
                "lends": draw.random() < 0.8,
            }
        )
    return found


def apply(world: World, advice: QuotaAdvice) -> None:
    """Do what is advised: change the objects, and add a node."""
    for name, quota in advice.objects.items():
        before: Any = world.services.informers.informer(QUOTAS).objects[f"quotas/{name}"]
        world.services.informers.apply(QUOTAS, changed(before, quota))
    if advice.nodes:
        world.api.add_node("more", cpu=quantity_text("cpu", advice.nodes["cpu"]))


def changed(before: dict[str, Any], quota: ElasticQuota) -> dict[str, Any]:
    labels = {
        **before["metadata"]["labels"],
        "quota.scheduling.koordinator.sh/parent": quota.parent,
    }
    spec = {
        "min": {key: quantity_text(key, amount) for key, amount in quota.min.items()},
        "max": {key: quantity_text(key, amount) for key, amount in quota.max.items()},
    }
    return {"metadata": {**before["metadata"], "labels": labels}, "spec": spec}


async def one_case(seed: int) -> bool | None:
    """Whether a pod that its quota rejects is placed after the advice; None: none is rejected."""
    draw = Random(seed)
    options = {
        "enable_check_parent_quota": draw.random() < 0.3,
        "enable_runtime_quota": draw.random() < 0.8,
        "enable_min_quota_scale": draw.random() < 0.7,
    }
    world = await World().begin(*(draw.randint(4, 12) for _ in range(2)), **options)
    quotas = random_quotas(draw)
    for one in quotas:
        world.quota(
            one["name"], str(one["high"]), str(one["low"]), parent=one["parent"], lends=one["lends"]
        )
    for number in range(draw.randint(0, 8)):
        name = draw.choice(quotas)["name"]
        world.add(f"p{number}", name, cpu=str(draw.randint(1, 3)))
    await world.settle()
    labels = {"quota.scheduling.koordinator.sh/preemptible": "false"} if draw.random() < 0.2 else {}
    key = world.add("new", draw.choice(quotas)["name"], cpu=str(draw.randint(1, 4)), labels=labels)
    await world.settle()
    pod = world.state.pod(key)
    placed: bool | None = None
    texts = [text for name, _, text in world.events if name == "new"]
    if pod is not None and not pod.node and any(re.search(REJECTED, text) for text in texts):
        advice = world.plugin.advice(pod)
        found = await sentences(world, "new")
        if advice is not None:
            apply(world, advice)
        if any("besides, no node has" in one for one in found):
            world.api.add_node("room", cpu="100")
        await world.settle()
        await world.advance(10.0)
        placed = "new" in world.bound
    await world.end()
    return placed


@pytest.mark.parametrize("part", range(5))
async def test_the_advice_places_the_pod(part):
    """Random trees, pods and options, until so many pods were rejected by their quota."""
    tried = placed = 0
    failed = []
    seed = part * 1_000_000
    while tried < CASES // 5:
        found = await one_case(seed)
        if found is not None:
            tried += 1
            placed += found
            if not found:
                failed.append(seed)
        seed += 1
    assert placed >= WANTED * tried, (placed, tried, failed[:10])
