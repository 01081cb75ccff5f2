"""Each expression of deploy/dashboards and each recording rule, asked of the real Prometheus.

It scrapes a real agent on a host of files, the families of an agent that has measured everything,
and the real processes of the control plane.
"""

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from reference.alerting.recording import (
    AGENT_RECORDINGS,
    DESCHEDULER_RECORDINGS,
    MANAGER_RECORDINGS,
    SCHEDULER_RECORDINGS,
    Recording,
)
from reference.dashboards.agent import FLEET_BOARD, NODE_BOARD, PLUGINS_BOARD
from reference.dashboards.board import Board, Panel, Query
from reference.dashboards.controlplane import DESCHEDULER_BOARD, MANAGER_BOARD, SCHEDULER_BOARD

from koord.api.nodemetric import time_text
from koord.kube.client import CONFIG_MAPS, NODE_METRICS, ApiClient
from koord.kube.errors import NotFound
from tests.support.processes.agent import running_alone
from tests.support.processes.control_plane import running_control_plane, running_manager
from tests.support.processes.prometheus import free_port, scraping
from tests.support.programs import REPOSITORY
from tests.support.real_apiserver.accounts import Accounts
from tests.support.real_apiserver.cluster_objects import READY, ClusterObjects
from tests.support.real_apiserver.control_plane import ControlPlane, missing
from tests.support.real_apiserver.recorder import Recorder

TIMEOUT = 90.0  # real seconds
MEASURED, REAL = "node", "real"  # of the families of all that can be measured; of the real agent
SELDOM = {
    "cluster:koordlet_evictions:increase5m": "no pod was to be evicted yet",
    "cluster:koordlet_kube_requests:rate5m": "agents are standalone",
    "cluster:descheduler_pods_evicted:increase5m": "no pod was evicted yet",
}
EXPOSITION = """
import sys
from prometheus_client import CollectorRegistry, generate_latest
from reference.fakedaemon import measured_exposition
exposition = measured_exposition()
class Seen:
    def collect(self):
        for registry in (exposition.internal, exposition.external):
            yield from registry.collect()
        yield from (family for _, family in exposition.seen.values())
registry = CollectorRegistry(auto_describe=False)
registry._collector_to_names[Seen()] = []
sys.stdout.buffer.write(generate_latest(registry))
"""


@pytest.fixture(scope="session", autouse=True)
def prometheus() -> None:
    """Only where it is installed; in CI it must be."""
    if lacking := missing("prometheus"):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs {lacking}")


@pytest.fixture(scope="session")
def measured() -> bytes:
    """The metrics of an agent that has measured everything on a host of files."""
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY / "docs")}
    done = subprocess.run(
        [sys.executable, "-c", EXPOSITION],
        cwd=REPOSITORY,
        env=environ,
        capture_output=True,
        timeout=120,
        check=True,
    )
    return done.stdout


