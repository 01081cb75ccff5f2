"""koord-descheduler as it ships: a hot node, a PodMigrationJob in real storage, an eviction."""

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from front import Front
from programs import REPOSITORY
from realcontrolplane import events, running_descheduler

from koord.api import podmigrationjob, reservation
from koord.kube.client import EVENTS, NODE_METRICS, NODES, PODS, ApiClient, Resource
from koord.kube.credentials import ApiConfig

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]
Object = dict[str, Any]

CONFIG = REPOSITORY / "deploy" / "descheduler" / "config.yaml"
NAMESPACE = "koordlet-system"
JOBS = Resource(podmigrationjob.API_VERSION, podmigrationjob.PLURAL)
ROOM = Resource(reservation.API_VERSION, reservation.PLURAL)
REPLICA_SETS = "/apis/apps/v1/replicasets"
LEASES = "/apis/coordination.k8s.io/v1/leases"
NOTHING = {"cpu": "0", "memory": "0"}
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "uid-of-web"}


def configuration(mode: str) -> Object:
    """The shipped one, but for dry-run, its addresses, and its patience."""
    [text] = yaml.safe_load(CONFIG.read_text())["data"].values()
    config: Object = yaml.safe_load(text)
    config |= {
        "dryRun": False,
        "deschedulingInterval": "1s",
        "healthzBindAddress": "127.0.0.1:0",
        "metricsBindAddress": "127.0.0.1:0",
        "leaderElection": {"resourceNamespace": NAMESPACE},
        "maxNoOfPodsToEvictTotal": 1,
    }
    [profile] = config["profiles"]
    for plugin in profile["pluginConfig"]:
        if plugin["name"] == "LowNodeLoad":
            plugin["args"]["anomalyCondition"] = {"consecutiveAbnormalities": 1}
        else:
            plugin["args"]["defaultJobMode"] = mode
    return config


