"""Colocation without any part of Koordinator: profile, manager and scheduler on a real API server.

Reports are written as an agent writes them; the agent's part is in tests/cluster.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from koord.api.nodemetric import time_text
from koord.kube.client import (
    CONFIG_MAPS,
    EVENTS,
    NODE_METRICS,
    NODES,
    PODS,
    ApiClient,
    Resource,
)
from koord.kube.errors import NotFound
from tests.support.processes.control_plane import (
    running_manager,
    running_scheduler,
    scheduler_config,
)
from tests.support.programs import MINOR, REPOSITORY
from tests.support.real_apiserver.accounts import Accounts
from tests.support.real_apiserver.cluster_objects import READY, SHOP, ClusterObjects
from tests.support.real_apiserver.control_plane import ControlPlane
from tests.support.real_apiserver.policies import BINDINGS, OURS
from tests.support.real_apiserver.recorder import Recorder
from tests.support.real_apiserver.served import until_served

T = TypeVar("T")
NAMESPACE = "koordinator-system"
BATCH_CPU = "kubernetes.io/batch-cpu"
PROFILES = Resource("config.koordinator.sh/v1alpha1", "clustercolocationprofiles")
CLASSES = Resource("scheduling.k8s.io/v1", "priorityclasses")
PATIENCE = 60.0  # real seconds
SOON = 10.0  # seconds from a report to the node, on a machine with other things to do
STRATEGY = '{"enable": true, "cpuReclaimThresholdPercent": 60}'
PROFILE = {
    "apiVersion": PROFILES.api_version,
    "kind": "ClusterColocationProfile",
    "metadata": {"name": "batch"},
    "spec": {
        "selector": {"matchLabels": {"app-type": "batch"}},
        "qosClass": "BE",
        "priorityClassName": "koord-batch",
        "schedulerName": "koord-scheduler",
    },
}

pytestmark = pytest.mark.skipif(MINOR < 34, reason="MutatingAdmissionPolicy is beta from 1.34 on")


class Colocated:
    """Two nodes of ten cores, and what happens on them."""

    def __init__(self, client: ApiClient, names: tuple[str, str]) -> None:
        self.client = client
        self.names = names

    async def report(self, node: str, prod: float) -> None:
        """Say that prod pods use so many cores; the system uses one."""
        path = NODE_METRICS.object(node)
        metric = await until(lambda: self._metric(path), f"{node} has a NodeMetric")

        def usage(cores: float) -> dict[str, Any]:
            return {"resources": {"cpu": f"{cores:g}", "memory": "1Gi"}}

        status = {
            "updateTime": time_text(time.time()),
            "nodeMetric": {"nodeUsage": usage(prod + 1), "systemUsage": usage(1)},
            "podsMetric": [
                {"name": "web", "namespace": SHOP, "priority": "koord-prod",
                 "podUsage": usage(prod)}
            ],
        }  # fmt: skip
        status_path = NODE_METRICS.object(node, subresource="status")
        await self.client.replace_status(status_path, metric["metadata"]["uid"], status)

    async def _metric(self, path: str) -> dict[str, Any] | None:
        try:
            return await self.client.get(path)
        except NotFound:
            return None

    async def offers(self, node: str, wanted: str) -> float:
        """Wait until a node offers so much; return how long it took."""
        began = time.monotonic()

        async def is_offered() -> bool:
            found = await self.client.get(NODES.object(node))
            return bool(found["status"]["allocatable"].get(BATCH_CPU) == wanted)

        await until(is_offered, f"{node} offers {wanted}")
        return time.monotonic() - began

    async def batch_pod(self, name: str) -> None:
        """Create a pod as its owner writes it: native requests and a label."""
        requests = {"cpu": "1500m", "memory": "1Gi"}
        container = {"name": "app", "image": "app",
                     "resources": {"requests": requests, "limits": requests}}  # fmt: skip
        body = {
            "metadata": {"name": name, "labels": {"app-type": "batch"}},
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
        }
        made = await self.client.create(PODS.collection(SHOP), body)
        assert made["spec"]["schedulerName"] == "koord-scheduler"
        assert made["metadata"]["labels"]["koordinator.sh/qosClass"] == "BE"
        [given] = made["spec"]["containers"]
        assert given["resources"]["requests"] == {BATCH_CPU: "1500",
                                                  "kubernetes.io/batch-memory": "1Gi"}  # fmt: skip

    async def placed(self) -> dict[str, tuple[str, str]]:
        """The uid and node of each batch pod that has one."""
        query = {"labelSelector": "app-type=batch"}
        items = (await self.client.list(PODS.collection(SHOP), query)).items
        return {
            one["metadata"]["name"]: (one["metadata"]["uid"], one["spec"]["nodeName"])
            for one in items
            if one["spec"].get("nodeName")
        }


async def until(holds: Callable[[], Awaitable[T]], what: str) -> T:
    """Return what holds as soon as it is true."""
    end = time.monotonic() + PATIENCE
    while True:
        if found := await holds():
            return found
        assert time.monotonic() < end, f"after {PATIENCE:g} s still not so: {what}"
        await asyncio.sleep(0.1)


@pytest.fixture
async def token(
    manager_token: str, client: ApiClient, kubectl: Any, objects: ClusterObjects
) -> AsyncIterator[str]:
    """What shipped manifests and a user install; yields the manager's token."""
    text = (REPOSITORY / "deploy/manager/crds/clustercolocationprofiles.yaml").read_text()
    manifests = list(yaml.safe_load_all(text))
    await asyncio.to_thread(kubectl.apply, manifests)
    await until_served(client, PROFILES)
    await objects.add_namespace(SHOP)
    await client.create(CLASSES.collection(), {"metadata": {"name": "koord-batch"}, "value": 5500})
    await client.create(
        CONFIG_MAPS.collection(NAMESPACE),
        {"metadata": {"name": "slo-controller-config"}, "data": {"colocation-config": STRATEGY}},
    )
    await client.create(PROFILES.collection(), PROFILE)
    yield manager_token
    for one in (
        await client.list(PODS.collection(SHOP), {"labelSelector": "app-type=batch"})
    ).items:
        await client.delete(PODS.object(one["metadata"]["name"], namespace=SHOP))
    for one in (await client.list(PROFILES.collection())).items:
        await client.delete(PROFILES.object(one["metadata"]["name"]))
    await client.delete(CLASSES.object("koord-batch"))
    await client.delete(CONFIG_MAPS.object("slo-controller-config", namespace=NAMESPACE))
    await asyncio.to_thread(kubectl.delete, manifests)


