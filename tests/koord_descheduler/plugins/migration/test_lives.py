"""Whole lives of migrations: the specification's, with the writes that each of them needs."""

import asyncio
import json

import pytest

from koord.kube.transport import Call
from koord_descheduler_plugins.migration.args import EvictionPolicy
from tests.support.descheduler.migration import Json
from tests.support.descheduler.migration_cluster import (
    JOBS,
    PODS,
    RESERVATIONS,
    Process,
    World,
    ending,
)
from tests.support.kube.object_store import Refused

DIRECT: Json = {"default_job_mode": "EvictDirectly"}
FIRST: Json = {"default_job_mode": "ReservationFirst"}


def conditions(job: Json) -> dict[str, tuple[str, str]]:
    found = job.get("status", {}).get("conditions", ())
    return {one["type"]: (one["status"], one.get("reason", "")) for one in found}


async def test_life_1_evict_directly(world: World) -> None:
    """Created, passed, intention, eviction, complete: five requests that write."""
    world.add_pod()
    process = await world.start(**DIRECT)
    assert await process.evict()
    await world.until(lambda: ending(world.job())[0] == "Succeeded")

    assert world.writes == [
        "POST podmigrationjobs",
        "PATCH podmigrationjobs",
        "PATCH podmigrationjobs status",
        "POST pods eviction",
        "PATCH podmigrationjobs status",
    ]
    job = world.job()
    assert conditions(job) == {"Eviction": ("True", "EvictComplete")}
    assert job["metadata"]["annotations"] == {
        "koordinator.sh/evict-reason": "hot",
        "koordinator.sh/evict-trigger": "T",
        "koordinator.sh/job-created-by": "koordinator-system/koord-descheduler",
        "descheduler.koordinator.sh/profile": "p",
        "descheduler.koordinator.sh/passed-arbitration": "true",
    }
    assert (job["status"]["status"], job["status"]["message"]) == (
        "Complete",
        'Pod "default/web-1" has been evicted',
    )
    assert world.evictions == {"uid-default-web-1": 1}
    assert process.events.reasons("PodMigrationJob") == ["Evicting", "EvictComplete", "Complete"]
    assert process.events.reasons("Pod") == process.events.reasons("Node") == ["Descheduled"]


async def test_life_2_reservation_first(world: World) -> None:
    """Nine requests that write, when everything takes its time."""
    world.add_pod()
    process = await world.start(**FIRST)
    world.schedules = False
    assert await process.evict()
    await world.pass_time(10)

    assert conditions(world.job()) == {"ReservationCreated": ("True", "")}
    world.schedules, world.replaces, world.gets_ready = True, False, False
    await world.until(lambda: "PodBoundReservation" in conditions(world.job()))
    assert conditions(world.job())["PodBoundReservation"] == ("False", "WaitForPodBindReservation")
    world.replaces = True
    await world.until(lambda: "BoundPodReady" in conditions(world.job()))
    world.gets_ready = True
    await world.until(lambda: ending(world.job())[0] == "Succeeded")

    job = world.job()
    assert world.writes == [
        "POST podmigrationjobs",
        "PATCH podmigrationjobs",  # passed arbitration; name of the Reservation
        "POST reservations",
        "PATCH podmigrationjobs status",  # Running, ReservationCreated
        "PATCH podmigrationjobs status",  # ReservationScheduled, intention to evict
        "POST pods eviction",
        "PATCH podmigrationjobs status",  # EvictComplete, WaitForPodBindReservation
        "PATCH podmigrationjobs status",  # ReservationBound, WaitForBoundPodReady
        "PATCH podmigrationjobs status",  # Complete
    ]
    assert conditions(job) == {
        "ReservationCreated": ("True", ""),
        "ReservationScheduled": ("True", ""),
        "Eviction": ("True", "EvictComplete"),
        "PodBoundReservation": ("True", ""),
        "ReservationBound": ("True", ""),
        "BoundPodReady": ("True", ""),
    }
    (pod,) = world.pods()
    assert job["status"]["nodeName"] == pod["spec"]["nodeName"] == "n2"
    assert job["status"]["podRef"]["uid"] == pod["metadata"]["uid"]
    assert job["spec"]["reservationOptions"]["reservationRef"]["name"] == job["metadata"]["uid"]
    assert process.events.reasons("PodMigrationJob") == [
        "ReservationCreated", "ReservationScheduled", "Evicting", "EvictComplete",
        "WaitForPodBindReservation", "ReservationBound", "WaitForBoundPodReady",
        "PodBoundReservation", "BoundPodReady", "Complete",
    ]  # fmt: skip


