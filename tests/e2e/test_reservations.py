"""Gangs of a workload under two quotas, with a reservation: placed, moved, preempted, explained.

koord-scheduler and koord-descheduler run with the rights that ship, on a real API server. The test
stands for the controllers of workloads and for the kubelets.
"""

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from koord.api import podmigrationjob
from koord.api.elasticquota import API_VERSION, KIND, NAME, PLURAL
from koord.api.podgroup import LIGHTWEIGHT_MIN_LABEL, LIGHTWEIGHT_NAME_LABEL
from koord.api.reservation import ALLOCATED
from koord.api.reservation import API_VERSION as ROOM_VERSION
from koord.api.reservation import PLURAL as ROOM_PLURAL
from koord.kube.client import PODS, ApiClient, Resource
from koord.kube.errors import NotFound
from tests.support.processes.control_plane import (
    running_descheduler,
    running_scheduler,
    scheduler_config,
)
from tests.support.processes.prometheus import free_port
from tests.support.real_apiserver.accounts import SYSTEM, Accounts
from tests.support.real_apiserver.cluster_objects import READY, SHOP, ClusterObjects
from tests.support.real_apiserver.control_plane import ControlPlane
from tests.support.real_apiserver.kubectl import Kubectl
from tests.support.real_apiserver.recorder import Recorder
from tests.support.real_apiserver.served import until_served

QUOTAS, POD_GROUPS = Resource(API_VERSION, PLURAL), Resource(API_VERSION, "podgroups")
RESERVATIONS = Resource(ROOM_VERSION, ROOM_PLURAL)
JOBS = Resource(podmigrationjob.API_VERSION, podmigrationjob.PLURAL)
PRIORITIES = Resource("scheduling.k8s.io/v1", "priorityclasses")
CRDS = Path(__file__).parents[2] / "deploy" / "scheduler" / "crds"
FILES = "elasticquotas.yaml", "podgroups.yaml"
COMPONENTS = "scheduler/gangs", "scheduler/quotas", "scheduler/reservations"
PATIENCE = 60.0  # real seconds
CONFIG = scheduler_config(
    "koord-scheduler",
    "Coscheduling",
    "ElasticQuota",
    args={"ElasticQuota": {"quotaGroupNamespace": SYSTEM}},
)


def _only(*names: str) -> dict[str, list[dict[str, str]]]:
    return {"disabled": [{"name": "*"}], "enabled": [{"name": name} for name in names]}


CONFIG["profiles"][0]["plugins"] |= {
    **{
        point: {"enabled": [{"name": "Reservation"}]}
        for point in ("preFilter", "filter", "preScore", "reserve")
    },
    "score": {"enabled": [{"name": "Reservation", "weight": 5000}]},
    "postFilter": _only("Reservation", "Coscheduling", "ElasticQuota", "DefaultPreemption"),
    "preBind": {"enabled": [{"name": "Reservation"}]},
    "bind": _only("Reservation", "DefaultBinder"),
}
DESCHEDULER = {
    "apiVersion": "descheduler/v1alpha2",
    "kind": "DeschedulerConfiguration",
    "healthzBindAddress": "127.0.0.1:0",
    "metricsBindAddress": "127.0.0.1:0",
    "leaderElection": {"resourceNamespace": SYSTEM},
    "deschedulingInterval": "10s",
    "profiles": [
        {
            "name": "koord-descheduler",
            "pluginConfig": [
                {
                    "name": "MigrationController",
                    "args": {"objectLimiters": {"workload": {"duration": "0s"}}},
                }
            ],
        }
    ],
}
Json = dict[str, Any]


