"""PodMigrationJob and Reservation on the wire."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.podmigrationjob import (
    ConditionType,
    JobCondition,
    JobPhase,
    JobPod,
    JobReason,
    begin_patch,
    new_job,
    read_job,
    status_patch,
)
from koord.api.reservation import read_reservation
from koord.util.errors import InvalidObject

NOW = 1_784_876_000.0  # 2026-07-24T06:53:20Z
EXAMPLE: dict[str, Any] = {
    "apiVersion": "scheduling.koordinator.sh/v1alpha1",
    "kind": "PodMigrationJob",
    "metadata": {
        "name": "2f0c9b0e",
        "uid": "0b1a2c3d",
        "resourceVersion": "41",
        "creationTimestamp": "2026-07-24T06:53:00Z",
        "labels": {"koordinator.sh/evict-policy": "Delete"},
        "annotations": {
            "koordinator.sh/evict-reason": "node is overutilized",
            "koordinator.sh/evict-trigger": "LowNodeLoad",
            "koordinator.sh/job-created-by": "us",
            "descheduler.koordinator.sh/passed-arbitration": "true",
        },
    },
    "spec": {
        "mode": "ReservationFirst",
        "ttl": "5m0s",
        "podRef": {"namespace": "default", "name": "web-7d9f", "uid": "7712555c"},
        "reservationOptions": {"reservationRef": {"name": "0b1a2c3d", "uid": "9d5e6f70"}},
    },
    "status": {
        "phase": "Running",
        "status": "ReservationScheduled",
        "nodeName": "worker-11",
        "conditions": [
            {"type": "ReservationCreated", "status": "True", "lastProbeTime": None,
             "lastTransitionTime": "2026-07-24T06:53:01Z"},
            {"type": "ReservationScheduled", "status": "True", "lastProbeTime": None,
             "lastTransitionTime": "2026-07-24T06:53:04Z"},
        ],
    },
}  # fmt: skip


def test_the_example_of_the_specification() -> None:
    """Every field that counts."""
    job = read_job(EXAMPLE)

    assert (job.name, job.uid, job.version, job.created) == (
        "2f0c9b0e", "0b1a2c3d", "41", NOW - 20,
    )  # fmt: skip
    assert (job.evict_reason, job.trigger, job.created_by, job.passed, job.policy) == (
        "node is overutilized", "LowNodeLoad", "us", True, "Delete",
    )  # fmt: skip
    assert (job.mode, job.ttl, job.pod) == (
        "ReservationFirst", 300.0, JobPod("default", "web-7d9f", "7712555c"),
    )  # fmt: skip
    assert (job.reservation, job.node, job.active, job.running) == (
        "0b1a2c3d", "worker-11", True, True,
    )  # fmt: skip
    assert job.holds(ConditionType.RESERVATION_SCHEDULED)
    assert not job.holds(ConditionType.EVICTION)


def test_of_a_job_that_has_ended_little_is_kept() -> None:
    """A cluster may have 10^5 of them."""
    ended = read_job({**EXAMPLE, "status": {**EXAMPLE["status"], "phase": "Succeeded"}})

    assert (ended.name, ended.ttl, ended.reservation) == ("2f0c9b0e", 300.0, "0b1a2c3d")
    assert (ended.conditions, ended.evict_reason) == ((), "")
    assert not ended.active


def test_the_condition_rule() -> None:
    """The time of the change stays while the status does; nothing new is no change."""
    job = read_job(EXAMPLE)
    kind = ConditionType.RESERVATION_SCHEDULED

    assert job.noting(kind, NOW, holds=True) is job
    again = job.noting(kind, NOW, holds=True, message="more")
    assert again.conditions[1].changed == "2026-07-24T06:53:04Z"
    other = again.noting(kind, NOW, holds=False, reason=JobReason.UNSCHEDULABLE, message="0/3")
    assert other.conditions[1] == JobCondition(
        "ReservationScheduled", "False", "Unschedulable", "0/3", "", "2026-07-24T06:53:20Z"
    )
    assert (other.status, other.reason, other.message) == (kind, "Unschedulable", "0/3")
    assert job.noting(ConditionType.EVICTION, NOW, holds=False).conditions[:2] == job.conditions


def apply(item: dict[str, Any], operations: list[dict[str, Any]]) -> dict[str, Any]:
    """A JSON patch as an API server applies it."""
    result = json.loads(json.dumps(item))
    for one in operations:
        *parents, last = [part.replace("~1", "/") for part in one["path"].split("/")[1:]]
        holder = result
        for name in parents:
            holder = holder[name]
        match one["op"]:
            case "test":
                assert holder[last] == one["value"]
            case "remove":
                del holder[last]
            case "add":
                holder[last] = one["value"]
    return result


@pytest.mark.parametrize("before", [EXAMPLE, {k: v for k, v in EXAMPLE.items() if k != "status"}])
def test_a_status_patch_leads_to_the_new_status(before: dict[str, Any]) -> None:
    """Also where there is no status yet; what others have written there stays."""
    before = json.loads(json.dumps(before))
    if "status" in before:
        before["status"]["preemptedPodsRef"] = [{"name": "x"}]
    old = read_job(before)
    new = replace(
        old.noting(ConditionType.EVICTION, NOW, holds=False, reason=JobReason.EVICTING),
        phase=JobPhase.RUNNING.value,
        node="worker-12",
        new_pod=JobPod("default", "web-2", "9"),
    )
    after = apply(before, status_patch(old, new))

    assert read_job(after) == replace(new, parents=read_job(after).parents)
    assert after["status"].get("preemptedPodsRef") == before.get("status", {}).get(
        "preemptedPodsRef"
    )
    assert status_patch(new, new) == []


def test_a_status_patch_clears_what_is_empty() -> None:
    """The reason of the last condition does not outlive it."""
    old = replace(read_job(EXAMPLE), reason="Evicting", message="m")
    item = {**EXAMPLE, "status": {**EXAMPLE["status"], "reason": "Evicting", "message": "m"}}
    done = replace(old, phase="Succeeded", status="Complete", reason="", message="done")

    status = apply(item, status_patch(old, done))["status"]
    assert "reason" not in status
    assert (status["phase"], status["status"], status["message"]) == (
        "Succeeded", "Complete", "done",
    )  # fmt: skip


def test_a_new_job_that_passes_arbitration() -> None:
    """One patch: the annotation, the uid of the pod, the name of the Reservation."""
    body = new_job(
        "j", JobPod("default", "web", ""), mode="ReservationFirst", ttl=90.0,
        annotations={"koordinator.sh/evict-trigger": "T", "koordinator.sh/evict-reason": ""},
        delete_options={"gracePeriodSeconds": 5},
    )  # fmt: skip
    assert body["spec"] == {
        "mode": "ReservationFirst", "ttl": "1m30s", "deleteOptions": {"gracePeriodSeconds": 5},
        "podRef": {"namespace": "default", "name": "web", "uid": ""},
    }  # fmt: skip
    assert body["metadata"]["annotations"] == {"koordinator.sh/evict-trigger": "T"}  # type: ignore[index]
    assert "status" not in body
    stored = {**body, "metadata": {"name": "j", "uid": "u", "resourceVersion": "1"}}
    passed = read_job(apply(stored, begin_patch(read_job(stored), "uid-web", "u")))

    assert (passed.passed, passed.pod.uid, passed.reservation) == (True, "uid-web", "u")


@pytest.mark.parametrize(
    "broken",
    [
        {"metadata": {"name": ""}},
        {"metadata": {"name": "j", "annotations": {"koordinator.sh/evict-reason": 1}}},
        {"metadata": {"name": "j"}, "spec": {"ttl": "soon"}},
        {"metadata": {"name": "j"}, "spec": {"podRef": []}},
        {"metadata": {"name": "j"}, "status": {"conditions": {}}},
        {"metadata": {"name": "j", "creationTimestamp": "yesterday"}},
    ],
)
def test_a_malformed_job_is_refused_by_the_field(broken: dict[str, Any]) -> None:
    """It is left as it was known last."""
    with pytest.raises(InvalidObject, match="podMigrationJob"):
        read_job(broken)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
PARTS = st.dictionaries(
    st.sampled_from(["phase", "ttl", "podRef", "conditions", "reservationOptions", "template",
                     "currentOwners", "owners", "nodeName", "annotations", "name"]), JSON,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), PARTS | JSON) | JSON)
def test_whatever_comes_is_read_or_refused(item: Any) -> None:
    """Nothing from outside crashes the readers."""
    for read in (read_job, read_reservation):
        try:
            found = read(item)
        except InvalidObject:
            continue
        assert found.name


@pytest.mark.parametrize(
    ("status", "states"),
    [
        ({}, ("pending",)),
        ({"phase": "Pending"}, ("pending",)),
        ({"phase": "Available", "nodeName": "n", "conditions": [
            {"type": "Scheduled", "status": "True", "reason": "Scheduled"}]}, ("scheduled",)),
        ({"phase": "Available", "nodeName": "", "conditions": [
            {"type": "Scheduled", "status": "True", "reason": "Scheduled"}]}, ()),
        ({"phase": "Available", "nodeName": "n"}, ()),
        ({"phase": "Failed", "conditions": [
            {"type": "Ready", "status": "False", "reason": "Expired"}]}, ("expired",)),
        ({"phase": "Failed"}, ()),
        ({"phase": "Succeeded"}, ("consumed",)),
    ],
)  # fmt: skip
def test_states_of_a_reservation(status: dict[str, Any], states: tuple[str, ...]) -> None:
    """The specification's table of derived states."""
    found = read_reservation({"metadata": {"name": "r"}, "status": status})
    every = ("pending", "scheduled", "expired", "consumed")

    assert tuple(name for name in every if getattr(found, name)) == states


def test_a_reservation() -> None:
    """Its job, the pod that has it, and the scheduler's message."""
    found = read_reservation(
        {
            "metadata": {
                "name": "r", "uid": "u", "resourceVersion": "3",
                "labels": {"scheduling.koordinator.sh/reservation-order": "1"},
                "ownerReferences": [{"kind": "Node", "name": "n"},
                                    {"kind": "PodMigrationJob", "name": "j", "uid": "uj"}],
            },
            "spec": {"owners": [{"controller": {"kind": "ReplicaSet"}},
                                {"object": {"kind": "Pod", "namespace": "d", "name": "p"}}]},
            "status": {
                "conditions": [{"type": "Scheduled", "reason": "Unschedulable", "message": "0/3"}],
                "currentOwners": [{"namespace": "d", "name": "q", "uid": "uq"}],
            },
        }
    )  # fmt: skip

    assert (found.job_name, found.job_uid, found.ordered) == ("j", "uj", True)
    assert (found.for_pod, found.owner) == (JobPod("d", "p"), JobPod("d", "q", "uq"))
    assert found.unschedulable == "0/3"
