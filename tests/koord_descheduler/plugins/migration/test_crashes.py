"""kill -9 at each request of a migration, then another process: no second eviction, nothing left.

Also: evictions that are refused or not answered, a lost lead, two replicas with clocks apart.
"""

import asyncio
from collections.abc import Callable

import pytest

from koord.kube.errors import Unreachable
from koord.kube.transport import Call
from tests.support.descheduler.migration import Json
from tests.support.descheduler.migration_cluster import JOBS, World, ending
from tests.support.kube.object_store import Refused

MODES = ("EvictDirectly", "ReservationFirst")
POD = "uid-default-web-1"
MOST_REQUESTS = 20


def args(mode: str) -> Json:
    return {"default_job_mode": mode, "default_job_ttl": 300.0}


async def requests_of_a_life(world: World, mode: str) -> int:
    """Requests of one process that nobody kills."""
    world.add_pod()
    process = await world.start(**args(mode))
    await process.evict()
    await world.until(lambda: ending(world.job())[0] == "Succeeded")
    return len(process.server.calls)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(MOST_REQUESTS))
@pytest.mark.parametrize("mode", MODES)
async def test_kill_at_a_request(world: World, mode: str, at: int, *, after: bool) -> None:
    """The process dies before the server has its request, or before it has the response."""
    world.add_pod()
    first = await world.start(**args(mode))
    first.server.kill_at, first.server.after = at, after
    task = asyncio.create_task(first.evict())  # it may hang for ever
    for _ in range(60):
        await world.pass_time(0.5)
        if first.server.dead:
            break
    task.cancel()
    await first.kill()
    second = await world.start(**args(mode))
    if not world.jobs():
        assert at == 0
        assert await second.evict()
    await world.until(lambda: ending(world.job())[0] == "Succeeded")

    assert world.evictions[POD] == 1
    assert world.asked[POD] == 1
    assert len(world.jobs()) == 1
    assert len(world.pods()) == 1
    assert len(world.reservations()) == (mode == "ReservationFirst")
    assert dict(second.services.migrations.by_uid) == {}
    await world.until(lambda: not world.jobs() and not world.reservations(), 800)


async def test_every_request_of_a_life_is_a_crash_point(world: World) -> None:
    """The numbers above cover them."""
    assert 5 <= await requests_of_a_life(world, "ReservationFirst") < MOST_REQUESTS


@pytest.mark.parametrize("mode", MODES)
async def test_killed_again_and_again(world: World, mode: str) -> None:
    """At the third request of each process."""
    world.add_pod()
    process = await world.start(**args(mode))
    assert await process.evict()
    for _ in range(60):
        process.server.kill_at, process.server.after = len(process.server.calls) + 2, True
        for _ in range(12):
            await world.pass_time(0.5)
            if process.server.dead:
                break
        if ending(world.job())[0] == "Succeeded":
            break
        await process.kill()
        process = await world.start(**args(mode))

    assert ending(world.job())[0] == "Succeeded"
    assert world.evictions[POD] == 1


def once(answer: Callable[[Call], Json | None], times: int = 1) -> Callable[[Call], Json | None]:
    """Answer the first evictions so."""
    left = [times]

    def script(call: Call) -> Json | None:
        if not call.path.endswith("/eviction") or not left[0]:
            return None
        left[0] -= 1
        return answer(call)

    return script


def refuse(status: int, reason: str, message: str = "") -> Callable[[Call], Json | None]:
    def answer(call: Call) -> Json | None:
        raise Refused(status, reason, message)

    return answer