async def test_a_quick_scheduler_costs_fewer_writes(world: World) -> None:
    """What became true between two looks is one write."""
    world.add_pod()
    process = await world.start(**FIRST)
    await process.evict()
    await world.until(lambda: ending(world.job())[0] == "Succeeded")

    assert len(world.writes) <= 9


async def test_life_3_a_reservation_that_never_fits(world: World) -> None:
    """The scheduler's message is shown once; Timeout after the time to live, then scavenged."""
    world.add_pod()
    process = await world.start(**FIRST)
    world.schedules = False
    await process.evict()
    await world.pass_time(2)
    (reservation,) = world.reservations()
    unfit = {"type": "Scheduled", "status": "False", "reason": "Unschedulable", "message": "0/3"}
    world.store.replace(RESERVATIONS, {**reservation, "status": {"conditions": [unfit]}})
    await world.pass_time(20)

    assert world.job()["status"]["message"] == "0/3"
    writes = len(world.writes)
    await world.pass_time(270)
    assert len(world.writes) == writes
    await world.until(lambda: ending(world.job()) == ("Failed", "Timeout"), 20)
    assert world.reservations() == []
    assert world.evictions == {}
    await world.until(lambda: world.jobs() == [], 400)


async def test_life_4_a_pod_that_is_gone(world: World) -> None:
    """One write; nothing passes arbitration first."""
    process = await world.start(**DIRECT)
    world.add_job()
    await world.until(lambda: ending(world.job()) == ("Failed", "MissingPod"))

    assert world.writes == ["PATCH podmigrationjobs status"]
    assert process.events.reasons("PodMigrationJob") == ["MissingPod"]


async def test_life_5_a_quota_per_node(world: World) -> None:
    """Two pass, the third waits; when one has ended its turn comes."""
    world.replicas = 30
    world.replaces = world.gets_ready = False
    for number in range(1, 4):
        world.add_pod(f"web-{number}")
        world.add_job(f"web-{number}", f"job-{number}")
    world.schedules = False
    await world.start(**FIRST, max_migrating_per_node=2, max_migrating_per_workload=9,
                      max_unavailable_per_workload=9)  # fmt: skip
    await world.pass_time(30)

    begun = [job for job in world.jobs() if ending(job)[0] == "Running"]
    assert len(begun) == 2
    world.store.delete(JOBS, begun[0]["metadata"]["name"])
    await world.pass_time(5)
    assert [ending(job)[0] for job in world.jobs()] == ["Running", "Running"]
    assert len(world.reservations()) == 2  # that of the deleted job is gone


async def test_life_5_a_waiting_job_times_out(world: World) -> None:
    """By its time to live, not only by the scavenger."""
    world.replicas, world.schedules = 30, False
    for number in (1, 2):
        world.add_pod(f"web-{number}")
    process = await world.start(**FIRST, max_migrating_per_workload=9, max_migrating_globally=1)
    await process.evict("web-1")
    world.add_job("web-2", ttl="5m0s")
    await world.until(lambda: world.job_named("mine")["status"].get("reason") == "Timeout", 400)

    assert world.evictions == {}


async def test_life_6_a_pod_that_is_leaving_already(world: World) -> None:
    """Forbidden, in the specification's words."""
    world.add_pod(deleting=True)
    world.add_job()
    await world.start(**DIRECT)
    await world.until(lambda: ending(world.job())[0] == "Failed")

    assert world.job()["status"] == {
        "phase": "Failed",
        "reason": "ForbiddenMigratePod",
        "message": 'Pod "default/web-1" is forbidden to migrate because it does not meet the '
        "requirements",
    }


async def test_life_7_a_restart(world: World) -> None:
    """The next process finishes what this one has begun."""
    world.add_pod()
    first = await world.start(**FIRST)
    world.schedules = False
    await first.evict()
    await world.pass_time(5)
    await first.kill()
    world.schedules = True
    second = await world.start(**FIRST)
    await world.until(lambda: ending(world.job())[0] == "Succeeded")

    assert world.evictions == {"uid-default-web-1": 1}
    assert second.services.migrations.by_uid == {}


async def test_a_job_of_another_descheduler_is_left_alone_but_counts(world: World) -> None:
    """Until it is scavenged; as in Koordinator."""
    world.replicas = 30
    world.add_pod()
    world.add_pod("web-9")
    world.add_job("web-9", annotations={"koordinator.sh/job-created-by": "5f1d0a1e"})
    process = await world.start(**DIRECT, max_migrating_globally=1)

    assert not await process.evict()
    assert "maxMigratingGlobally" in process.plugins[0].reject_reason(
        process.cluster.pod("default/web-1")
    )
    await world.pass_time(20)
    assert ending(world.job()) == ("", "")
    await world.until(lambda: world.jobs() == [], 2000)
    assert await process.evict()


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Aborted"])
async def test_a_job_that_has_ended_is_not_arbitrated_again(world: World, phase: str) -> None:
    """In Koordinator a restart can turn a success into a failure."""
    world.add_pod()
    world.add_job(status={"phase": phase})
    await world.start(**DIRECT)
    await world.pass_time(30)

    assert world.writes == []


