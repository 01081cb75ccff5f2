"""GPU and CPU-bound workloads on a real API server: placed, explained and moved, or left.

The scheduler has Koordinator's shipped profile. What is made up: nodes with their devices and CPUs,
the controllers of the workloads, and the kubelets.
"""

import asyncio
import contextlib
import copy
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.api.annotations import DEVICE_ALLOCATED, RESOURCE_STATUS
from koord.api.podmigrationjob import API_VERSION, PLURAL
from koord.kube.client import DEVICES, NODE_TOPOLOGIES, NODES, PODS, ApiClient, Resource
from koord.kube.errors import NotFound
from tests.support.processes.control_plane import running_descheduler, running_scheduler
from tests.support.processes.prometheus import free_port
from tests.support.real_apiserver.accounts import SYSTEM, Accounts
from tests.support.real_apiserver.cluster_objects import READY, SHOP, ClusterObjects
from tests.support.real_apiserver.control_plane import ControlPlane
from tests.support.real_apiserver.recorder import Recorder
from tests.support.scheduler.devices import d8
from tests.support.scheduler.numa import topology_object
from tests.support.scheduler.shipped import SHIPPED

JOBS = Resource(API_VERSION, PLURAL)
NAME = "koord-scheduler"
AMOUNTS = {"cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "8"}
COMPONENTS = tuple(
    f"scheduler/{name}" for name in ("patch-pods", "reservations", "gangs", "quotas")
)
LSR = {"koordinator.sh/qosClass": "LSR"}
TIMEOUT = 60.0  # real seconds
DESCHEDULER: dict[str, Any] = {
    "apiVersion": "descheduler/v1alpha2",
    "kind": "DeschedulerConfiguration",
    "deschedulingInterval": "10s",
    "leaderElection": {"resourceNamespace": SYSTEM},
    "healthzBindAddress": "127.0.0.1:0",
    "metricsBindAddress": "127.0.0.1:0",
    "profiles": [
        {
            "name": "koord-descheduler",
            "pluginConfig": [
                {
                    "name": "MigrationController",
                    "args": {
                        "apiVersion": "descheduler/v1alpha2",
                        "kind": "MigrationControllerArgs",
                        "objectLimiters": {"workload": {"duration": "0s"}},
                        "maxMigratingPerWorkload": 2,
                        "maxUnavailablePerWorkload": 2,
                        "skipCheckExpectedReplicas": True,
                    },
                }
            ],
        }
    ],
}


class Workload:
    """A ReplicaSet, and the pods that its controller makes."""

    def __init__(self, objects: ClusterObjects, name: str, requests: dict[str, str]) -> None:
        self.name = name
        self._objects = objects
        self._requests = requests
        self._owner: dict[str, Any] = {}
        self._count = 0

    async def add_pod(self, node: str = "", annotations: dict[str, str] | None = None) -> str:
        """node: where it runs, with what its annotations say; "": it is to be scheduled."""
        if not self._owner:
            self._owner = await self._objects.add_replica_set(self.name, 2)
        name = f"{self.name}-{self._count}"
        self._count += 1
        resources = {"requests": self._requests, "limits": self._requests}
        container = {"name": "app", "image": "app", "resources": resources}
        spec = {"schedulerName": NAME, "containers": [container]}
        await self._objects.add_pod(
            name,
            {**spec, "nodeName": node} if node else spec,
            {**READY, "phase": "Running"} if node else None,
            labels={"app": self.name, **LSR},
            annotations=annotations or {},
            ownerReferences=[self._owner],
        )
        return name


@pytest.fixture
async def nodes(
    client: ApiClient, objects: ClusterObjects, node_name: str
) -> AsyncIterator[list[str]]:
    """Two nodes with 8 GPUs, and 16 CPUs on two NUMA nodes."""
    names = [f"{node_name}-a", f"{node_name}-b"]
    for name in names:
        await objects.add_node(name, {**READY, "capacity": AMOUNTS, "allocatable": AMOUNTS})
        device = d8(name)
        del device["metadata"]["uid"]
        await client.create(DEVICES.collection(), device)
        await client.create(NODE_TOPOLOGIES.collection(), topology_object(name))
    yield names
    for name in names:
        await client.delete(DEVICES.object(name))
        await client.delete(NODE_TOPOLOGIES.object(name))


def held(pod: dict[str, Any]) -> tuple[str, list[int]]:
    """The CPUs and the GPUs of a pod."""
    annotations = pod["metadata"].get("annotations", {})
    cpus = json.loads(annotations.get(RESOURCE_STATUS, "{}")).get("cpuset", "")
    cards = json.loads(annotations.get(DEVICE_ALLOCATED, "{}")).get("gpu", [])
    return cpus, [one["minor"] for one in cards]


async def explained(port: int, pod: str) -> Any:
    """What a running daemon says of a pod."""
    url = f"http://127.0.0.1:{port}/explain?pod={SHOP}/{pod}"
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=TIMEOUT).read())
    return json.loads(text)


