"""Gangs of a workload under two quotas, placed by koord-scheduler with the rights that ship.

The API server and its admission are real; the test stands for the controllers of workloads.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from koord.api.elasticquota import API_VERSION, CONDITIONS, KIND, NAME, PARENT, PLURAL, RUNTIME
from koord.api.podgroup import LIGHTWEIGHT_MIN_LABEL, LIGHTWEIGHT_NAME_LABEL
from koord.kube.client import PODS, ApiClient, Resource
from koord.kube.errors import KubeError, NotFound
from tests.support.processes.control_plane import running_scheduler, scheduler_config
from tests.support.processes.prometheus import free_port
from tests.support.real_apiserver.accounts import SYSTEM, Accounts
from tests.support.real_apiserver.cluster_objects import READY, SHOP, ClusterObjects
from tests.support.real_apiserver.kubectl import Kubectl
from tests.support.real_apiserver.recorder import Recorder
from tests.support.real_apiserver.served import until_served

QUOTAS, POD_GROUPS = Resource(API_VERSION, PLURAL), Resource(API_VERSION, "podgroups")
CRDS = Path(__file__).parents[2] / "deploy" / "scheduler" / "crds"
FILES = "elasticquotas.yaml", "podgroups.yaml"
COMPONENTS = "scheduler/gangs", "scheduler/quotas", "scheduler/quota-admission"
PATIENCE = 60.0  # real seconds
CONFIG = scheduler_config(
    "koord-scheduler",
    "Coscheduling",
    "ElasticQuota",
    args={"ElasticQuota": {"quotaGroupNamespace": SYSTEM}},
)


def quota(cpu: str, parent: str = "") -> dict[str, Any]:
    labels = {"labels": {PARENT: parent}} if parent else {}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": labels,
        "spec": {"min": {"cpu": "1"}, "max": {"cpu": cpu}},
    }


async def until(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Return the answer once it is a true one."""
    async with asyncio.timeout(PATIENCE):
        while not (found := await ask()):  # noqa: ASYNC110 - the server has no event to await
            await asyncio.sleep(0.2)
    return found


@pytest.fixture
async def kinds(kubectl: Kubectl, client: ApiClient) -> None:
    """The kinds that the scheduler's component installs."""
    files = [path for path in CRDS.glob("*.yaml") if path.name in FILES]
    await asyncio.to_thread(kubectl.apply, [yaml.safe_load(path.read_text()) for path in files])
    for resource in (QUOTAS, POD_GROUPS):
        await until_served(client, resource)


class Shop:
    """Workloads whose pods are gangs, and their quotas."""

    def __init__(self, client: ApiClient, objects: ClusterObjects) -> None:
        self._client, self._objects = client, objects

    async def quota(self, name: str, item: dict[str, Any]) -> None:
        made = {**item, "metadata": {"name": name, **item["metadata"]}}
        await self._objects.have(QUOTAS, name, made, namespace=SHOP)

    async def gang(self, name: str, of: str, pods: int, cpu: str) -> None:
        owner = await self._objects.add_replica_set(name, pods)
        labels = {
            "app": name,
            NAME: of,
            LIGHTWEIGHT_NAME_LABEL: name,
            LIGHTWEIGHT_MIN_LABEL: str(pods),
        }
        container = {"name": "app", "image": "app", "resources": {"requests": {"cpu": cpu}}}
        spec = {"schedulerName": "koord-scheduler", "containers": [container]}
        for number in range(pods):
            await self._objects.add_pod(
                f"{name}-{number}", spec, labels=labels, ownerReferences=[owner]
            )

    async def placed(self, name: str, pods: int) -> bool:
        """Whether all pods of a gang have a node; some without the others would be wrong."""
        listed = (await self._client.list(PODS.collection(SHOP))).items
        nodes = [
            one["spec"].get("nodeName")
            for one in listed
            if one["metadata"].get("labels", {}).get("app") == name
        ]
        return len(nodes) == pods and all(nodes)

    async def get(self, name: str, namespace: str = SHOP) -> dict[str, Any]:
        try:
            found: dict[str, Any] = await self._client.get(QUOTAS.object(name, namespace=namespace))
        except NotFound:
            return {}
        return found


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