def unanswered(call: Call) -> Json | None:
    raise Unreachable(f"{call.where}: no answer")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "answer",
    [
        refuse(429, "TooManyRequests", "Cannot evict pod as it would violate the budget"),
        refuse(500, "InternalError"),
        unanswered,
    ],
    ids=["429", "500", "unanswered"],
)
async def test_an_eviction_that_is_refused_for_now(
    world: World, mode: str, answer: Callable[[Call], Json | None]
) -> None:
    """It is tried again after pauses that grow, with a warning on the pod."""
    world.add_pod()
    process = await world.start(**args(mode))
    process.server.script = once(answer, 4)
    await process.evict()
    await world.until(lambda: ending(world.job())[0] == "Succeeded")

    assert world.evictions[POD] == 1
    assert process.events.reasons("Pod")[:1] == ["FailedEvict"]
    errors = {"result": "error", "strategy": "T", "namespace": "default", "node": "n1"}
    assert process.exposition.get_sample_value("descheduler_pods_evicted", errors) == 4
    writes = [one for one in world.writes if one == "PATCH podmigrationjobs status"]
    assert len(writes) <= 5  # refusals are no reason to write


async def test_a_budget_that_never_allows_it(world: World) -> None:
    """The time to live ends the job; the pod stays, its Reservation goes."""
    world.add_pod()
    process = await world.start(**args("ReservationFirst"))
    process.server.script = once(refuse(429, "TooManyRequests", "budget"), 10**6)
    await process.evict()
    await world.until(lambda: ending(world.job()) == ("Failed", "Timeout"), 301)

    assert world.evictions[POD] == 0
    assert world.reservations() == []
    evictions = [call for call in process.server.calls if call.path.endswith("/eviction")]
    assert len(evictions) < 25


@pytest.mark.parametrize("mode", MODES)
async def test_a_pod_that_went_before_it_was_evicted(world: World, mode: str) -> None:
    """404: it is gone, which is what was wanted."""
    world.add_pod()
    process = await world.start(**args(mode))

    def gone(call: Call) -> Json | None:
        world.store.delete("/api/v1/pods", "default/web-1")
        raise Refused(404, "NotFound", 'pods "web-1" not found')

    process.server.script = once(gone)
    await process.evict()
    await world.until(lambda: ending(world.job())[0] == "Succeeded")

    assert world.evictions == {}


@pytest.mark.parametrize("mode", MODES)
async def test_another_pod_of_the_same_name_is_not_evicted(world: World, mode: str) -> None:
    """409: the uid in the request is not its uid."""
    world.add_pod()
    process = await world.start(**args(mode))

    def replaced(call: Call) -> Json | None:
        world.store.delete("/api/v1/pods", "default/web-1")
        world.add_pod(uid="another")
        return None  # the server compares the uid itself

    process.server.script = once(replaced)
    await process.evict()
    await world.pass_time(60)

    assert world.evictions["another"] == 0
    if mode == "EvictDirectly":
        assert ending(world.job())[0] == "Succeeded"


@pytest.mark.parametrize("mode", MODES)
async def test_an_eviction_that_hangs(world: World, mode: str) -> None:
    """Given up after ten seconds; the pod is looked at before the next request."""
    world.add_pod()
    process = await world.start(**args(mode))
    server, whole = process.server, process.server.exchange
    hung: list[Call] = []

    async def exchange(call: Call) -> bytes:
        if call.path.endswith("/eviction") and not hung:
            hung.append(call)
            await whole(call)  # carried out, without a response
            await asyncio.Event().wait()
        return await whole(call)

    server.exchange = exchange  # type: ignore[method-assign]
    await process.evict()
    await world.until(lambda: ending(world.job())[0] == "Succeeded")

    assert (world.asked[POD], world.evictions[POD]) == (1, 1)


@pytest.mark.parametrize("mode", MODES)
async def test_a_lead_that_is_lost(world: World, mode: str) -> None:
    """At any moment of a migration: what was begun is left as it is, and finished by the next."""
    for steps in range(1, 14):
        world.evictions.clear()
        for pod in world.pods():
            world.store.delete("/api/v1/pods", f"default/{pod['metadata']['name']}")
        world.add_pod(uid=f"uid-{steps}")
        first = await world.start(**args(mode))
        await first.evict()
        await world.pass_time(0.5 * steps)
        await first.stop()
        writes = len(world.writes)
        await world.pass_time(5)
        assert len(world.writes) == writes
        second = await world.start(**args(mode))
        await world.until(lambda: all(ending(job)[0] == "Succeeded" for job in world.jobs()))

        assert set(world.evictions.values()) == {1}
        await second.kill()
        for job in world.jobs():
            world.store.delete(JOBS, job["metadata"]["name"])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("off", [-30.0, 30.0])