def pod(name: str, node: str) -> Object:
    return {
        "metadata": {
            "namespace": "shop", "name": name, "uid": f"uid-of-{name}",
            "labels": {"app": "web"}, "ownerReferences": [{**OWNER, "controller": True}],
        },
        "spec": {
            "nodeName": node, "schedulerName": "koord-scheduler",
            "containers": [{"name": "app", "resources": {"requests": {"cpu": "500m"}}}],
        },
        "status": {
            "phase": "Running", "qosClass": "Burstable",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }  # fmt: skip


@pytest.fixture
async def nodes(client: ApiClient, node_name: str) -> AsyncIterator[list[str]]:
    """Three nodes; those of this test only, as the storage is that of all tests."""
    names = [f"{node_name}-{number}" for number in range(3)]
    for name in names:
        body = {"apiVersion": NODE_METRICS.api_version, "kind": "NodeMetric",
                "metadata": {"name": name}, "spec": {}}  # fmt: skip
        await client.create(NODE_METRICS.collection(), body)
    yield names
    for name in names:
        await client.delete(NODE_METRICS.object(name))
    for resource in (JOBS, ROOM):
        for item in (await client.list(resource.collection())).items:
            await client.delete(resource.object(item["metadata"]["name"]))


@pytest.fixture
async def front(api_config: ApiConfig, nodes: list[str]) -> AsyncIterator[Front]:
    front = Front(api_config)
    room = {"cpu": "4", "memory": "16Gi", "pods": "110"}
    for name in nodes:
        status = {"allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
        labels = {"kubernetes.io/hostname": name}
        body = {"metadata": {"name": name, "labels": labels}, "status": status}
        front.objects.create(NODES.collection(), body)
    metadata = {"namespace": "shop", "name": OWNER["name"], "uid": OWNER["uid"]}
    front.objects.create(REPLICA_SETS, {"metadata": metadata, "spec": {"replicas": 4}})
    for number in range(4):
        front.objects.create(PODS.collection(), pod(f"web-{number}", nodes[0]))
    await front.start()
    yield front
    await front.stop()


async def report(client: ApiClient, front: Front, nodes: list[str]) -> None:
    """What koordlet would report now: each pod uses 850m of a node's four cores."""
    for name in nodes:
        mine = [
            each["metadata"]["name"]
            for each in front.objects.all(PODS.collection())
            if each["spec"]["nodeName"] == name
        ]
        usage = {"resources": {"cpu": "850m", "memory": "1Gi"}}
        total = {"resources": {"cpu": f"{850 * len(mine)}m", "memory": f"{len(mine)}Gi"}}
        status = {
            "updateTime": datetime.fromtimestamp(time.time(), UTC).isoformat(),
            "nodeMetric": {"nodeUsage": total, "systemUsage": {"resources": NOTHING}},
            "podsMetric": [{"namespace": "shop", "name": each, "podUsage": usage} for each in mine],
        }
        found = await client.get(NODE_METRICS.object(name))
        path = NODE_METRICS.object(name, subresource="status")
        await client.replace_status(path, found["metadata"]["uid"], status)


def of_pods(front: Front) -> list[str]:
    return sorted(each["metadata"]["name"] for each in front.objects.all(PODS.collection()))


async def the_job(client: ApiClient) -> podmigrationjob.PodMigrationJob | None:
    found = (await client.list(JOBS.collection())).items
    return podmigrationjob.read_job(found[0]) if found else None


async def until_phase(client: ApiClient, phase: str) -> podmigrationjob.PodMigrationJob:
    async with asyncio.timeout(30):
        while True:
            job = await the_job(client)
            if job is not None and job.phase == phase:
                return job
            await asyncio.sleep(0.1)


async def test_a_pod_leaves_a_hot_node(
    tmp_path: Path, front: Front, client: ApiClient, nodes: list[str], eventually: Eventually
) -> None:
    """One: then it is not hot any more. Job and event say so, the lease is released."""
    await report(client, front, nodes)
    async with running_descheduler(tmp_path, front.url, configuration("EvictDirectly")):
        job = await until_phase(client, "Succeeded")
        await report(client, front, nodes)
        left = of_pods(front)
        assert len(left) == 3
        await eventually(
            lambda: any(
                each["reason"] == "Descheduled" for each in front.objects.all(EVENTS.collection())
            )
        )
        [asked] = [entry for entry in front.asked("create") if entry.path.endswith("/eviction")]
        assert asked.path == PODS.object(job.pod.name, namespace="shop", subresource="eviction")
        assert asked.json["deleteOptions"]["preconditions"]["uid"] == f"uid-of-{job.pod.name}"
        cycles = len(events(tmp_path, "cycle.ended"))
        await eventually(lambda: len(events(tmp_path, "cycle.ended")) >= cycles + 2)
        assert of_pods(front) == left
    [lease] = front.objects.all(LEASES)
    assert not lease["spec"]["holderIdentity"]


async def test_room_is_reserved_before_a_pod_leaves(
    tmp_path: Path, front: Front, client: ApiClient, nodes: list[str]
) -> None:
    """A scripted scheduler finds it; the pod that comes takes it, and the job is complete."""
    await report(client, front, nodes)
    async with running_descheduler(tmp_path, front.url, configuration("ReservationFirst")):
        room = await _asked_for(client)
        before = set(of_pods(front))
        assert len(before) == 4
        scheduled = {"type": "Scheduled", "status": "True", "reason": "Scheduled"}
        status = {"phase": "Available", "nodeName": nodes[1], "conditions": [scheduled]}
        await _say(client, room, status)
        async with asyncio.timeout(30):
            while len(of_pods(front)) == 4:  # noqa: ASYNC110 - the process has no event to await
                await asyncio.sleep(0.05)
        front.objects.create(PODS.collection(), pod("web-new", nodes[1]))
        owner = {"namespace": "shop", "name": "web-new", "uid": "uid-of-web-new"}
        await _say(client, room, {**status, "phase": "Succeeded", "currentOwners": [owner]})
        await until_phase(client, "Succeeded")
        assert len(before & set(of_pods(front))) == 3


async def _asked_for(client: ApiClient) -> Object:
    async with asyncio.timeout(30):
        while not (found := (await client.list(ROOM.collection())).items):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return copy.deepcopy(found[0])


async def _say(client: ApiClient, room: Object, status: Object) -> None:
    """As koord-scheduler does."""
    meta = room["metadata"]
    path = ROOM.object(meta["name"], subresource="status")
    await client.replace_status(path, meta["uid"], status)


async def test_in_dry_run_nothing_is_written(
    tmp_path: Path, front: Front, client: ApiClient, nodes: list[str], eventually: Eventually
) -> None:
    """But the lease, and the ledger; the plan is in the log."""
    await report(client, front, nodes)
    config = configuration("EvictDirectly") | {"dryRun": True}
    async with running_descheduler(tmp_path, front.url, config):
        await eventually(lambda: len(events(tmp_path, "eviction.planned")) >= 1)
        await eventually(lambda: len(events(tmp_path, "cycle.ended")) >= 2)
    assert await the_job(client) is None
    assert len(of_pods(front)) == 4
    wrote = {
        entry.path.split("/")[-1]
        for entry in front.requests
        if entry.method in ("POST", "PUT", "PATCH", "DELETE")
    }
    ledger = {"configmaps", "koord-descheduler-ledger"}
    assert wrote <= {"leases", "koord-descheduler", "events"} | ledger
