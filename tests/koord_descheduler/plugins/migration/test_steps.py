"""The next step of a migration, from what is known: the specification's states as a table."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from koord.api.podmigrationjob import JobPod, PodMigrationJob
from koord_descheduler_plugins.migration.reconciler import (
    CreateReservation,
    DeleteReservation,
    Evict,
    LabelReservation,
    ObservedState,
    Step,
    WriteStatus,
    next_step,
)
from tests.support.descheduler.migration import (
    T0,
    ConditionType,
    JobReason,
    make_job,
    make_pod,
    make_reservation,
    placed,
)

DIRECT = make_job()
FIRST = make_job(mode="ReservationFirst", reservation="uid-job")
POD = make_pod()
NEW = make_pod("web-2", node="n2")
OWNER = JobPod("default", "web-2", "uid-default-web-2")


def evicting(job: PodMigrationJob, *, done: bool = False) -> PodMigrationJob:
    reason = JobReason.EVICT_COMPLETE if done else JobReason.EVICTING
    return job.noting(ConditionType.EVICTION, T0, holds=done, reason=reason)


def step(job: PodMigrationJob, now: float = T0, **seen: Any) -> Step:
    return next_step(job, ObservedState(**seen), now, "ReservationFirst")


def written(found: Step) -> PodMigrationJob:
    return next(action.job for action in found.actions if isinstance(action, WriteStatus))


def kinds(found: Step) -> list[type]:
    return [type(action) for action in found.actions]


def test_evict_directly_records_the_intention_before_the_eviction() -> None:
    """A crash in between leaves a job that says what was about to happen."""
    found = step(replace(DIRECT, evict_reason="hot"), pod=POD)

    assert kinds(found) == [WriteStatus, Evict]
    job = written(found)
    assert (job.phase, job.status, job.reason) == ("Running", "Eviction", "Evicting")
    assert job.message == 'Pod "default/web-1" evicted from node "n1" by the reason "hot"'
    assert not job.holds(ConditionType.EVICTION)
    assert found.pause == 3


@pytest.mark.parametrize(
    ("job", "reason"),
    [({"evict_reason": "hot", "trigger": "T"}, "hot"), ({"trigger": "T"}, "T"), ({}, "NotSet")],
)
def test_the_reason_of_an_eviction(job: dict[str, str], reason: str) -> None:
    """Its own, else the plugin, else NotSet."""
    assert f'by the reason "{reason}"' in written(step(replace(DIRECT, **job), pod=POD)).message


def test_evict_directly_is_complete_when_the_pod_is_gone() -> None:
    """Both conditions in one write."""
    job = written(step(evicting(DIRECT)))

    assert (job.phase, job.status, job.reason) == ("Succeeded", "Complete", "")
    assert job.message == 'Pod "default/web-1" has been evicted'
    assert job.holds(ConditionType.EVICTION)


@pytest.mark.parametrize(
    ("job", "seen"),
    [
        (evicting(DIRECT), {"pod": make_pod(deleting=True)}),
        (evicting(DIRECT), {"pod": POD, "asked": True}),
    ],
)
def test_a_pod_that_is_leaving_is_not_evicted_again(
    job: PodMigrationJob, seen: dict[str, Any]
) -> None:
    """It is waited for, without a write."""
    found = step(replace(job, phase="Running"), **seen)

    assert (found.actions, found.pause) == ((), 3)


def test_an_intention_without_an_eviction_is_carried_out() -> None:
    """The process that wrote it down has ended before it could ask."""
    assert kinds(step(written(step(DIRECT, pod=POD)), pod=POD)) == [Evict]


def test_limiters_delay_evictions_but_not_forced_ones() -> None:
    """Three seconds at most, then they are asked again."""
    assert step(DIRECT, pod=POD, limited=150.0).pause == 3
    assert step(DIRECT, pod=POD, limited=0.1).pause == pytest.approx(0.1)
    assert Evict not in kinds(step(DIRECT, pod=POD, limited=150.0))
    assert Evict in kinds(step(replace(DIRECT, forced=True), pod=POD, limited=150.0))


CREATED = FIRST.noting(ConditionType.RESERVATION_CREATED, T0, holds=True)
SCHEDULED = replace(
    CREATED.noting(ConditionType.RESERVATION_SCHEDULED, T0, holds=True), node="n2", phase="Running"
)
BOUND = replace(evicting(SCHEDULED, done=True), new_pod=OWNER)


@pytest.mark.parametrize(
    ("job", "seen", "reason"),
    [
        (make_job(pod=""), {}, "InvalidPodRef"),
        (DIRECT, {}, "MissingPod"),
        (replace(DIRECT, passed=False), {}, "MissingPod"),
        (DIRECT, {"pod": make_pod(phase="Succeeded")}, "MissingPod"),
        (FIRST, {}, "MissingPod"),
        (FIRST, {"pod": make_pod(owner="")}, "ForbiddenMigratePod"),
        (CREATED, {"pod": POD}, "MissingReservation"),
        (evicting(CREATED), {"pod": POD}, "MissingReservation"),
        (replace(FIRST, reservation="a-user's"), {"pod": POD}, "MissingReservation"),
        (FIRST, {"pod": POD, "reservation": placed(FIRST, node="n1")}, "ForbiddenMigratePod"),
        (
            FIRST,
            {
                "pod": POD,
                "reservation": make_reservation(FIRST, phase="Failed", expired_by_condition=True),
            },
            "ReservationExpired",
        ),
        (
            FIRST,
            {"pod": POD, "reservation": make_reservation(FIRST, phase="Failed")},
            "Unschedulable",
        ),
        (
            SCHEDULED,
            {"pod": POD, "reservation": placed(FIRST, phase="Succeeded", owner=OWNER)},
            "ForbiddenMigratePod",
        ),
        (
            evicting(SCHEDULED, done=True),
            {"reservation": placed(FIRST, phase="Failed")},
            "ReservationExpired",
        ),
        (BOUND, {"reservation": placed(FIRST, phase="Succeeded", owner=OWNER)}, "MissingPod"),
        (BOUND, {}, "MissingPod"),
    ],
)
def test_ends_without_success(job: PodMigrationJob, seen: dict[str, Any], reason: str) -> None:
    """Each with its reason, and with the job's Reservation deleted before that is written."""
    found = step(job, **seen)

    assert (written(found).phase, written(found).reason) == ("Failed", reason)
    deleted = [DeleteReservation] if "reservation" in seen else []
    assert kinds(found) == [*deleted, WriteStatus]