async def until(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Return the answer once it is a true one."""
    async with asyncio.timeout(PATIENCE):
        while not (found := await ask()):  # noqa: ASYNC110 - the server has no event to await
            await asyncio.sleep(0.2)
    return found


def quota(cpu: str) -> Json:
    spec = {"min": {"cpu": "1"}, "max": {"cpu": cpu}}
    return {"apiVersion": API_VERSION, "kind": KIND, "spec": spec}


def template(of: str, cpu: str, **spec: Any) -> Json:
    resources = {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}
    container = {"name": "app", "image": "app", "resources": resources}
    return {
        "metadata": {"namespace": SHOP, "labels": {NAME: of}},
        "spec": {"schedulerName": "koord-scheduler", "containers": [container], **spec},
    }


class Shop:
    """Workloads whose pods are gangs, their quotas, and a reservation."""

    def __init__(self, client: ApiClient, objects: ClusterObjects) -> None:
        self._client, self._objects = client, objects
        self._owners: dict[str, Json] = {}

    async def add_pod(self, name: str, app: str, of: str, pods: int, cpu: str, **spec: Any) -> Json:
        """A pod of a workload; pods: of its gang, 0: it is in none."""
        if app not in self._owners:
            self._owners[app] = await self._objects.add_replica_set(app, pods or 1)
        labels = {"app": app, NAME: of}
        if pods:
            labels |= {LIGHTWEIGHT_NAME_LABEL: app, LIGHTWEIGHT_MIN_LABEL: str(pods)}
        return await self._objects.add_pod(
            name, template(of, cpu, **spec)["spec"], labels=labels,
            ownerReferences=[self._owners[app]],
        )  # fmt: skip

    async def gang(self, app: str, of: str, pods: int, cpu: str) -> None:
        for number in range(pods):
            await self.add_pod(f"{app}-{number}", app, of, pods, cpu)

    async def of(self, app: str) -> list[Json]:
        listed = (await self._client.list(PODS.collection(SHOP))).items
        return [one for one in listed if one["metadata"].get("labels", {}).get("app") == app]

    async def placed(self, app: str, pods: int) -> bool:
        """Whether all pods of a gang have a node."""
        found = await self.of(app)
        return len(found) == pods and all(one["spec"].get("nodeName") for one in found)

    async def run(self, app: str) -> None:
        """Have its pods run, as kubelets do."""
        for one in await self.of(app):
            path = PODS.object(one["metadata"]["name"], namespace=SHOP, subresource="status")
            await self._client.merge_patch(path, {"status": {**READY, "phase": "Running"}})

    async def given(self, app: str) -> list[str]:
        """The reservations that its pods have."""
        annotations = [one["metadata"].get("annotations") or {} for one in await self.of(app)]
        return [json.loads(one[ALLOCATED])["name"] for one in annotations if ALLOCATED in one]

    async def status(self, resource: Resource, name: str) -> Json:
        try:
            found: Json = (await self._client.get(resource.object(name))).get("status") or {}
        except NotFound:
            return {}
        return found


@pytest.fixture
async def kinds(kubectl: Kubectl, client: ApiClient) -> None:
    """The kinds that the scheduler's component installs."""
    files = [path for path in CRDS.glob("*.yaml") if path.name in FILES]
    await asyncio.to_thread(kubectl.apply, [yaml.safe_load(path.read_text()) for path in files])
    for resource in (QUOTAS, POD_GROUPS, RESERVATIONS):
        await until_served(client, resource)


@pytest.fixture
async def shop(
    client: ApiClient, objects: ClusterObjects, own_plane: ControlPlane, kinds: None,
    node_name: str,
) -> Shop:  # fmt: skip
    """Three nodes with four cores each, two quotas, and two classes of priority."""
    status = {**READY, "allocatable": {"cpu": "4", "memory": "16Gi", "pods": "50"}}
    for number in range(3):
        labels = {"kubernetes.io/hostname": f"{node_name}-{number}"}
        await objects.add_node(
            f"{node_name}-{number}", {**status, "capacity": status["allocatable"]}, labels=labels
        )
    for name, cpu in (("team-a", "6"), ("team-b", "8")):
        await objects.have(QUOTAS, name, quota(cpu), namespace=SHOP)
    await objects.have(PRIORITIES, "urgent", {"value": 1000})
    return Shop(client, objects)


async def explained(port: int, pod: str) -> list[str]:
    """What /explain advises; nothing while it does not answer, or the pod is not known."""
    url = f"http://127.0.0.1:{port}/explain?pod={SHOP}/{pod}"
    try:
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            if response.status != 200:
                return []
            found: list[str] = (await response.json())["decision"]["advice"]
            return found
    except aiohttp.ClientError:
        return []


async def test_gangs_with_a_reservation_are_placed_moved_preempted_and_explained(
    client: ApiClient, objects: ClusterObjects, accounts: Accounts, recorder: Recorder,
    shop: Shop, tmp_path: Path,
) -> None:  # fmt: skip
    tokens = await accounts.scheduler(*COMPONENTS), await accounts.descheduler()
    port = free_port()
    async with (
        running_scheduler(tmp_path, recorder.url, CONFIG, port=port, token=tokens[0]),
        running_descheduler(tmp_path, recorder.url, DESCHEDULER, token=tokens[1]),
    ):
        spec = {
            "owners": [{"labelSelector": {"matchLabels": {"app": "server"}}}],
            "ttl": "1h", "allocateOnce": False, "allocatePolicy": "Restricted",
            "template": template("team-b", "4"),
        }  # fmt: skip
        room = {"apiVersion": ROOM_VERSION, "kind": "Reservation", "spec": spec}
        await objects.have(RESERVATIONS, "spare", room)

        async def available() -> bool:
            return (await shop.status(RESERVATIONS, "spare")).get("phase") == "Available"

        await until(available)
        await shop.gang("server", "team-b", 2, "2")
        await until(lambda: shop.placed("server", 2))
        assert await shop.given("server") == ["spare", "spare"]
        node = (await shop.status(RESERVATIONS, "spare"))["nodeName"]
        assert {one["spec"]["nodeName"] for one in await shop.of("server")} == {node}

        await shop.run("server")
        job = str(uuid.uuid4())
        body = {
            "apiVersion": podmigrationjob.API_VERSION, "kind": "PodMigrationJob",
            "metadata": {"name": job},
            "spec": {
                "mode": "ReservationFirst", "ttl": "2m",
                "podRef": {"namespace": SHOP, "name": "server-0"},
            },
        }  # fmt: skip
        await client.create(JOBS.collection(), body)

        async def left() -> bool:
            return len(await shop.of("server")) == 1

        await until(left)
        made = await shop.add_pod("server-new", "server", "team-b", 2, "2")
        await until(lambda: shop.placed("server", 2))
        await shop.run("server")

        async def done() -> str:
            return str((await shop.status(JOBS, job)).get("phase", ""))

        async def ended() -> bool:
            return await done() in ("Succeeded", "Failed")

        await until(ended)
        assert await done() == "Succeeded", await shop.status(JOBS, job)
        (moved,) = [
            one for one in await shop.of("server")
            if one["metadata"]["uid"] == made["metadata"]["uid"]
        ]  # fmt: skip
        assert moved["spec"]["nodeName"] != node
        assert json.loads(moved["metadata"]["annotations"][ALLOCATED])["name"] != "spare"

        await shop.gang("trainer", "team-a", 3, "2")
        await until(lambda: shop.placed("trainer", 3))
        await shop.run("trainer")
        await shop.add_pod("urgent", "urgent", "team-a", 0, "2", priorityClassName="urgent")
        await until(lambda: shop.placed("urgent", 1))
        assert len(await shop.of("trainer")) < 3

        await shop.add_pod("server-big", "server", "team-b", 0, "3")

        async def says() -> list[str]:
            found = await explained(port, "server-big")
            return [text for text in found if "spare" in text]

        found = await until(says)
        assert any("too little cpu is left" in text for text in found), found