async def test_a_paused_job_waits(world: World) -> None:
    """Until a user lets it go on; the newest version counts, not the first one seen."""
    world.add_pod()
    world.add_job(paused=True)
    await world.start(**DIRECT)
    await world.pass_time(30)
    assert world.writes == []

    spec = {**world.job()["spec"], "paused": False}
    world.store.replace(JOBS, {**world.job(), "spec": spec})
    await world.until(lambda: ending(world.job())[0] == "Succeeded")


async def test_a_waiting_job_that_is_deleted_is_forgotten(world: World) -> None:
    """Nobody asks for it any more."""
    world.replicas = 30
    for number in (1, 2):
        world.add_pod(f"web-{number}")
    process = await world.start(**DIRECT, max_migrating_globally=1, max_migrating_per_workload=9)
    world.schedules = world.replaces = False
    await process.evict("web-1")
    await world.pass_time(1)
    world.add_job("web-2")
    await world.pass_time(1)
    world.store.delete(JOBS, "mine")
    await world.pass_time(60)

    assert "uid-default-web-2" not in world.asked


async def test_a_missing_reservation_is_reported(world: World) -> None:
    """Koordinator asks for it until the time to live is over."""
    world.add_pod()
    process = await world.start(**FIRST)
    world.schedules = False
    await process.evict()
    await world.pass_time(5)
    world.store.delete(RESERVATIONS, world.reservations()[0]["metadata"]["name"])
    await world.until(lambda: ending(world.job()) == ("Failed", "MissingReservation"), 10)


async def test_a_bound_pod_that_is_gone_before_it_was_ready_is_no_success(world: World) -> None:
    """It counts as ready in Koordinator."""
    world.add_pod()
    process = await world.start(**FIRST)
    world.gets_ready = False
    await process.evict()
    await world.until(lambda: "BoundPodReady" in conditions(world.job()))
    world.replaces = False
    world.store.delete(PODS, f"default/{world.pods()[0]['metadata']['name']}")
    await world.until(lambda: ending(world.job()) == ("Failed", "MissingPod"))


async def test_migrations_are_known_to_planners(world: World) -> None:
    """Node, and target once it is reserved, until the job has ended."""
    world.add_pod()
    process = await world.start(**FIRST)
    migrations = process.services.migrations.by_uid
    world.schedules = False
    await process.evict()
    (found,) = migrations.values()
    assert (found.pod, found.node, found.target) == ("default/web-1", "n1", "")

    world.schedules = True
    await world.until(lambda: bool(world.evictions))
    assert migrations["uid-default-web-1"].target == "n2"
    await world.until(lambda: ending(world.job())[0] == "Succeeded")
    assert migrations == {}


@pytest.mark.parametrize(
    ("label", "args", "wanted"),
    [
        ({}, {"eviction_policy": "Delete"}, "DELETE pods"),
        ({"koordinator.sh/evict-policy": "Delete"}, {}, "DELETE pods"),
        ({"koordinator.sh/evict-policy": "nonsense"}, {}, "POST pods eviction"),
        ({}, {"eviction_policy": "SoftEviction"}, "PATCH pods"),
    ],
)
async def test_the_ways_in_which_pods_leave(
    world: World, label: dict[str, str], args: Json, wanted: str
) -> None:
    """The default, or what the pod's label says."""
    args = {key: EvictionPolicy(text) for key, text in args.items()}
    world.add_pod(labels=label)
    process = await world.start(**DIRECT, **args)
    await process.evict()
    await world.pass_time(20)

    assert [one for one in world.writes if "pods" in one] == [wanted]
    assert process.exposition.get_sample_value(
        "descheduler_pods_evicted",
        {"result": "success", "strategy": "T", "namespace": "default", "node": "n1"},
    ) == 1  # fmt: skip


async def test_a_soft_eviction_is_asked_for_once(world: World) -> None:
    """The pod goes when another agent has acted on the annotation, also after a restart."""
    world.add_pod()
    soft = {**DIRECT, "eviction_policy": EvictionPolicy.SOFT_EVICTION}
    first = await world.start(**soft)
    await first.evict()
    await world.pass_time(10)
    await first.kill()
    await world.start(**soft)
    await world.pass_time(10)

    assert world.writes.count("PATCH pods") == 1
    (pod,) = world.pods()
    text = json.loads(pod["metadata"]["annotations"]["scheduling.koordinator.sh/soft-eviction"])
    assert (text["initiator"], text["reason"]) == ("T", "hot")
    world.store.delete(PODS, "default/web-1")
    await world.until(lambda: ending(world.job())[0] == "Succeeded")


