"""The order in which waiting jobs are judged: those first whose pods are the cheapest to move.

Source: Koordinator, pkg/descheduler/controllers/migration/arbitrator/sort.go.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from koord.api.podmigrationjob import PodMigrationJob
from koord_descheduler.plugin import ClusterPod, OrderKey, controller_of, eviction_order

_BATCH_JOB = "Job"


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job that has not passed arbitration, and its pod; None: it is gone."""

    job: PodMigrationJob
    pod: ClusterPod | None


def arbitration_order(
    waiting: Iterable[WaitingJob], migrating: Callable[[str], int]
) -> list[WaitingJob]:
    """Return jobs in the order in which they are judged.

    migrating returns how many pods of a batch Job, by its uid, are on their way. Four stable
    sorts, of which the last one decides first: newest job, order of pods (none first), pods of one
    batch Job together, Jobs with most pods on their way.
    """
    by_age = sorted(waiting, key=lambda one: (-int(one.job.created), one.job.name))
    by_pod = sorted(by_age, key=_pod_order)
    together = _together(by_pod)
    counts = {uid: migrating(uid) for one in together if (uid := _batch_job(one))}
    return sorted(together, key=lambda one: -counts.get(_batch_job(one), 0))


def _pod_order(one: WaitingJob) -> tuple[bool, OrderKey]:
    return (False, ()) if one.pod is None else (True, eviction_order(one.pod))


def _together(jobs: list[WaitingJob]) -> list[WaitingJob]:
    """Move pods of a batch Job next to the first one of it."""
    groups: dict[object, list[WaitingJob]] = {}
    for one in jobs:
        groups.setdefault(_batch_job(one) or id(one), []).append(one)
    return [one for group in groups.values() for one in group]


def _batch_job(one: WaitingJob) -> str:
    """The uid of the batch Job that controls the pod; "": none does."""
    owner = None if one.pod is None else controller_of(one.pod.owners)
    return owner.uid if owner is not None and owner.kind == _BATCH_JOB else ""
