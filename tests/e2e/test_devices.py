"""A node's devices on a real API server: written once, kept right, others left alone."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.kube.client import DEVICES, NODES, ApiClient
from koord.kube.errors import NotFound
from koordlet.plugin.testing import FakeHost
from tests.support.node.nvml_stub import NvmlStub, add_driver, add_pci_device, gpu
from tests.support.processes.agent import running
from tests.support.programs import REPOSITORY
from tests.support.real_apiserver.accounts import Accounts
from tests.support.real_apiserver.cluster_objects import ClusterObjects
from tests.support.real_apiserver.recorder import Recorder

TIMEOUT = 60.0  # real seconds
QUIET = 8.0  # real seconds: more than two rounds
FLAGS = (
    "--manager-duties=off",
    "--kubelet-sync-interval=0",
    "--disable-query-kubelet-config",
    "--feature-gates=Accelerators=true,RDMADevices=true,NodeTopologyReport=false",
)


class Agent:
    """Starts the daemon on one node with GPUs, and reads the devices that it has written."""

    def __init__(
        self,
        directory: Path,
        client: ApiClient,
        recorder: Recorder,
        node: str,
        token: str,
        patch: pytest.MonkeyPatch,
    ) -> None:
        self.directory, self.client, self.recorder, self.node = directory, client, recorder, node
        self._token = token
        self.host = FakeHost(directory / "host", cpus=4)
        self.nvml = NvmlStub(directory)
        patch.setenv("LD_LIBRARY_PATH", str(self.nvml.directory))
        self.nvml.say(gpu(0), gpu(1))
        sys = self.host.paths.sys
        add_driver(sys)
        for number in range(2):
            add_pci_device(sys, f"0000:{0x3B + number:02x}:00.0", numa=number)
        self._add_card(sys)

    def _add_card(self, sys: Path) -> None:
        real = add_pci_device(sys, "0000:09:00.0", root="pci0000:00")
        (real / "class").write_text("0x020700\n")
        self.port = real / "infiniband/mlx5_0/ports/1/state"
        self.port.parent.mkdir(parents=True)
        self.port.write_text("4: ACTIVE\n")
        (real / "infiniband/mlx5_0/device").symlink_to(real)
        (sys / "class/infiniband").mkdir(parents=True)
        (sys / "class/infiniband/mlx5_0").symlink_to(real / "infiniband/mlx5_0")

    def running(self) -> Any:
        return running(
            self.directory, self.host, self.recorder.url, self.node, *FLAGS, token=self._token
        )

    def writes(self) -> list[str]:
        path = DEVICES.collection()
        return [
            entry.verb
            for entry in self.recorder.requests
            if entry.path.startswith(path) and entry.method != "GET"
        ]

    async def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The object, as soon as it is as it should be."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                try:
                    found: dict[str, Any] = await self.client.get(DEVICES.object(self.node))
                except NotFound:
                    found = {}
                if found and holds(found):
                    return found
                await asyncio.sleep(0.1)

    async def damage(self, *operations: dict[str, Any]) -> None:
        """What others write, past our daemon's eyes."""
        await self.client.json_patch(DEVICES.object(self.node), operations)


@pytest.fixture
async def agent(
    tmp_path: Path, client: ApiClient, recorder: Recorder, objects: ClusterObjects,
    accounts: Accounts, node_name: str, monkeypatch: pytest.MonkeyPatch,
) -> Agent:  # fmt: skip
    await objects.add_node(node_name, {"capacity": {"cpu": "4", "memory": "16Gi"}})
    token = await accounts.agent(node_name, "devices", "pods-from-api-server")
    return Agent(tmp_path, client, recorder, node_name, token, monkeypatch)


def health(found: dict[str, Any]) -> dict[str, bool]:
    return {each["id"]: each["health"] for each in found["spec"]["devices"]}


def is_whole(found: dict[str, Any]) -> bool:
    return health(found) == {"GPU-0000": True, "GPU-0001": True, "0000:09:00.0": True}


def allowed() -> set[str]:
    """The verbs that the component's role has."""
    text = (REPOSITORY / "deploy/devices/kustomization.yaml").read_text()
    [patch] = yaml.safe_load(text)["patches"]
    [operation] = yaml.safe_load(patch["patch"])
    return set(operation["value"]["verbs"])