async def test_gangs_under_two_quotas_are_placed_explained_and_helped_by_the_advice(
    client: ApiClient, objects: ClusterObjects, accounts: Accounts, recorder: Recorder,
    kinds: None, node_name: str, tmp_path: Path,
) -> None:  # fmt: skip
    shop = Shop(client, objects)
    for number in range(2):
        status = {**READY, "allocatable": {"cpu": "6", "memory": "16Gi", "pods": "50"}}
        await objects.add_node(
            f"{node_name}-{number}", {**status, "capacity": status["allocatable"]}
        )
    token = await accounts.scheduler(*COMPONENTS)
    await shop.quota("team-a", quota("6"))
    await shop.quota("team-b", quota("3"))
    await shop.quota("lost", quota("3", parent="nobody"))
    port = free_port()
    async with running_scheduler(tmp_path, recorder.url, CONFIG, port=port, token=token):
        await shop.gang("trainer", "team-a", 3, "2")
        await shop.gang("server", "team-b", 2, "2")
        await until(lambda: shop.placed("trainer", 3))

        async def says() -> list[str]:
            both = [await explained(port, f"server-{number}") for number in range(2)]
            return [text for found in both for text in found if "team-b" in text]

        found = await until(says)
        assert any("quota team-b (level 1 of 1) lacks 1 cpu" in text for text in found), found
        assert any("spec.max.cpu of quota team-b: 4 instead of 3" in text for text in found), found
        listed = (await client.list(PODS.collection(SHOP))).items
        assert not [
            one for one in listed
            if one["metadata"]["name"].startswith("server") and one["spec"].get("nodeName")
        ]  # fmt: skip

        async def used() -> bool:
            return (await shop.get("team-a")).get("status", {}).get("used") == {"cpu": "6"}

        await until(used)
        annotations = (await shop.get("team-a"))["metadata"]["annotations"]
        assert json.loads(annotations[RUNTIME])["cpu"] == "6"

        async def conditions() -> list[dict[str, Any]]:
            meta = (await shop.get("lost"))["metadata"]
            found: list[dict[str, Any]] = json.loads(
                meta.get("annotations", {}).get(CONDITIONS, "[]")
            )
            return found

        (condition,) = await until(conditions)
        assert condition["type"] == "Invalid"
        assert "parentName nobody" in condition["message"]
        assert await shop.get("koordinator-default-quota", SYSTEM)

        await shop.quota("team-b", {"metadata": {}, "spec": {"max": {"cpu": "4"}}})
        await until(lambda: shop.placed("server", 2))

        async def refused() -> str:  # the API server learns of a policy in its own time
            try:
                await shop.quota("team-a", {"metadata": {}, "spec": {"min": {"cpu": "-1"}}})
            except KubeError as err:
                return str(err)
            return ""

        assert "quota.Spec.Min's value < 0" in await until(refused)
    for name in ("root", "system", "default"):
        path = QUOTAS.object(f"koordinator-{name}-quota", namespace=SYSTEM)
        with pytest.raises(KubeError, match="can not delete quotaGroup"):
            await client.delete(path)
    await accounts.remove()
    for name in ("root", "system", "default"):
        path = QUOTAS.object(f"koordinator-{name}-quota", namespace=SYSTEM)
        await until(lambda path=path: _deleted(client, path))


async def _deleted(client: ApiClient, path: str) -> bool:
    """Whether an object is gone; the policy that keeps it is known for a while after its end."""
    try:
        await client.delete(path)
    except NotFound:
        return True
    except KubeError:
        return False
    return True
