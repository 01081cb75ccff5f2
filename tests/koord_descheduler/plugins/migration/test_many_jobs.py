"""10^5 jobs: those that have ended cost memory only, those that wait a bounded share of time."""

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

from koord.api.podmigrationjob import PodMigrationJob, read_job
from koord_descheduler_plugins.migration.jobs import JobTable
from koord_descheduler_plugins.migration.rules import QuotaLimits, Quotas
from tests.support.descheduler.migration import make_cluster, make_job, make_pod
from tests.support.descheduler.migration_cluster import World, ending

MANY = 100_000


class Unwalkable(dict[str, PodMigrationJob]):
    """Cannot be walked through."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all jobs are walked through")

    def values(self) -> Any:
        return iter(self)


async def test_jobs_that_have_ended_are_never_looked_at(world: World) -> None:
    """The list comes in pages; then only the one that waits is worked on."""
    for number in range(2000):
        world.add_job(f"old-{number}", f"job-{number}", status={"phase": "Succeeded"})
    world.add_pod()
    process = await world.start(default_job_mode="EvictDirectly")
    await world.clock.until(lambda: process.control.records.synced)  # a thread reads the list
    assert await process.evict()
    await world.until(lambda: world.evictions.total() == 1)
    await world.pass_time(10)
    live = [job for job in world.jobs() if job["metadata"]["name"].count("-") == 4]

    assert [ending(job)[0] for job in live] == ["Succeeded"]
    assert len(process.server.calls) == 7  # five that write, two looks at the pod
    assert process.exposition.get_sample_value(
        "descheduler_migration_jobs", {"phase": "Succeeded"}
    ) == 2001  # fmt: skip


def test_the_memory_of_a_job_that_has_ended() -> None:
    """About a kilobyte, however much its conditions say."""
    item = {
        "metadata": {"name": "j", "uid": "u", "annotations": {"koordinator.sh/evict-reason": "x"}},
        "spec": {"podRef": {"namespace": "default", "name": "web"}},
        "status": {
            "phase": "Failed",
            "conditions": [{"type": str(number), "message": "m" * 500} for number in range(10)],
        },
    }
    job = read_job(item)

    assert not hasattr(job, "__dict__")
    assert sys.getsizeof(job) < 400
    assert (job.conditions, job.evict_reason, job.message) == ((), "", "")


def test_quotas_do_not_walk_through_all_jobs() -> None:
    """Each of 10^5 pods is asked about in a cycle."""
    jobs, cluster = JobTable(), make_cluster(make_pod("web-1"), replicas=10)
    for number in range(MANY):
        jobs.put(make_job(f"j{number}", phase="Failed", pod=f"p{number}"))
    for number in range(100):
        jobs.put(make_job(f"a{number}", pod=f"a{number}", namespace=f"ns{number}"))
    quotas = Quotas(QuotaLimits(globally=200, per_node=2, per_namespace=2), jobs, cluster)
    jobs._active, jobs._jobs = Unwalkable(jobs._active), Unwalkable(jobs._jobs)

    assert quotas.exceeded(make_pod("web-1"), arbitrating=False) == ""
    assert len(jobs) == MANY + 100


async def test_arbitration_lets_others_run(world: World) -> None:
    """With thousands of jobs that wait, the loop is never held for all of them."""
    world.replicas = 10_000
    world.replaces = False
    for number in range(3000):
        world.add_job(f"web-{number}", f"job-{number:05}")
    for number in range(50):
        world.add_pod(f"web-{number}", node="n1")
    process = await world.start(default_job_mode="EvictDirectly", max_migrating_globally=1)
    await world.clock.until(lambda: process.control.records.synced)
    turns = 0

    async def count_meanwhile() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    arbitrator = process.control._arbitrator
    task = asyncio.create_task(count_meanwhile())
    await arbitrator.round()
    task.cancel()

    assert turns >= 2 * len(process.control.records.jobs.waiting) / 50