async def test_it_is_written_and_kept_right(
    agent: Agent, recorder: Recorder, node_name: str
) -> None:
    """Made whole, not written while nothing changes, put right when it was damaged or deleted."""
    async with agent.running():
        found = await agent.until(is_whole)
        first = agent.writes()
        assert first in (["create"], ["create", "patch"])  # RDMA may be known before NVML answers
        await asyncio.sleep(QUIET)
        assert agent.writes() == first

        meta = found["metadata"]
        node = await agent.client.get(NODES.object(node_name))
        assert [owner["uid"] for owner in meta["ownerReferences"]] == [node["metadata"]["uid"]]
        assert meta["labels"]["node.koordinator.sh/gpu-model"] == "A100-SXM4-80GB"
        assert meta["labels"]["node.koordinator.sh/gpu-driver-version"] == "550.90.07"
        assert found["spec"]["devices"][1]["topology"] == {
            "socketID": -1,
            "nodeID": 1,
            "pcieID": "pci0000:3a",
            "busID": "0000:3c:00.0",
        }

        fpga = {"type": "fpga", "id": "f", "minor": 0, "health": True}
        await agent.damage(
            {"op": "add", "path": "/metadata/labels/theirs", "value": "kept"},
            {"op": "add", "path": "/metadata/annotations", "value": {"theirs": "kept"}},
            {"op": "add", "path": "/spec/devices/0", "value": fpga},
        )
        await asyncio.sleep(QUIET)
        assert agent.writes() == first

        await agent.damage(
            {"op": "remove", "path": "/spec/devices/1"},
            {"op": "remove", "path": "/metadata/labels/node.koordinator.sh~1gpu-vendor"},
        )
        right = await agent.until(lambda found: len(health(found)) == 4)
        assert right["metadata"]["labels"]["theirs"] == "kept"
        assert right["metadata"]["annotations"] == {"theirs": "kept"}
        assert right["metadata"]["labels"]["node.koordinator.sh/gpu-vendor"] == "nvidia"
        assert agent.writes() == [*first, "patch"]

        await agent.client.delete(DEVICES.object(node_name))
        again = await agent.until(is_whole)
        assert again["metadata"]["uid"] != meta["uid"]

    for entry in recorder.requests:
        name = entry.json["metadata"]["name"] if entry.verb == "create" else entry.path
        assert node_name in entry.query.get("fieldSelector", name)
    asked = {entry.verb for entry in recorder.requests if DEVICES.collection() in entry.path}
    assert asked == allowed()


async def test_devices_fail_hang_and_vanish(agent: Agent) -> None:
    """Health follows; while NVML hangs all stays as it is, and afterwards it goes on."""
    async with agent.running():
        await agent.until(is_whole)
        agent.nvml.say(gpu(0), gpu(1), "xid 1 79")
        agent.port.write_text("1: DOWN\n")
        sick = {"GPU-0000": True, "GPU-0001": False, "0000:09:00.0": False}
        found = await agent.until(lambda found: health(found) == sick)
        reasons = {each["id"]: each["conditions"][0]["reason"] for each in found["spec"]["devices"]}
        assert reasons["GPU-0001"] == "Xid79"
        assert reasons["0000:09:00.0"] == "PortNotActive"

        writes = agent.writes()
        agent.nvml.say(gpu(0), gpu(1), "hang nvmlEventSetWait_v2")
        await asyncio.sleep(QUIET)
        assert agent.writes() == writes
        agent.nvml.say(gpu(0))
        gone = {"GPU-0000": True, "0000:09:00.0": False}
        await agent.until(lambda found: health(found) == gone)
    log = [json.loads(line) for line in (agent.directory / "log").read_text().splitlines()]
    events = [line["event"] for line in log]
    assert "gpu.not_answering" in events
    assert "gpu.unhealthy" in events
    assert "gpu.removed" in events


async def test_a_restart_writes_nothing(agent: Agent) -> None:
    """What is published is still right, also while NVML does not answer yet."""
    async with agent.running():
        await agent.until(is_whole)
    writes = agent.writes()
    agent.nvml.say(gpu(0), gpu(1), "hang nvmlInitWithFlags")
    async with agent.running():
        await asyncio.sleep(QUIET)
        agent.nvml.say(gpu(0), gpu(1))
        await asyncio.sleep(QUIET)
    assert agent.writes() == writes
