"""GPU and CPU-bound workloads on a real API server: placed, explained and moved.

The scheduler has Koordinator's shipped profile. What is made up: nodes with their devices and CPUs,
the controllers of the workloads, and the kubelets.
"""

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.api.annotations import DEVICE_ALLOCATED, RESOURCE_STATUS
from koord.api.podmigrationjob import API_VERSION, PLURAL
from koord.kube.client import DEVICES, NODE_TOPOLOGIES, PODS, ApiClient, Resource
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

    async def add_pod(self) -> str:
        if not self._owner:
            self._owner = await self._objects.add_replica_set(self.name, 2)
        name = f"{self.name}-{self._count}"
        self._count += 1
        resources = {"requests": self._requests, "limits": self._requests}
        container = {"name": "app", "image": "app", "resources": resources}
        await self._objects.add_pod(
            name,
            {"schedulerName": NAME, "containers": [container]},
            labels={"app": self.name, **LSR},
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


async def explained(port: int, pod: str) -> list[str]:
    """What would help a pod, as the running scheduler says."""
    url = f"http://127.0.0.1:{port}/explain?pod={SHOP}/{pod}"
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=TIMEOUT).read())
    advice: list[str] = json.loads(text)["decision"]["advice"]
    return advice


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
        advice = await explained(port, waits)
        assert advice[0].startswith("5 devices of type gpu are requested: 6 would do on 2 nodes")