async def test_two_that_lead_with_clocks_apart(world: World, mode: str, off: float) -> None:
    """Even when both think that they lead: a job's version lets only one of them go on."""
    world.add_pod()
    first = await world.start(**args(mode))
    second = await world.start(**args(mode), clock_off=off)
    await first.evict()
    await world.until(lambda: ending(world.job())[0] == "Succeeded")

    assert world.evictions[POD] == 1
    times = [one["lastTransitionTime"] for one in world.job()["status"]["conditions"]]
    assert all(times)
    assert second.services.migrations.by_uid == first.services.migrations.by_uid == {}


async def test_a_server_that_is_away_for_ten_minutes(world: World) -> None:
    """Nothing is lost but time; jobs whose time is over end."""
    world.add_pod()
    process = await world.start(**args("ReservationFirst"))
    await process.evict()

    def away(call: Call) -> Json | None:
        raise Unreachable(f"{call.where}: no answer")

    process.server.script = away
    await world.pass_time(600)
    process.server.script = lambda call: None
    await world.until(lambda: ending(world.job()) == ("Failed", "Timeout"), 60)

    assert world.evictions == {}


async def test_a_scavenger_goes_on_after_an_error(world: World) -> None:
    """One Reservation that cannot be deleted keeps no other job."""
    world.replicas = 30
    for number in range(1, 4):
        world.add_pod(f"web-{number}")
    process = await world.start(**args("ReservationFirst"), max_migrating_per_workload=9,
                                max_unavailable_per_workload=9)  # fmt: skip
    world.schedules = world.replaces = False
    for number in range(1, 4):
        assert await process.evict(f"web-{number}")
    await world.pass_time(5)
    stuck = world.reservations()[0]["metadata"]["name"]

    def keep(call: Call) -> Json | None:
        if call.method == "DELETE" and call.path.endswith(stuck):
            raise Refused(500, "InternalError")
        return None

    process.server.script = keep
    await world.until(lambda: len(world.jobs()) == 1, 800)
    assert [one["metadata"]["name"] for one in world.reservations()] == [stuck]
    process.server.script = lambda call: None
    await world.until(lambda: not world.jobs() and not world.reservations(), 100)


async def test_a_reservation_whose_job_is_gone_is_removed(world: World) -> None:
    """The job was deleted while nobody was there."""
    world.add_pod()
    first = await world.start(**args("ReservationFirst"))
    world.schedules = False
    await first.evict()
    await world.pass_time(5)
    await first.kill()
    world.store.delete(JOBS, world.job()["metadata"]["name"])
    assert len(world.reservations()) == 1
    await world.start(**args("ReservationFirst"))
    await world.pass_time(70)

    assert world.reservations() == []


async def test_a_job_that_the_server_does_not_take_keeps_no_other(world: World) -> None:
    """A webhook refuses it; the next one passes arbitration all the same."""
    world.replicas = 30
    process = await world.start(**args("EvictDirectly"))
    process.server.script = denied("a-job")
    for pod, job in (("web-1", "z-job"), ("web-2", "a-job")):
        world.add_pod(pod)
        world.add_job(pod, job, mode="EvictDirectly")
    await world.until(lambda: world.evictions == {POD: 1})
    await world.pass_time(10)

    assert ending(world.job_named("z-job"))[0] == "Succeeded"
    assert ending(world.job_named("a-job")) == ("", "")


def denied(name: str) -> Callable[[Call], Json | None]:
    """A webhook that denies changes of a job."""

    def script(call: Call) -> Json | None:
        if call.method == "PATCH" and call.path.endswith(name):
            raise Refused(403, "Forbidden", "admission webhook denied the request")
        return None

    return script