async def test_batch_pods_take_what_prod_pods_leave_and_stay_when_it_shrinks(
    own_plane: ControlPlane, client: ApiClient, objects: ClusterObjects, accounts: Accounts,
    token: str, node_name: str, tmp_path: Path,
) -> None:  # fmt: skip
    """Mutated, offered, placed within it; what does not fit waits until the load falls."""
    names = (f"{node_name}-a", f"{node_name}-b")
    cluster = Colocated(client, names)
    size = {"cpu": "10", "memory": "32Gi", "pods": "20"}
    for name in names:
        await objects.add_node(name, {"capacity": size, "allocatable": size, **READY})
    profile = scheduler_config("koord-scheduler")
    scheduler_token = await accounts.scheduler()
    async with (
        Recorder(own_plane.config) as recorder,
        running_manager(tmp_path, recorder.url, token=token),
        running_scheduler(tmp_path, recorder.url, profile, token=scheduler_token),
    ):
        for name in names:
            await cluster.report(name, prod=2)
        took = [await cluster.offers(name, "3k") for name in names]

        async def is_mutated() -> bool:
            return bool((await client.list(BINDINGS.collection(), OURS)).items)

        await until(is_mutated, "the profile's policy is bound")
        await asyncio.sleep(2)  # the API server compiles it
        for number in range(5):
            await cluster.batch_pod(f"b{number}")

        async def four() -> dict[str, tuple[str, str]] | None:
            found = await cluster.placed()
            return found if len(found) >= 4 else None

        placed = await until(four, "four of five pods are placed")
        assert sorted(node for _, node in placed.values()) == [names[0]] * 2 + [names[1]] * 2

        await cluster.report(names[0], prod=4)  # one report takes no more than 30 percent
        took.append(await cluster.offers(names[0], "2100"))
        await asyncio.sleep(1)  # reports have whole seconds
        await cluster.report(names[0], prod=4)
        took.append(await cluster.offers(names[0], "1k"))

        async def is_said() -> bool:
            items = (await client.list(EVENTS.collection("default"))).items
            return any(
                one["reason"] == "LessThanHeld" and one["involvedObject"]["name"] == names[0]
                for one in items
            )

        await until(is_said, "it is said that pods hold more than there is")
        assert await cluster.placed() == placed  # nobody was evicted, and the fifth waits

        await cluster.report(names[1], prod=0)
        took.append(await cluster.offers(names[1], "5k"))

        async def five() -> bool:
            return len(await cluster.placed()) == 5

        await until(five, "the fifth pod is placed")
        found = await cluster.placed()
        [last] = found.keys() - placed.keys()
        assert found[last][1] == names[1]
        assert {name: found[name] for name in placed} == placed
        assert max(took) < SOON, took
        assert [f"{one.verb} {one.path}" for one in recorder.refused] == []