async def moved(client: ApiClient, objects: ClusterObjects, workload: Workload, pod: str) -> Any:
    """Have a pod moved, room on another node first; return the job once it is over."""
    spec = {"mode": "ReservationFirst", "ttl": "2m", "podRef": {"namespace": SHOP, "name": pod}}
    path = JOBS.object(f"move-{pod}")
    body = {"apiVersion": API_VERSION, "kind": "PodMigrationJob"}
    await client.create(
        JOBS.collection(), {**body, "metadata": {"name": f"move-{pod}"}, "spec": spec}
    )
    made = ""
    async with asyncio.timeout(TIMEOUT):
        while True:
            status = (await client.get(path)).get("status") or {}
            if not made and pod not in await objects.names():
                made = await workload.add_pod()  # its controller's part
            if status.get("phase") in ("Succeeded", "Failed"):
                return status
            if made:
                await objects.placed(made)
                await run(client, made)
            await asyncio.sleep(0.2)


async def run(client: ApiClient, pod: str) -> None:
    """The kubelet's part for a pod that has a node; one that has gone is left alone."""
    path = PODS.object(pod, namespace=SHOP, subresource="status")
    with contextlib.suppress(NotFound):
        await client.merge_patch(path, {"status": {**READY, "phase": "Running"}})


async def test_workloads_are_placed_explained_and_moved(
    own_plane: ControlPlane,
    tmp_path: Path,
    client: ApiClient,
    recorder: Recorder,
    objects: ClusterObjects,
    accounts: Accounts,
    nodes: list[str],
) -> None:
    """Each pod has its own CPUs and cards before and after; one that waits is told what is free."""
    scheduler = await accounts.scheduler(*COMPONENTS)
    descheduler = await accounts.descheduler()
    port, config = free_port(), yaml.safe_load(SHIPPED)
    config["leaderElection"]["resourceNamespace"] = SYSTEM
    gpus = Workload(objects, "gpus", {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "5"})
    cpus = Workload(objects, "cpus", {"cpu": "6", "memory": "1Gi"})
    async with (
        running_scheduler(tmp_path, recorder.url, config, token=scheduler, port=port),
        running_descheduler(tmp_path, recorder.url, DESCHEDULER, token=descheduler),
    ):
        first = await objects.placed(await gpus.add_pod())
        bound = await objects.placed(await cpus.add_pod())
        assert held(first)[1] == [0, 1, 2, 3, 4]
        assert held(bound)[0].count("-") == 1
        for workload, pod in ((gpus, first), (cpus, bound)):
            await run(client, pod["metadata"]["name"])
            status = await moved(client, objects, workload, pod["metadata"]["name"])
            assert status["phase"] == "Succeeded", status
            there = await objects.placed(f"{workload.name}-1")
            assert there["spec"]["nodeName"] != pod["spec"]["nodeName"]
            assert [len(one) for one in held(there)] == [len(one) for one in held(pod)]
        await objects.placed(await gpus.add_pod())
        waits = await gpus.add_pod()
        await objects.pod_condition(waits, "PodScheduled")
        advice = (await explained(port, waits))["decision"]["advice"]
        assert advice[0].startswith("5 devices of type gpu are requested: 6 would do on 2 nodes")


SHARES = ("koordinator.sh/gpu-core", "koordinator.sh/gpu-memory-ratio")
BROKEN = {"key": "broken", "effect": "NoSchedule"}


