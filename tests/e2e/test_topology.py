"""A node's topology on a real API server: written once, kept right, others left alone."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.kube.client import NODE_TOPOLOGIES, NODES, ApiClient, Resource
from koord.kube.errors import NotFound
from koordlet.plugin.testing import FakeHost
from tests.support.kube.certificates import Authority
from tests.support.kube.kubelet import Kubelet, make_kubelet, rbac
from tests.support.processes.agent import running
from tests.support.programs import REPOSITORY
from tests.support.real_apiserver.accounts import Accounts
from tests.support.real_apiserver.cluster_objects import ClusterObjects
from tests.support.real_apiserver.recorder import Recorder

TIMEOUT = 60.0  # real seconds
QUIET = 8.0  # real seconds: more than two rounds
OFF = "--manager-duties=off"
POOLS = "node.koordinator.sh/cpu-shared-pools"
POLICY = "kubelet.koordinator.sh/cpu-manager-policy"
RESERVATION = "node.koordinator.sh/reservation"


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    """A kubelet with the static CPU manager, over HTTPS with a CA of its own."""
    kubelet = make_kubelet(Authority(tmp_path))
    kubelet.config = {
        "cpuManagerPolicy": "static",
        "reservedSystemCPUs": "0",
        "topologyManagerPolicy": "restricted",
        "topologyManagerScope": "pod",
    }
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


class Agent:
    """Starts the daemon on one node, and reads the topology that it has written."""

    def __init__(
        self, directory: Path, client: ApiClient, recorder: Recorder, node: str, token: str
    ) -> None:
        self.directory, self.client, self.recorder, self.node = directory, client, recorder, node
        self._token = token
        self.host = FakeHost(directory / "host", cpus=4)
        checkpoint = {"policyName": "static", "entries": {"p": {"c": "3"}}}
        self.host.write("kubelet/cpu_manager_state", json.dumps(checkpoint))

    def running(self) -> Any:
        ca = f"--kubelet-ca-file={self.directory / 'ca.crt'}"
        return running(
            self.directory, self.host, self.recorder.url, self.node, ca, OFF, token=self._token
        )

    def writes(self) -> list[str]:
        path = NODE_TOPOLOGIES.collection()
        return [
            entry.verb
            for entry in self.recorder.requests
            if entry.path.startswith(path) and entry.method != "GET"
        ]

    async def object(self) -> dict[str, Any]:
        return await self.client.get(NODE_TOPOLOGIES.object(self.node))

    async def damage(self, *operations: dict[str, Any]) -> None:
        """What others write, past our daemon's eyes."""
        await self.client.json_patch(NODE_TOPOLOGIES.object(self.node), operations)

    async def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(TIMEOUT):
            while True:
                try:
                    found = await self.object()
                except NotFound:
                    found = {}
                if found and holds(found):
                    return found
                await asyncio.sleep(0.1)


@pytest.fixture
async def agent(
    tmp_path: Path, client: ApiClient, recorder: Recorder, objects: ClusterObjects,
    accounts: Accounts, kubelet: Kubelet, node_name: str,
) -> Agent:  # fmt: skip
    status = {"capacity": {"cpu": "4", "memory": "16Gi"}, **kubelet.status}
    annotations = {RESERVATION: '{"reservedCPUs":"1"}'}
    await objects.add_node(node_name, status, annotations=annotations)
    kubelet.token = await accounts.agent(node_name, "pods-from-api-server")
    return Agent(tmp_path, client, recorder, node_name, kubelet.token)


def allowed(resource: Resource) -> set[str]:
    """The verbs that the shipped role has for a kind of object."""
    rules = [
        rule
        for document in yaml.safe_load_all((REPOSITORY / "deploy" / "rbac.yaml").read_text())
        for rule in document.get("rules", ())
    ]
    return {
        verb for rule in rules if resource.plural in rule["resources"] for verb in rule["verbs"]
    }


def pools(found: dict[str, Any]) -> Any:
    return json.loads(found["metadata"]["annotations"].get(POOLS, "{}"))