@pytest.mark.parametrize("job", [DIRECT, FIRST, replace(FIRST, passed=False), BOUND])
def test_time_to_live(job: PodMigrationJob) -> None:
    """From the creation on, whatever the job waits for; without one there is no end."""
    job = replace(job, ttl=300.0)
    reservation = placed(job, owner=OWNER) if job.reservation else None
    seen = {"pod": POD, "reservation": reservation, "new_pod": NEW}
    found = step(job, now=T0 + 300, **seen)

    assert (written(found).reason, written(found).message) == (
        "Timeout",
        "Abort job caused by timeout",
    )
    assert (DeleteReservation in kinds(found)) == bool(job.reservation)
    endless = step(replace(job, ttl=0.0), now=T0 + 10**9, **seen)
    assert not [action for action in endless.actions if action in found.actions]


def test_a_job_is_looked_at_when_its_time_is_over() -> None:
    """Even one that waits for the arbitrator, and nothing else changes."""
    waiting = replace(FIRST, passed=False, ttl=300.0)

    assert step(waiting, now=T0 + 100, pod=POD) == Step((), 200)
    assert step(replace(waiting, ttl=0.0), pod=POD) == Step((), None)


@pytest.mark.parametrize(
    "job",
    [replace(DIRECT, paused=True), *(replace(DIRECT, phase=p) for p in ("Failed", "Aborted"))],
)
def test_what_is_left_alone(job: PodMigrationJob) -> None:
    """Paused jobs, and those that have ended."""
    assert step(job, now=T0 + 10**6, pod=POD) == Step()


def test_a_reservation_is_created_under_the_name_that_the_job_has() -> None:
    """Nothing is written before: the name is in the job already."""
    assert kinds(step(FIRST, pod=POD)) == [CreateReservation]