def cards(percent: int) -> dict[str, str]:
    """A request for a part of a GPU, or for all of it."""
    return {"cpu": "1", "memory": "1Gi", **{name: str(percent) for name in SHARES}}


def with_card(minor: int, percent: int) -> dict[str, str]:
    """The annotation of a pod that has a part of a GPU."""
    resources = {name: str(percent) for name in SHARES}
    return {DEVICE_ALLOCATED: json.dumps({"gpu": [{"minor": minor, "resources": resources}]})}


def with_cpus(cpus: str) -> dict[str, str]:
    return {RESOURCE_STATUS: json.dumps({"cpuset": cpus})}


def leaving_taints(address: str) -> dict[str, Any]:
    """Pods leave nodes with a taint that they do not tolerate, if another one can take them."""
    config: dict[str, Any] = copy.deepcopy(DESCHEDULER)
    config |= {"healthzBindAddress": address, "metricsBindAddress": address}
    config["deschedulingInterval"] = "1s"
    [profile] = config["profiles"]
    profile["plugins"] = {"deschedule": {"enabled": [{"name": "RemovePodsViolatingNodeTaints"}]}}
    profile["pluginConfig"][0]["args"]["nodeFit"] = True
    return config


async def refused(port: int, pod: str) -> str:
    """Why a pod stays, once a cycle has looked at it."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            found = []
            with contextlib.suppress(urllib.error.URLError):  # it does not listen yet
                cycles = (await explained(port, pod))["cycles"]
                found = [one["reason"] for each in cycles for one in each["pods"]]
            if found:
                return str(found[0])
            await asyncio.sleep(0.2)


async def gone(objects: ClusterObjects, pod: str) -> None:
    async with asyncio.timeout(TIMEOUT):
        while True:
            if pod not in await objects.names():
                return
            await asyncio.sleep(0.2)


async def test_no_pod_is_evicted_whose_cpus_or_gpus_no_other_node_has(
    own_plane: ControlPlane,
    tmp_path: Path,
    client: ApiClient,
    recorder: Recorder,
    objects: ClusterObjects,
    accounts: Accounts,
    nodes: list[str],
) -> None:
    """Room is enough by amounts; whole cards, and CPUs, are free only in the end."""
    broken, good = nodes
    room = {**AMOUNTS, "cpu": "64", **dict.fromkeys(SHARES, "800")}
    for name in nodes:
        path = NODES.object(name, subresource="status")
        await client.merge_patch(path, {"status": {"capacity": room, "allocatable": room}})
    gpus = Workload(objects, "gpus", cards(100))
    cpus = Workload(objects, "cpus", {"cpu": "6", "memory": "1Gi"})
    holders = Workload(objects, "holders", cards(50))
    bound = Workload(objects, "bound", {"cpu": "12", "memory": "1Gi"})
    for minor in range(8):
        await holders.add_pod(good, with_card(minor, 50))
    await bound.add_pod(good, with_cpus("0-11"))
    gpu = await gpus.add_pod(broken, with_card(0, 100))
    cpu = await cpus.add_pod(broken, with_cpus("0-5"))
    await client.merge_patch(NODES.object(broken), {"spec": {"taints": [BROKEN]}})
    scheduler = await accounts.scheduler(*COMPONENTS)
    port, config = free_port(), yaml.safe_load(SHIPPED)
    config["leaderElection"]["resourceNamespace"] = SYSTEM
    settings = leaving_taints(f"127.0.0.1:{port}")
    async with (
        running_scheduler(tmp_path, recorder.url, config, token=scheduler),
        running_descheduler(tmp_path, recorder.url, settings, token=await accounts.descheduler()),
    ):
        for pod in (gpu, cpu):
            assert "1 no such devices or CPUs free as it has" in await refused(port, pod)
        assert {gpu, cpu} <= set(await objects.names())
        for workload, pod, blocker in ((gpus, gpu, "holders-5"), (cpus, cpu, "bound-0")):
            await client.delete(PODS.object(blocker, namespace=SHOP))
            await gone(objects, pod)
            there = await objects.placed(await workload.add_pod())
            assert there["spec"]["nodeName"] == good
            assert held(there)[0 if workload is cpus else 1]
