"""Migrations while everything goes wrong: whatever happens, no pod is evicted twice, nothing leaks.

Each seed is one story: requests that fail before or after they were carried out, processes that are
killed or lose the lead, two at a time, jobs and Reservations that vanish, agents that sleep.
"""

import random

import pytest

from koord.kube.errors import Unreachable
from koord.kube.transport import Call
from tests.support.descheduler.migration import Json
from tests.support.descheduler.migration_cluster import JOBS, RESERVATIONS, Process, World
from tests.support.kube.object_store import Refused

ROUNDS = 40
PODS_OF_A_STORY = 6


class Weather:
    """Answers of a server that is not well."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self.bad = 0.0  # share of requests that fail

    def __call__(self, call: Call) -> Json | None:
        if self._draw.random() >= self.bad:
            return None
        kind = self._draw.randrange(4)
        if kind == 0:
            raise Unreachable(f"{call.where}: no answer")
        if kind == 1:
            raise Refused(500, "InternalError")
        if kind == 2:
            raise Refused(429, "TooManyRequests")
        raise Refused(409, "Conflict", "the object has been modified")


async def begin(world: World, mode: str, weather: Weather) -> Process:
    process = await world.start(
        default_job_mode=mode, max_migrating_per_workload=9, max_unavailable_per_workload=9
    )
    process.server.script = weather
    return process


@pytest.mark.parametrize("seed", range(24))
async def test_a_story(world: World, seed: int) -> None:
    """Then the weather clears up: every job ends, and in the end nothing is left."""
    draw = random.Random(seed)
    mode = draw.choice(["EvictDirectly", "ReservationFirst"])
    weather = Weather(draw)
    world.replicas = PODS_OF_A_STORY
    for number in range(PODS_OF_A_STORY):
        world.add_pod(f"web-{number}", node=f"n{number % 3 + 1}")
    process = await begin(world, mode, weather)
    for number in range(PODS_OF_A_STORY):
        world.add_job(f"web-{number}", f"job-{number}", mode=mode, ttl="3m")
    for _ in range(ROUNDS):
        match draw.randrange(10):
            case 0:
                await process.kill()
                process = await begin(world, mode, weather)
            case 1:
                await process.stop()
                process = await begin(world, mode, weather)
            case 2 if len(world.processes) < 2:
                await begin(world, mode, weather)  # which thinks that it leads as well
            case 3:
                server = process.server
                server.kill_at = len(server.calls) + draw.randrange(4)
                server.after = draw.random() < 0.5
            case 4:
                weather.bad = draw.choice([0.0, 0.2, 0.6])
            case 5:
                world.schedules, world.gets_ready = draw.random() < 0.7, draw.random() < 0.7
            case 6 if world.jobs():
                world.store.delete(JOBS, draw.choice(world.jobs())["metadata"]["name"])
            case 7 if world.reservations():
                gone = draw.choice(world.reservations())["metadata"]["name"]
                world.store.delete(RESERVATIONS, gone)
        await world.pass_time(draw.choice([0.5, 1.5, 4.0]))
        if process.server.dead:
            await process.kill()
            process = await begin(world, mode, weather)

        assert set(world.evictions.values()) <= {1}
    weather.bad = 0.0
    world.schedules = world.gets_ready = True
    for each in list(world.processes):
        if each.server.dead:
            await each.kill()
    if not world.processes:
        process = await begin(world, mode, weather)
    await world.until(
        lambda: all(
            (job.get("status") or {}).get("phase") in ("Succeeded", "Failed")
            for job in world.jobs()
        ),
        400,
    )

    assert set(world.evictions.values()) <= {1}
    assert set(world.evictions) <= {f"uid-default-web-{n}" for n in range(PODS_OF_A_STORY)}
    await world.until(lambda: not world.jobs() and not world.reservations(), 1200)
    alive = [one for one in world.processes if not one.server.dead]
    assert all(not one.services.migrations.by_uid for one in alive)