@pytest.mark.parametrize(
    ("reservation", "condition"),
    [
        ({}, "ReservationCreated"),
        ({"unschedulable": "0/3 nodes"}, "ReservationScheduled"),
    ],
)
def test_a_reservation_without_a_node_is_waited_for(
    reservation: dict[str, Any], condition: str
) -> None:
    """With the scheduler's message, once."""
    pending = make_reservation(FIRST, **reservation)
    found = step(FIRST, pod=POD, reservation=pending)
    job = written(found)

    assert (job.phase, job.status, found.pause) == ("Running", condition, 3)
    assert job.message == reservation.get("unschedulable", "")
    assert step(job, now=T0 + 3, pod=POD, reservation=pending) == Step((), 3)


def test_a_reservation_with_a_node_lets_the_eviction_begin() -> None:
    """All that has become true meanwhile goes into one write."""
    found = step(FIRST, pod=POD, reservation=placed(FIRST))
    job = written(found)

    assert kinds(found) == [WriteStatus, Evict]
    assert job.node == "n2"
    assert [one.type for one in job.conditions] == [
        "ReservationCreated", "ReservationScheduled", "Eviction"
    ]  # fmt: skip


def test_a_reservation_of_a_user_gets_its_order() -> None:
    """The scheduler prefers the lowest."""
    found = step(FIRST, pod=POD, reservation=placed(FIRST, ordered=False))

    assert kinds(found) == [LabelReservation, WriteStatus, Evict]


def ended(**rest: Any) -> Callable[[], Step]:
    return lambda: step(evicting(SCHEDULED), **rest)


@pytest.mark.parametrize(
    ("seen", "phase", "status", "reason"),
    [
        ({"reservation": placed(FIRST)}, "Running", "PodBoundReservation",
         "WaitForPodBindReservation"),
        ({"reservation": placed(FIRST, owner=OWNER), "new_pod": make_pod("web-2", ready=False)},
         "Running", "BoundPodReady", "WaitForBoundPodReady"),
        ({"reservation": placed(FIRST, owner=OWNER, phase="Succeeded"), "new_pod": NEW},
         "Succeeded", "Complete", ""),
        ({"reservation": placed(FIRST, owner=OWNER, phase="Succeeded"),
          "new_pod": make_pod("web-2", ready=False, phase="Succeeded")},
         "Succeeded", "Complete", ""),
    ],
)  # fmt: skip
def test_after_the_eviction(seen: dict[str, Any], phase: str, status: str, reason: str) -> None:
    """Bound, ready, complete; each look writes at most once."""
    job = written(step(evicting(SCHEDULED), **seen))

    assert (job.phase, job.status, job.reason) == (phase, status, reason)
    if phase == "Succeeded":
        assert job.message == 'Bind Pod "default/web-2" in Reservation "uid-job"'
        assert job.new_pod == OWNER
        assert job.holds(ConditionType.POD_BOUND_RESERVATION)


def test_a_reservation_may_end_once_its_pod_is_known() -> None:
    """The scheduler removes one that is used up."""
    job = written(step(BOUND, new_pod=NEW))

    assert (job.phase, job.reason) == ("Succeeded", "")


@pytest.mark.parametrize(
    ("pod", "owner", "phase", "reason"),
    [
        (make_pod(node=""), None, "Running", ""),
        (make_pod(node=""), OWNER, "Failed", "ForbiddenMigratePod"),
        (make_pod(node="n2"), None, "Succeeded", ""),
    ],
)
def test_a_pod_that_had_no_node(pod: Any, owner: JobPod | None, phase: str, reason: str) -> None:
    """Its Reservation is for itself: it is not evicted, but bound."""
    itself = JobPod("default", "web-1", "uid-default-web-1")
    found = step(FIRST, pod=pod, reservation=placed(FIRST, for_pod=itself, owner=owner))

    assert Evict not in kinds(found)
    assert (written(found).phase, written(found).reason) == (phase, reason)


def test_an_unset_mode_is_the_default() -> None:
    """As the profile of the job has it."""
    job = replace(FIRST, mode="")

    assert kinds(next_step(job, ObservedState(pod=POD), T0, "ReservationFirst")) == [
        CreateReservation
    ]
    assert kinds(next_step(job, ObservedState(pod=POD), T0, "EvictDirectly")) == [
        WriteStatus,
        Evict,
    ]


def test_a_clock_that_is_behind() -> None:
    """A job may seem to come from the future: the time that it has is not over."""
    assert kinds(step(replace(DIRECT, ttl=300.0), now=T0 - 30, pod=POD)) == [WriteStatus, Evict]
