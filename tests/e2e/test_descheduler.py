"""koord-descheduler as it ships: a hot node, a PodMigrationJob in real storage, an eviction."""

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.api import podmigrationjob, reservation
from koord.kube.client import LEASES, NODE_METRICS, PODS, ApiClient, Resource
from tests.support.processes.control_plane import events, running_descheduler
from tests.support.programs import REPOSITORY
from tests.support.real_apiserver.accounts import Accounts
from tests.support.real_apiserver.cluster_objects import READY, SHOP, ClusterObjects
from tests.support.real_apiserver.control_plane import ControlPlane
from tests.support.real_apiserver.recorder import Recorder

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]
Object = dict[str, Any]

CONFIG = REPOSITORY / "deploy" / "descheduler" / "config.yaml"
NAMESPACE = "koordlet-system"
JOBS = Resource(podmigrationjob.API_VERSION, podmigrationjob.PLURAL)
ROOM = Resource(reservation.API_VERSION, reservation.PLURAL)
NOTHING = {"cpu": "0", "memory": "0"}


def configuration(mode: str) -> Object:
    """The shipped one, but for dry-run, its addresses, and its timeouts."""
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


@dataclass
class Workload:
    """A ReplicaSet and its pods."""

    objects: ClusterObjects
    owner: Object = field(default_factory=dict)

    async def add_pod(self, name: str, node: str) -> Object:
        container = {"name": "app", "image": "app", "resources": {"requests": {"cpu": "500m"}}}
        spec = {"nodeName": node, "schedulerName": "koord-scheduler", "containers": [container]}
        status = {**READY, "phase": "Running"}
        labels, owners = {"app": "web"}, [self.owner]
        return await self.objects.add_pod(name, spec, status, labels=labels, ownerReferences=owners)

    async def pods(self) -> list[str]:
        return await self.objects.names()


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


@pytest.fixture
async def workload(objects: ClusterObjects, nodes: list[str], own_plane: ControlPlane) -> Workload:
    """All four pods of it on the first node."""
    room = {"cpu": "4", "memory": "16Gi", "pods": "110"}
    for name in nodes:
        labels = {"kubernetes.io/hostname": name}
        await objects.add_node(name, {**READY, "capacity": room}, labels=labels)
    workload = Workload(objects, await objects.add_replica_set("web", 4))
    for number in range(4):
        await workload.add_pod(f"web-{number}", nodes[0])
    return workload


@pytest.fixture
async def token(accounts: Accounts) -> str:
    return await accounts.descheduler()


async def report(client: ApiClient, nodes: list[str]) -> None:
    """What koordlet would report now: each pod uses 850m of a node's four cores."""
    pods = (await client.list(PODS.collection(SHOP))).items
    for name in nodes:
        mine = [each["metadata"]["name"] for each in pods if each["spec"]["nodeName"] == name]
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
    tmp_path: Path, recorder: Recorder, token: str, workload: Workload, client: ApiClient,
    nodes: list[str], eventually: Eventually,
) -> None:  # fmt: skip
    """One: then it is not hot any more. Job and event say so, the lease is released."""
    pods = (await client.list(PODS.collection(SHOP))).items
    uids = {each["metadata"]["name"]: each["metadata"]["uid"] for each in pods}
    await report(client, nodes)
    async with running_descheduler(
        tmp_path, recorder.url, configuration("EvictDirectly"), token=token
    ):
        job = await until_phase(client, "Succeeded")
        await report(client, nodes)
        left = await workload.pods()
        assert len(left) == 3
        async with asyncio.timeout(30):
            while not await workload.objects.reported("Descheduled"):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.1)
        [asked] = [entry for entry in recorder.asked("create") if entry.path.endswith("/eviction")]
        assert asked.path == PODS.object(job.pod.name, namespace="shop", subresource="eviction")
        assert asked.json["deleteOptions"]["preconditions"]["uid"] == uids[job.pod.name]
        cycles = len(events(tmp_path, "cycle.ended"))
        await eventually(lambda: len(events(tmp_path, "cycle.ended")) >= cycles + 2)
        assert await workload.pods() == left
    lease = await client.get(LEASES.object("koord-descheduler", namespace=NAMESPACE))
    assert not lease["spec"]["holderIdentity"]


async def test_room_is_reserved_before_a_pod_leaves(
    tmp_path: Path, recorder: Recorder, token: str, workload: Workload, client: ApiClient,
    nodes: list[str],
) -> None:  # fmt: skip
    """A scripted scheduler finds it; the pod that comes takes it, and the job is complete."""
    await report(client, nodes)
    async with running_descheduler(
        tmp_path, recorder.url, configuration("ReservationFirst"), token=token
    ):
        room = await _asked_for(client)
        before = set(await workload.pods())
        assert len(before) == 4
        scheduled = {"type": "Scheduled", "status": "True", "reason": "Scheduled"}
        status = {"phase": "Available", "nodeName": nodes[1], "conditions": [scheduled]}
        await _say(client, room, status)
        async with asyncio.timeout(30):
            while len(await workload.pods()) == 4:  # noqa: ASYNC110 - the process has no event to await
                await asyncio.sleep(0.05)
        made = await workload.add_pod("web-new", nodes[1])
        owner = {"namespace": SHOP, "name": "web-new", "uid": made["metadata"]["uid"]}
        await _say(client, room, {**status, "phase": "Succeeded", "currentOwners": [owner]})
        await until_phase(client, "Succeeded")
        assert len(before & set(await workload.pods())) == 3


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
    tmp_path: Path, recorder: Recorder, token: str, workload: Workload, client: ApiClient,
    nodes: list[str], eventually: Eventually,
) -> None:  # fmt: skip
    """But the lease, and the ledger; the plan is in the log."""
    await report(client, nodes)
    config = configuration("EvictDirectly") | {"dryRun": True}
    async with running_descheduler(tmp_path, recorder.url, config, token=token):
        await eventually(lambda: len(events(tmp_path, "eviction.planned")) >= 1)
        await eventually(lambda: len(events(tmp_path, "cycle.ended")) >= 2)
    assert await the_job(client) is None
    assert len(await workload.pods()) == 4
    wrote = {
        entry.path.split("/")[-1]
        for entry in recorder.requests
        if entry.method in ("POST", "PUT", "PATCH", "DELETE")
    }
    ledger = {"configmaps", "koord-descheduler-ledger"}
    assert wrote <= {"leases", "koord-descheduler", "events"} | ledger
