"""PodMigrationJob and Reservation as they ship, with Kubernetes' own storage and schemas."""

import uuid

import pytest

from koord.api.podmigrationjob import (
    API_VERSION,
    PLURAL,
    ConditionType,
    JobPod,
    JobReason,
    begin_patch,
    new_job,
    read_job,
    status_patch,
)
from koord.api.reservation import PLURAL as RESERVATIONS
from koord.kube import errors
from koord.kube.client import ApiClient, Resource

JOBS, ROOM = Resource(API_VERSION, PLURAL), Resource(API_VERSION, RESERVATIONS)
POD = JobPod("default", "web-7d9f", "7712555c-ce62-454a-9e18-9ff0217b8941")
NOW = 1_784_876_000.0


@pytest.fixture
def name() -> str:
    return str(uuid.uuid4())


async def test_a_job_keeps_what_its_controller_writes(client: ApiClient, name: str) -> None:
    """Arbitration, the uid of the pod, the Reservation, conditions with times of null."""
    options = {"gracePeriodSeconds": 30, "preconditions": {"uid": POD.uid}}
    body = new_job(
        name, JobPod(POD.namespace, POD.name), mode="ReservationFirst", ttl=300.0,
        annotations={"koordinator.sh/evict-reason": "hot"}, delete_options=options,
    )  # fmt: skip
    job = read_job(await client.create(JOBS.collection(), body))
    path = JOBS.object(name)

    job = read_job(await client.json_patch(path, begin_patch(job, POD.uid, "room")))
    assert (job.passed, job.pod, job.reservation) == (True, POD, "room")
    assert (job.ttl, job.mode, job.delete_options) == (300.0, "ReservationFirst", options)

    noted = job.noting(
        ConditionType.EVICTION, NOW, holds=False, reason=JobReason.EVICTING, message="m"
    )
    stored = read_job(await client.json_patch(f"{path}/status", status_patch(job, noted)))
    assert stored.conditions == noted.conditions
    assert (stored.status, stored.reason) == ("Eviction", "Evicting")
    with pytest.raises(errors.PatchRejected):
        await client.json_patch(f"{path}/status", status_patch(job, noted))  # of an old version
    await client.delete(path, uid=job.uid)


async def test_a_job_without_a_pod_is_refused(client: ApiClient, name: str) -> None:
    """And one of a mode that nothing can carry out."""
    body = new_job(name, POD, mode="EvictDirectly", ttl=60.0, annotations={})
    for spoilt in ({"mode": "EvictDirectly"}, {**body["spec"], "mode": "Sometimes"}):
        with pytest.raises(errors.Invalid):
            await client.create(JOBS.collection(), {**body, "spec": spoilt})


async def test_a_reservation_keeps_its_template(client: ApiClient, name: str) -> None:
    """The whole pod, the owners; what is not said has the scheduler's defaults."""
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main"}]}}
    owner = {"controller": {"kind": "ReplicaSet", "name": "web", "namespace": "default"}}
    body = {
        "apiVersion": API_VERSION,
        "kind": "Reservation",
        "metadata": {"name": name},
        "spec": {"template": template, "owners": [owner]},
    }
    stored = await client.create(ROOM.collection(), body)

    assert stored["spec"] == {
        "template": template,
        "owners": [owner],
        "allocateOnce": True,
        "ttl": "24h",
    }
    status = {"phase": "Available", "nodeName": "n2", "conditions": [{"type": "Scheduled"}]}
    uid = stored["metadata"]["uid"]
    await client.replace_status(ROOM.object(name, subresource="status"), uid, status)
    assert (await client.get(ROOM.object(name)))["status"] == status
    await client.delete(ROOM.object(name), uid=uid)
