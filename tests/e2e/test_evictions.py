"""A third party's plugin evicts pods through the real process, which keeps its own rules."""

import asyncio
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from koord.kube.client import PODS, ApiClient, Resource
from koordlet.plugin.testing import FakeHost
from tests.support.processes.agent import running
from tests.support.real_apiserver.accounts import Accounts
from tests.support.real_apiserver.cluster_objects import READY, SHOP, ClusterObjects
from tests.support.real_apiserver.recorder import Recorder

PLUGIN = """
    from koordlet.plugin import ExtensionPlugin

    class Reaper(ExtensionPlugin):
        def setup(self, client, metric_cache, states_informer):
            self.states = states_informer

        async def run(self, stop):
            async for turn in stop.every(0.3):
                for pod in sorted(self.states.pods(), key=lambda each: each.pod.name):
                    if "reap" in pod.pod.labels:
                        await self.evict(pod, reason=f"turn {turn}")
"""
BUDGETS = Resource("policy/v1", "poddisruptionbudgets")
CONTAINER = {"name": "app", "image": "app", "resources": {"requests": {"cpu": "100m"}}}
TIMEOUT = 60.0  # real seconds
COMPONENTS = ("evictions", "events", "manager-duties", "pods-from-api-server")


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin as pip would install it."""
    info = tmp_path / "site" / "reaper-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reaper\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[koordlet.qos_plugins]\nReaper = reaper:Reaper\n")
    (tmp_path / "site" / "reaper.py").write_text(textwrap.dedent(PLUGIN))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))


class Shop:
    """The pods on our node, in the API server and on the host."""

    def __init__(self, objects: ClusterObjects, client: ApiClient, host: FakeHost, node: str):
        self._objects, self._client, self._host, self._node = objects, client, host, node

    async def add_pod(self, name: str, **labels: str) -> str:
        """Return the uid of a new pod that runs."""
        statuses = [{"name": "app", "containerID": f"containerd://c-{name}"}]
        made = await self._objects.add_pod(
            name,
            {"nodeName": self._node, "containers": [CONTAINER]},
            {**READY, "phase": "Running", "containerStatuses": statuses},
            labels=labels,
        )
        uid: str = made["metadata"]["uid"]
        self._host.add_pod(uid, containers=(f"c-{name}",))
        return uid

    async def guard(self, **labels: str) -> None:
        """Have a budget by which none of these pods may go, as its controller works it out."""
        spec = {"minAvailable": 2, "selector": {"matchLabels": labels}}
        await self._objects.have(BUDGETS, "two", {"spec": spec}, namespace=SHOP)
        status = {
            "observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": 1,
            "desiredHealthy": 2, "expectedPods": 1,
        }  # fmt: skip
        path = BUDGETS.object("two", namespace=SHOP, subresource="status")
        await self._client.merge_patch(path, {"status": status})


async def explain(directory: Path, *pod: str) -> Any:
    """What koordletctl says."""
    command = [sys.executable, "-m", "koordlet.cli.koordletctl", "--output=json",
               f"--run-dir={directory / 'run'}", "explain", *pod]  # fmt: skip
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, check=True, env=os.environ
    )
    return json.loads(done.stdout)


async def until(ask: Callable[[], Awaitable[object]], answer: object) -> None:
    async with asyncio.timeout(TIMEOUT):
        while await ask() != answer:  # noqa: ASYNC110 - the server has no event to await
            await asyncio.sleep(0.1)


async def test_a_plugin_evicts_within_the_rules(
    tmp_path: Path, recorder: Recorder, client: ApiClient, objects: ClusterObjects,
    accounts: Accounts, node_name: str, plugin: None,
) -> None:  # fmt: skip
    """Once per pod, not against a disruption budget, and after kill -9 not beyond the node's."""
    host = FakeHost(tmp_path / "host")
    await objects.add_node(node_name, {"capacity": {"cpu": "4", "memory": "16Gi"}})
    shop = Shop(objects, client, host, node_name)
    await objects.add_namespace(SHOP)
    await shop.guard(app="guarded")
    uids = {
        "victim": await shop.add_pod("victim", reap="yes"),
        "guarded": await shop.add_pod("guarded", reap="yes", app="guarded"),
    }
    await shop.add_pod("bystander")
    token = await accounts.agent(node_name, *COMPONENTS)
    flags = ("--feature-gates=Reaper=true,NodeTopologyReport=false", "--evict-budget-per-hour=1",
             "--disable-query-kubelet-config")  # fmt: skip

    async with running(tmp_path, host, recorder.url, node_name, *flags, token=token) as daemon:
        await until(lambda: objects.reported("evictPodSuccess"), ["victim"])
        await until(lambda: objects.reported("evictPodFail"), ["guarded"])
        assert await objects.names() == ["bystander", "guarded"]
        asked = [entry for entry in recorder.asked("create") if entry.path.endswith("/eviction")]
        assert {entry.path: entry.json["deleteOptions"] for entry in asked} == {
            PODS.object(name, namespace=SHOP, subresource="eviction"): {
                "preconditions": {"uid": uid}
            }
            for name, uid in uids.items()
        }
        assert len(asked) == 2
        found = await explain(tmp_path, "shop/guarded")
        assert found["evictionBudget"] == {"perHour": 1, "used": 1}
        [decision] = found["decisions"]
        assert (decision["plugin"], decision["outcome"]) == ("Reaper", "refused")
        assert "needs 2 healthy pods" in decision["message"]
        daemon.kill()
        await daemon.wait()

    await shop.add_pod("second", reap="yes")
    async with running(tmp_path, host, recorder.url, node_name, *flags, token=token):
        await until(lambda: objects.reported("evictPodFail"), ["guarded", "second"])
        assert "second" in await objects.names()
        outcomes = {each["pod"]: each["outcome"] for each in (await explain(tmp_path))["decisions"]}
        assert outcomes["shop/second"] == "over_budget"
