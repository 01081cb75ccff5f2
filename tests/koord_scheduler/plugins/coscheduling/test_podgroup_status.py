"""The status of PodGroups (worked examples 41 to 47 of the specification)."""

import asyncio
from typing import Any

import pytest

from koord.api.podgroup import read_pod_group
from koord.controlplane.testing import api_error_response
from koord.util.health import HealthStatus
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop
from koord_scheduler_plugins.coscheduling.serving import (
    POD_GROUPS,
    MemberCounts,
    PodGroupStatuses,
    count_members,
    next_phase,
    status_patch,
)
from tests.support.clusters import finished, pod, read_pod


def group(phase: str, minimum: int = 2, **status: Any) -> Any:
    meta = {"namespace": "default", "name": "g", "uid": "u"}
    spec, status = {"minMember": minimum}, {"phase": phase, **status}
    return read_pod_group({"metadata": meta, "spec": spec, "status": status})


@pytest.mark.parametrize(
    ("phase", "minimum", "counts", "wanted"),
    [
        ("Scheduled", 2, MemberCounts(2, 2, running=2), "Running"),  # 41
        ("Running", 2, MemberCounts(2, 2, failed=2), "Failed"),  # 42
        ("Running", 2, MemberCounts(2, 2, succeeded=2), "Finished"),  # 43
        ("Pending", 3, MemberCounts(2), "Pending"),  # 44
        ("Running", 2, MemberCounts(), "Pending"),  # 45
        ("Scheduling", 4, MemberCounts(4, 4, running=4), "Running"),  # 46
        ("Pending", 0, MemberCounts(), "Pending"),  # 47
        ("", 2, MemberCounts(2), "Pending"),
        ("Pending", 2, MemberCounts(2), "PreScheduling"),
        ("PreScheduling", 2, MemberCounts(2, 1), "Scheduling"),
        ("Scheduling", 2, MemberCounts(2, 2), "Scheduled"),
        ("Finished", 2, MemberCounts(), "Finished"),
        ("Failed", 2, MemberCounts(2, 2, running=2), "Failed"),
    ],
)
def test_the_phase_follows_from_the_pods(phase, minimum, counts, wanted):
    assert next_phase(phase, minimum, counts) == wanted


def test_finished_pods_count_and_assumed_ones_do_not():
    """A job that has ended is Finished; upstream does not see its pods any more (21.3)."""
    pods = [
        read_pod(finished(pod("done", "n"))),
        read_pod(pod("runs", "n")),
        read_pod({**pod("assumed", "n"), "status": {"phase": "Pending"}}),
    ]
    counts = count_members(pods, lambda uid: uid == "uid-default-assumed")
    assert counts == MemberCounts(3, 2, running=1, succeeded=1)


def test_only_what_has_changed_is_written():
    found = group("Scheduling", scheduled=1, scheduleStartTime="2026-01-01T00:00:00Z")
    assert status_patch(found, MemberCounts(2, 1), "", 0.0) == {}
    assert status_patch(found, MemberCounts(2, 2), "", 0.0) == {
        "phase": "Scheduled",
        "scheduled": 2,
    }
    begun = status_patch(group("PreScheduling"), MemberCounts(2), "", 1767225600.0)
    assert begun == {"phase": "Scheduling", "scheduleStartTime": "2026-01-01T00:00:00Z"}
    owned = status_patch(group("Pending"), MemberCounts(2), "default/job", 0.0)
    assert owned == {"phase": "PreScheduling", "occupiedBy": "default/job"}


class Api:
    """An API server that takes patches, or answers with an error."""

    def __init__(self) -> None:
        self.patches: list[Any] = []
        self.code = 0

    async def merge_patch(self, path: str, body: Any) -> Any:
        self.patches.append((path, body))
        if self.code:
            call: Any = type("Call", (), {"where": f"PATCH {path}"})()
            raise api_error_response(call, self.code, "Forbidden", "no")
        return {}


async def test_statuses_are_written_one_by_one_and_errors_are_said():
    clock, api = SimulatedClock(), Api()
    stop, patch = Stop(clock), {"phase": "Pending"}
    statuses = PodGroupStatuses(
        api,  # type: ignore[arg-type]
        POD_GROUPS,
        lambda: ["default/g"],
        lambda key: (group(""), patch) if key == "default/g" else None,
    )

    running = asyncio.create_task(statuses.run(stop))
    await clock.settle()
    path = "/apis/scheduling.sigs.k8s.io/v1alpha1/namespaces/default/podgroups/g"
    assert api.patches == [(path, {"metadata": {"uid": "u"}, "status": patch})]
    statuses.note("default/gone")
    await clock.advance(1.0)
    assert len(api.patches) == 1
    api.code = 403
    statuses.note("default/g")
    await clock.advance(1.0)
    assert statuses.health().status is HealthStatus.DEGRADED
    api.code = 0
    await clock.advance(11.0)
    assert len(api.patches) == 3
    assert statuses.health().status is HealthStatus.OK
    stop.set()
    await clock.settle()
    assert running.done()