async def test_two_profiles_share_one_controller(world: World) -> None:
    """Each job follows the rules of its profile; quotas count both."""
    world.replicas = 30
    for number in (1, 2):
        world.add_pod(f"web-{number}")
    process = await world.start(profiles=("a", "b"), **DIRECT, max_migrating_globally=1)

    assert await process.evict("web-1", plugin=0)
    assert not await process.evict("web-2", plugin=1)
    assert world.job()["metadata"]["annotations"]["descheduler.koordinator.sh/profile"] == "a"


async def test_a_profile_that_is_rebuilt(world: World) -> None:
    """Jobs go on under the new rules; closing the old plugin does not take them away."""
    world.add_pod()
    process = await world.start(**FIRST)
    world.schedules = False
    await process.evict()
    process.plugin(**DIRECT)
    await process.plugins[0].close()
    world.schedules = True
    await world.until(lambda: ending(world.job())[0] == "Succeeded")


async def test_nothing_is_created_before_all_jobs_are_known(world: World) -> None:
    """Quotas would count too few."""
    world.add_pod()
    process = Process(world, **DIRECT)
    process.feed()

    assert process.plugins[0].filter(process.cluster.pod("default/web-1"))
    assert not await process.evict()
    assert world.jobs() == []


async def test_dry_run_makes_no_job(world: World) -> None:
    """It is logged, and reported as done."""
    world.add_pod()
    process = await world.start(**DIRECT, dry_run=True)

    assert await process.evict()
    assert world.writes == []


async def test_many_evictions_at_once_stay_within_the_quota(world: World) -> None:
    """Check and creation are one step, and a job counts before the watch shows it."""
    world.replicas = 100
    for number in range(1, 11):
        world.add_pod(f"web-{number}")
    process = await world.start(**DIRECT, max_migrating_globally=3, max_migrating_per_workload=50,
                                max_unavailable_per_workload=50)  # fmt: skip
    found = await asyncio.gather(*(process.evict(f"web-{number}") for number in range(1, 11)))

    assert sum(found) == len(world.jobs()) == 3


async def test_a_pod_that_has_no_node_is_not_evicted(world: World) -> None:
    """Its Reservation is for itself; the job is complete when it is bound."""
    world.schedules = False
    world.add_pod(node="")
    await world.start(**FIRST)
    world.add_job()
    await world.pass_time(5)
    (reservation,) = world.reservations()
    assert reservation["spec"]["owners"] == [
        {"object": {"kind": "Pod", "namespace": "default", "name": "web-1",
                    "uid": "uid-default-web-1"}}
    ]  # fmt: skip
    world.schedules = True
    await world.until(lambda: ending(world.job())[0] == "Succeeded")

    assert world.evictions == {}
    assert world.pods()[0]["spec"]["nodeName"] == "n2"


async def test_a_bare_pod_is_refused_at_once(world: World) -> None:
    """Koordinator makes a Reservation that the server refuses until the time to live is over."""
    world.replaces = False
    world.add_pod(owner="")
    await world.start(**FIRST, evict_all_bare_pods=True)
    world.add_job()
    await world.until(lambda: ending(world.job()) == ("Failed", "ForbiddenMigratePod"), 5)

    assert "POST reservations" not in world.writes


@pytest.mark.parametrize(("status", "waits"), [(404, 1), (403, 30)])
async def test_where_jobs_cannot_be_listed_none_is_made_but_cycles_begin(
    world: World, status: int, waits: float
) -> None:
    """A dry-run in a cluster without Koordinator works; it may be installed later."""
    world.add_pod()
    process = Process(world, **DIRECT)
    world.processes.append(process)
    missing = True

    def absent(call: Call) -> Json | None:
        if missing and call.path in (JOBS, RESERVATIONS):
            raise Refused(status, "NotFound" if status == 404 else "Forbidden")
        return None

    process.server.script = absent
    process.start()
    ready = asyncio.create_task(process.control.wait_ready())
    await world.pass_time(waits - 1)
    assert not ready.done()
    await world.pass_time(1.5)
    assert ready.done()
    assert ("deploy/descheduler/crds" in process.control.health().reason) == (status == 404)
    assert not await process.evict()
    missing = False
    await world.pass_time(65)
    assert process.control.health().status.value == "ok"
    assert await process.evict()
