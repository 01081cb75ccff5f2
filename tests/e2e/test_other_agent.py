"""Two agents and one NodeMetric on a real API server, which keeps account of who writes."""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from koord.kube.client import NODE_METRICS, ApiClient
from koordlet.plugin.testing import FakeHost
from tests.support.processes.agent import running
from tests.support.real_apiserver.accounts import Accounts
from tests.support.real_apiserver.cluster_objects import ClusterObjects
from tests.support.real_apiserver.recorder import Recorder

TIMEOUT = 60.0  # real seconds


class OtherAgent:
    """Reports as Koordinator's agent does, under its name, with a usage of its own."""

    def __init__(self, client: ApiClient, name: str, uid: str) -> None:
        self._client, self._uid = client, uid
        self._path = NODE_METRICS.object(name, subresource="status")
        self._usage = itertools.count(1)

    async def report(self) -> None:
        usage = {"resources": {"cpu": str(next(self._usage)), "memory": "1Gi"}}
        status = {"nodeMetric": {"nodeUsage": usage}, "updateTime": "2026-01-01T00:00:00Z"}
        await self._client.replace_status(self._path, self._uid, status, field_manager="koordlet")

    async def run(self) -> None:
        while True:
            await self.report()
            await asyncio.sleep(1.5)


@pytest.fixture
async def other(client: ApiClient, node_name: str) -> OtherAgent:
    """The agent that was here first, and its report."""
    metric = await client.create(
        NODE_METRICS.collection(),
        {
            "apiVersion": NODE_METRICS.api_version,
            "kind": "NodeMetric",
            "metadata": {"name": node_name},
            "spec": {"metricCollectPolicy": {"reportIntervalSeconds": 30}},
        },
    )
    other = OtherAgent(client, node_name, metric["metadata"]["uid"])
    await other.report()
    return other


class Daemon:
    """The process's answers over its control socket and its port."""

    def __init__(self, directory: Path) -> None:
        self._socket = directory / "run" / "ctl.sock"

    async def observe_only(self) -> str:
        return str((await self._status())["observe_only"])

    async def left(self) -> bool:
        """Whether it has made a report that it did not write."""
        url = f"http://{(await self._status())['address']}/internal-metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return 'koordlet_report_rounds_total{outcome="left"}' in await answer.text()

    async def _status(self) -> dict[str, Any]:
        connector = aiohttp.UnixConnector(str(self._socket))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get("http://koordlet/status") as answer,
        ):
            status: dict[str, Any] = await answer.json()
            return status


async def writers(client: ApiClient, name: str) -> set[str]:
    metric = await client.get(NODE_METRICS.object(name))
    entries = metric["metadata"]["managedFields"]
    return {entry["manager"] for entry in entries if entry.get("subresource") == "status"}


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not await condition():  # noqa: ASYNC110 - the daemon has no event to await
            await asyncio.sleep(0.1)


async def test_ours_leaves_the_reports_to_the_one_that_writes_them(
    tmp_path: Path, recorder: Recorder, client: ApiClient, objects: ClusterObjects,
    accounts: Accounts, node_name: str, other: OtherAgent,
    eventually: Callable[[Callable[[], bool]], Awaitable[None]],
) -> None:  # fmt: skip
    """But not for what another one has left behind."""
    host, daemon = FakeHost(tmp_path / "host"), Daemon(tmp_path)
    patch = NODE_METRICS.object(node_name, subresource="status")
    await objects.add_node(node_name, {"capacity": {"cpu": "4", "memory": "16Gi"}})
    token = await accounts.agent(node_name, "manager-duties", "pods-from-api-server")
    flag = "--disable-query-kubelet-config"
    async with running(tmp_path, host, recorder.url, node_name, flag, token=token):
        await eventually(lambda: recorder.asked("patch", patch) != [])
        assert "koordlet-reporter" in await writers(client, node_name)
        assert await daemon.observe_only() == ""

        reporting = asyncio.create_task(other.run())
        await until(daemon.observe_only)
        found = "koordlet writes the status of this node's NodeMetric, too"
        assert await daemon.observe_only() == found
        ours = len(recorder.asked("patch", patch))
        await until(daemon.left)
        assert len(recorder.asked("patch", patch)) == ours
        reporting.cancel()

    events = [json.loads(line)["event"] for line in (tmp_path / "log").read_text().splitlines()]
    assert events.count("other_agent.detected") == 1
