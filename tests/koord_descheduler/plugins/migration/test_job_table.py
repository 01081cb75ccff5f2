"""The table of jobs: counts and indexes hold whatever comes in whatever order."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from koord.api.podmigrationjob import JobPod, PodMigrationJob
from koord_descheduler_plugins.migration.jobs import JobTable, has_begun
from tests.support.descheduler.migration import make_job, make_pod


def versioned(job: PodMigrationJob, version: int, **changes: object) -> PodMigrationJob:
    return replace(job, version=str(version), **changes)  # type: ignore[arg-type]


def test_a_job_counts_before_the_watch_shows_it() -> None:
    """By uid of its pod, by its name, in its namespace; and not twice when the watch comes."""
    table, job = JobTable(), make_job(passed=False)
    table.put(job, written_at=10.0)

    assert table.has(make_pod("web-1"), begun=False)
    assert not table.has(make_pod("web-1"), begun=True)
    assert table.unseen(11.0) == [job]

    table.put(job)

    assert table.unseen(11.0) == []
    assert (table.count(begun=False), table.count(begun=True)) == (1, 0)


def test_an_older_version_does_not_come_back() -> None:
    """The watch lags behind the responses to our own writes."""
    table, job = JobTable(), make_job(passed=False)
    table.put(versioned(job, 9))
    table.put(versioned(job, 10, passed=True))

    assert not table.put(versioned(job, 9))
    assert list(table.waiting) == []
    assert table.count(begun=True) == 1


def test_a_deleted_job_does_not_come_back() -> None:
    """The answer to its creation may come after the watch has shown its end."""
    table, job = JobTable(), make_job()
    table.remove(job.name, job.uid)

    assert not table.put(job, written_at=1.0)
    assert len(table) == 0


def test_a_pod_of_the_same_name_has_the_job_as_well() -> None:
    """As in Koordinator: by uid, or by namespace and name."""
    table = JobTable()
    table.put(make_job())

    assert table.has(make_pod("web-1", uid="another"), begun=False)
    assert not table.has(make_pod("web-2"), begun=False)


def test_finished_jobs_wait_for_nothing() -> None:
    """Of 10^5 jobs that have ended none is looked at again."""
    table = JobTable()
    for number in range(100):
        table.put(make_job(f"j{number}", passed=False, phase="Failed"))

    assert len(table) == 100
    assert (dict(table.active), dict(table.waiting)) == ({}, {})


def any_job(number: int, version: int, phase: str, passed: bool, pod: int) -> PodMigrationJob:
    name, namespace = f"p{pod}", f"ns{pod % 2}"
    job = make_job(f"j{number}", passed=passed, phase=phase, pod=name, namespace=namespace)
    return versioned(job, version)


JOBS = st.builds(
    any_job,
    st.integers(0, 4),
    st.integers(1, 6),
    st.sampled_from(["", "Pending", "Running", "Succeeded", "Failed"]),
    st.booleans(),
    st.integers(0, 3),
)


@given(st.lists(st.one_of(JOBS, st.integers(0, 4))))
def test_indexes_say_what_a_look_at_all_jobs_says(changes: list[PodMigrationJob | int]) -> None:
    """Whatever comes: versions in any order, deletions, jobs whose pod is another one now."""
    table = JobTable()
    for change in changes:
        if isinstance(change, int):
            table.remove(f"j{change}", "")
        else:
            table.put(change)
    active = [job for job in table.jobs.values() if job.active]

    assert set(table.active) == {job.name for job in active}
    assert table.count(begun=False) == len(active)
    assert table.count(begun=True) == sum(map(has_begun, active))
    assert set(table.waiting) == {job.name for job in active if not has_begun(job)}
    for number in range(4):
        pod = JobPod(f"ns{number % 2}", f"p{number}", f"uid-ns{number % 2}-p{number}")
        wanted = {job.name for job in active if job.pod == pod}
        assert {job.name for job in table.of_pod(pod.uid, pod.key)} == wanted
    for namespace in ("ns0", "ns1"):
        wanted = {job.name for job in active if job.pod.namespace == namespace}
        assert {job.name for job in table.of_namespace(namespace)} == wanted
        assert table.count(begun=False, namespace=namespace) == len(wanted)