def no_cpu(found: dict[str, Any]) -> bool:
    return all(resource["name"] != "cpu" for resource in found["zones"][0]["resources"])


RIGHT = [{"socket": 0, "node": 0, "cpuset": "0,2"}]  # 1 is reserved, 3 is a pod's


async def test_it_is_written_once_and_kept_right(
    agent: Agent, kubelet: Kubelet, recorder: Recorder, node_name: str
) -> None:
    """Made whole, not written while nothing changes, put right when it was damaged or deleted."""
    async with agent.running():
        found = await agent.until(lambda found: pools(found) == RIGHT)
        await asyncio.sleep(QUIET)
        assert agent.writes() == ["create"]

        meta = found["metadata"]
        node = await agent.client.get(NODES.object(node_name))
        assert [(owner["kind"], owner["uid"]) for owner in meta["ownerReferences"]] == [
            ("Node", node["metadata"]["uid"])
        ]
        assert json.loads(meta["annotations"][POLICY]) == {"policy": "static", "reservedCPUs": "0"}
        assert found["topologyPolicies"] == ["RestrictedPodLevel"]
        [zone] = found["zones"]
        assert {each["name"]: each["allocatable"] for each in zone["resources"]} == {
            "cpu": "4",
            "hugepages-1Gi": "0",
            "hugepages-2Mi": "0",
            "memory": "16Gi",
        }

        batch = {"name": "kubernetes.io/batch-cpu"}
        batch |= dict.fromkeys(("capacity", "allocatable", "available"), "1k")
        await agent.damage(
            {"op": "add", "path": "/metadata/annotations/theirs", "value": "kept"},
            {"op": "add", "path": "/zones/0/resources/-", "value": batch},
        )
        await asyncio.sleep(QUIET)
        assert agent.writes() == ["create"]

        await agent.damage(
            {"op": "remove", "path": f"/metadata/annotations/{POOLS.replace('/', '~1')}"},
            {"op": "remove", "path": "/zones/0/resources/0"},
        )
        right = await agent.until(lambda found: pools(found) == RIGHT and not no_cpu(found))
        assert agent.writes() == ["create", "patch"]
        assert right["metadata"]["annotations"]["theirs"] == "kept"
        assert batch in right["zones"][0]["resources"]
        assert right["metadata"]["uid"] == meta["uid"]

        await agent.client.delete(NODE_TOPOLOGIES.object(node_name))
        again = await agent.until(lambda found: pools(found) == RIGHT)
        assert again["metadata"]["uid"] != meta["uid"]

    for entry in recorder.requests:
        name = entry.json["metadata"]["name"] if entry.verb == "create" else entry.path
        assert node_name in entry.query.get("fieldSelector", name)
    asked = {entry.verb for entry in recorder.requests if NODE_TOPOLOGIES.plural in entry.path}
    assert asked == allowed(NODE_TOPOLOGIES)
    assert ("get", "nodes/configz") in {rbac(entry) for entry in kubelet.requests}
    assert "nodes/proxy" not in {rbac(entry)[1] for entry in kubelet.requests}


async def test_a_restart_writes_nothing(agent: Agent, kubelet: Kubelet, node_name: str) -> None:
    """The topology is still right, also while the kubelet refuses: its checkpoint is enough."""
    async with agent.running():
        reported = await agent.until(lambda found: pools(found) == RIGHT)
    await kubelet.stop()

    async with agent.running():
        await asyncio.sleep(QUIET)
        before = agent.writes()
        reserved = {"annotations": {RESERVATION: '{"reservedCPUs":"0-1"}'}}
        await agent.client.merge_patch(NODES.object(node_name), {"metadata": reserved})
        found = await agent.until(lambda found: pools(found) != RIGHT)
    assert before == ["create"]
    assert pools(found) == [{"socket": 0, "node": 0, "cpuset": "2"}]
    for key in (POLICY, "node.koordinator.sh/pod-cpu-allocs"):
        assert found["metadata"]["annotations"][key] == reported["metadata"]["annotations"][key]
    assert found["topologyPolicies"] == ["RestrictedPodLevel"]
