"""What is advised about reservations helps a pod that waits for one."""

import json
from random import Random
from typing import Any

from koord.api.reservation import AFFINITY, EXACT_MATCH
from koord_scheduler_plugins.reservation.serving import ReservationAdvice
from tests.support.scheduler.reservations import World

CASES = 500
WANTED = 0.95  # share of cases in which the advice must help
APPS, TEAMS, TAINTS = ("web", "db"), ("x", "y"), ("k", "l")


async def make(world: World, draw: Random, name: str) -> None:
    app = draw.choice(APPS)
    more: dict[str, Any] = {}
    if draw.random() < 0.5:
        more["allocatePolicy"] = draw.choice(("Aligned", "Restricted"))
    if draw.random() < 0.3:
        more["unschedulable"] = True
    if draw.random() < 0.3:
        taint = {"key": draw.choice(TAINTS), "value": "v", "effect": "NoSchedule"}
        more["taints"] = [taint]
    await world.reservation(
        name,
        str(draw.randint(1, 4)),
        owners=[{"labelSelector": {"matchLabels": {"app": app}}}],
        allocateOnce=draw.random() < 0.2,
        labels={"team": draw.choice(TEAMS)},
        **more,
    )


def affinity(draw: Random) -> str:
    match draw.randrange(4):
        case 0:
            return json.dumps({"name": draw.choice(("r0", "r1", "gone"))})
        case 1:
            return json.dumps({"reservationSelector": {"team": draw.choice((*TEAMS, "z"))}})
        case 2:
            tolerations = [{"key": draw.choice(TAINTS), "operator": "Exists"}]
            return json.dumps({"tolerations": tolerations})
    return "{}"


def apply(world: World, key: str, advice: ReservationAdvice) -> None:
    """Do what is advised: the pod is made anew, the Reservation is changed."""
    item = json.loads(json.dumps(world.api.reservations[advice.reservation]))
    if advice.uncordoned:
        item["spec"]["unschedulable"] = False
    if advice.becomes_owner:
        owner = {"labelSelector": {"matchLabels": dict(advice.pod.labels)}}
        item["spec"]["owners"].append(owner)
    world.api.put(item)
    world.api.delete_pod(key)
    cpu = dict(advice.pod.spec.requests).get("cpu", 0)
    world.api.add_pod("new", cpu=f"{cpu}m", labels=dict(advice.pod.labels))
    world.api.change(key, metadata={"annotations": dict(advice.pod.annotations)})


async def one_case(seed: int) -> bool | None:
    """Whether a pod that waits for a reservation is placed after the advice; None: none waits."""
    draw = Random(seed)
    world = await World().begin(*(draw.randint(4, 8) for _ in range(2)))
    for number in range(draw.randint(1, 4)):
        await make(world, draw, f"r{number}")
    for number in range(draw.randint(0, 5)):
        labels = {"app": draw.choice((*APPS, "other"))}
        world.api.add_pod(f"p{number}", cpu=str(draw.randint(1, 3)), labels=labels)
    await world.settle()
    labels = {"app": draw.choice((*APPS, "other")), "pod": "new"}
    key = world.api.add_pod("new", cpu=str(draw.randint(1, 5)), labels=labels)
    annotations = {AFFINITY: affinity(draw)}
    if draw.random() < 0.15:
        annotations[EXACT_MATCH] = '{"resourceNames":["cpu"]}'
    world.api.change(key, metadata={"annotations": annotations})
    await world.settle()
    placed: bool | None = None
    pod = world.state.pod(key)
    assert pod is not None
    if not pod.node:
        advice = world.plugin.advice(pod)
        assert (advice is None) or str(advice) in list(world.plugin.pending_advice(pod))
        if advice is not None:
            apply(world, key, advice)
            await world.settle()
            await world.advance(10.0)
            placed = world.given(key) == advice.reservation
        elif any(one["status"]["phase"] == "Available" for one in world.api.reservations.values()):
            placed = False
    await world.end()
    return placed


async def test_what_is_advised_helps() -> None:
    """Counted of cases in which a pod waits though reservations are available."""
    found: list[tuple[int, bool]] = []
    seed = 0
    while len(found) < CASES:
        helped = await one_case(seed)
        if helped is not None:
            found.append((seed, helped))
        seed += 1
    failed = [seed for seed, helped in found if not helped]
    assert len(failed) <= (1 - WANTED) * CASES, failed
