"""The order in which waiting jobs are judged."""

import random

from koord_descheduler_plugins.migration.controller import WaitingJob, arbitration_order
from tests.support.descheduler.migration import T0, make_job, make_pod

BATCH = {"koordinator.sh/priority-class": "koord-batch", "koordinator.sh/qosClass": "BE"}


def names(jobs: list[WaitingJob]) -> list[str]:
    return [one.job.name for one in jobs]


def test_the_example_of_the_specification() -> None:
    """J1 prod, J2 batch and newer than J4's pod, J3 without a pod, J4 of a Job with 2 migrating."""
    waiting = [
        WaitingJob(make_job("J1", created=T0), make_pod("a")),
        WaitingJob(
            make_job("J2", created=T0 + 60),
            make_pod("b", labels=BATCH, created="2026-07-24T06:30:00Z"),
        ),
        WaitingJob(make_job("J3", created=T0 + 120), None),
        WaitingJob(
            make_job("J4", created=T0 + 180),
            make_pod("d", labels=BATCH, owner="X", owner_kind="Job"),
        ),
    ]

    assert names(arbitration_order(waiting, {"uid-X": 2}.__getitem__)) == ["J4", "J3", "J2", "J1"]
    assert names(arbitration_order(waiting, lambda uid: 0)) == ["J3", "J2", "J4", "J1"]


def test_pods_of_one_batch_job_are_judged_together() -> None:
    """Next to the first one of them, whatever their own order says."""
    waiting = [
        WaitingJob(make_job("a"), make_pod("a", priority=1, owner="X", owner_kind="Job")),
        WaitingJob(make_job("b"), make_pod("b", priority=2)),
        WaitingJob(make_job("c"), make_pod("c", priority=3, owner="X", owner_kind="Job")),
        WaitingJob(make_job("d"), make_pod("d", priority=4, owner="Y", owner_kind="Job")),
    ]

    assert names(arbitration_order(waiting, lambda uid: 0)) == ["a", "c", "b", "d"]


def test_the_order_does_not_depend_on_the_order_of_arrival() -> None:
    """Equal pods are judged by age of their jobs, then by name."""
    waiting = [
        WaitingJob(make_job(f"j{number}", created=T0 + number // 2), make_pod(f"p{number}"))
        for number in range(8)
    ]
    wanted = names(arbitration_order(waiting, lambda uid: 0))
    random.Random(1).shuffle(waiting)

    assert names(arbitration_order(waiting, lambda uid: 0)) == wanted
    assert wanted[0] == "j6"