@contextlib.asynccontextmanager
async def serving(body: bytes) -> AsyncIterator[str]:
    """Answer scrapes with it. Yields host:port."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def filled(expr: str, node: str) -> str:
    """The expression with the values of its variables."""
    values = {"$__rate_interval": "10s", "$node": node, "$plugin": ".*"}
    for name, value in values.items():
        expr = expr.replace(name, value)
    return expr


async def answer_of(session: aiohttp.ClientSession, url: str, expr: str) -> list[Any]:
    """The samples of an expression now. A query that is wrong fails."""
    async with session.get(f"{url}/api/v1/query", params={"query": expr}) as answer:
        found = await answer.json()
    assert found["status"] == "success", f"{expr}: {found.get('error')}"
    samples: list[Any] = found["data"]["result"]
    return samples


async def without_data(url: str, asked: list[tuple[Panel, Query]], nodes: list[str]) -> list[str]:
    """The expressions that return nothing, when all have had time to return something."""
    async with aiohttp.ClientSession() as session:
        empty = asked
        for _ in range(int(TIMEOUT)):
            empty = [
                (panel, query)
                for panel, query in empty
                if not any(
                    [await answer_of(session, url, filled(query.expr, node)) for node in nodes]
                )
            ]
            if all(panel.sometimes for panel, _ in empty):
                break
            await asyncio.sleep(1.0)
    return [f"{panel.title}: {query.expr}" for panel, query in empty if not panel.sometimes]


def queries(*boards: Board) -> list[tuple[Panel, Query]]:
    return [each for board in boards for each in board.queries()]


def rules(*recordings: Recording) -> list[tuple[Panel, Query]]:
    """As if they were on a dashboard."""
    return [
        (
            Panel(each.name, each.meaning, "short", (query,), sometimes=SELDOM.get(each.name, "")),
            query,
        )
        for each in recordings
        for query in (Query(each.expr, ""),)
    ]


async def test_all_expressions_on_agents_return_data(tmp_path: Path, measured: bytes) -> None:
    """Of the real agent, or, what needs hardware or a gate, of the one that has measured all."""
    asked = queries(NODE_BOARD, FLEET_BOARD, PLUGINS_BOARD) + rules(*AGENT_RECORDINGS)
    agent = running_alone(tmp_path / "agent", REAL)
    async with serving(measured) as everything, agent as real:
        targets = {MEASURED: everything, REAL: real}
        async with scraping(tmp_path / "prometheus", targets) as (url, _):
            assert await without_data(url, asked, [MEASURED, REAL]) == []


async def test_a_panel_that_shows_nothing_is_found(tmp_path: Path, measured: bytes) -> None:
    """This test can fail; what is wrong PromQL fails at once."""
    [first, *_] = NODE_BOARD.sections[0].panels
    nothing = replace(first, queries=(Query('koordlet_start_time{node="x"}', ""),))
    async with (
        serving(measured) as target,
        scraping(tmp_path / "prometheus", {MEASURED: target}) as (url, _),
        aiohttp.ClientSession() as session,
    ):
        assert await answer_of(session, url, nothing.queries[0].expr) == []
        with pytest.raises(AssertionError, match="parse error"):
            await answer_of(session, url, "rate(koordlet_start_time[5m)")


@pytest.fixture
async def cluster(objects: ClusterObjects, own_plane: ControlPlane) -> ClusterObjects:
    """A cluster with two nodes, and pods of which one fits on neither."""
    room = {"cpu": "8", "memory": "16Gi", "pods": "110"}
    for name in ("n1", "n2"):
        await objects.add_node(name, {**READY, "capacity": room})
    await objects.add_pod("large", pending("1000"))
    return objects


def pending(cpu: str) -> dict[str, Any]:
    """The spec of a pod that waits for koord-scheduler."""
    container = {"name": "app", "image": "app", "resources": {"requests": {"cpu": cpu}}}
    return {"schedulerName": "koord-scheduler", "containers": [container]}


async def _keep_coming(cluster: ClusterObjects) -> None:
    for number in itertools.count(1):
        await cluster.add_pod(f"small-{number}", pending("10m"))
        await asyncio.sleep(0.5)


async def test_all_expressions_on_the_control_plane_return_data(
    tmp_path: Path, cluster: ClusterObjects, recorder: Recorder, accounts: Accounts
) -> None:
    """While pods come, of which one fits nowhere."""
    asked = queries(DESCHEDULER_BOARD, SCHEDULER_BOARD)
    asked += rules(*DESCHEDULER_RECORDINGS, *SCHEDULER_RECORDINGS)
    tokens = (await accounts.descheduler(), await accounts.scheduler())
    coming = asyncio.create_task(_keep_coming(cluster))
    try:
        async with (
            running_control_plane(tmp_path, recorder.url, tokens) as targets,
            scraping(tmp_path / "prometheus", {}, targets) as (url, _),
        ):
            assert await without_data(url, asked, [""]) == []
    finally:
        coming.cancel()


async def _report_of(client: ApiClient, node: str, cores: int) -> None:
    """Write a report as an agent does, once there is an object for it."""
    try:
        metric = await client.get(NODE_METRICS.object(node))
    except NotFound:
        return
    usage = {"resources": {"cpu": str(cores), "memory": "1Gi"}}
    status = {
        "updateTime": time_text(time.time()),
        "nodeMetric": {"nodeUsage": usage, "systemUsage": usage},
    }
    path = NODE_METRICS.object(node, subresource="status")
    await client.replace_status(path, metric["metadata"]["uid"], status)


async def _keep_reporting(client: ApiClient) -> None:
    for number in itertools.count():
        for node in ("n1", "n2"):
            await _report_of(client, node, 1 + number % 4)
        await asyncio.sleep(1.0)


async def test_all_expressions_on_the_manager_return_data(
    tmp_path: Path, cluster: ClusterObjects, client: ApiClient, recorder: Recorder,
    manager_token: str,
) -> None:  # fmt: skip
    """While reports come that say now more, now less."""
    asked = queries(MANAGER_BOARD) + rules(*MANAGER_RECORDINGS)
    config = {"metadata": {"name": "slo-controller-config"},
              "data": {"colocation-config": '{"enable": true}'}}  # fmt: skip
    await client.create(CONFIG_MAPS.collection("koordinator-system"), config)
    coming = asyncio.create_task(_keep_reporting(client))
    port = free_port()
    target = {"koord-manager": f"127.0.0.1:{port}"}
    try:
        async with (
            running_manager(tmp_path, recorder.url, f"--port={port}", token=manager_token),
            scraping(tmp_path / "prometheus", {}, target) as (url, _),
        ):
            assert await without_data(url, asked, [""]) == []
    finally:
        coming.cancel()
        path = CONFIG_MAPS.object("slo-controller-config", namespace="koordinator-system")
        await client.delete(path)


@pytest.fixture
def files() -> dict[str, Any]:
    """The files that Grafana gets, by name."""
    found = sorted((REPOSITORY / "deploy" / "dashboards").glob("*.json"))
    return {path.stem: json.loads(path.read_text()) for path in found}


def test_the_files_have_these_expressions(files: dict[str, Any]) -> None:
    """What was asked above is what Grafana asks."""
    boards = (NODE_BOARD, FLEET_BOARD, PLUGINS_BOARD, DESCHEDULER_BOARD)
    boards += (MANAGER_BOARD, SCHEDULER_BOARD)
    assert {board.name: [query.expr for _, query in board.queries()] for board in boards} == {
        name: [target["expr"] for panel in file["panels"] for target in panel.get("targets", ())]
        for name, file in files.items()
    }
