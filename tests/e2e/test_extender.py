"""Our plugins behind the real kube-scheduler, by the HTTP extender protocol."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.clusters import node, pod
from tests.support.http_site import ScriptedSite, serving
from tests.support.kube.daemon_flags import kubeconfig
from tests.support.processes.prometheus import free_port
from tests.support.programs import BED, KUBERNETES, Program
from tests.support.scheduler.prometheus import vector

Json = dict[str, Any]

GROUP = "kubescheduler.config.k8s.io/v1"
TRAFFIC = {"busy": 9_000_000, "busier": 10_000_000, "quiet": 100_000}


@pytest.fixture(scope="session")
def kube_scheduler(go_program: Callable[[Program], Path]) -> Path:
    """Kubernetes' own scheduler."""
    go_program(KUBERNETES)
    return KUBERNETES.called("kube-scheduler")


@pytest.fixture(scope="session")
def bed(go_program: Callable[[Program], Path]) -> Path:
    """An API server in memory."""
    return go_program(BED)


@pytest.fixture
async def prometheus() -> AsyncIterator[ScriptedSite]:
    """Answers with the traffic of the nodes."""
    async for site in serving():
        answer = vector(*(({"kubernetes_node": name}, rate) for name, rate in TRAFFIC.items()))
        site.answer = lambda request, answer=answer: answer
        yield site


def text_of(log: Path) -> str:
    return log.read_text()


@contextlib.asynccontextmanager
async def running(log: Path, *command: str | Path) -> AsyncIterator[None]:
    """Run a program until the end of the block; its output is shown then."""
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output)
    try:
        yield
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        ended = await asyncio.wait_for(process.wait(), 30)
        sys.stderr.write(text_of(log)[-8000:])
    assert ended in (0, 1, -signal.SIGTERM)  # 1: kube-scheduler's, without election


class Api:
    """The API server as a test asks it."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url, self._session = url, session

    async def create(self, path: str, item: Json) -> None:
        async with self._session.post(self.url + path, json=item) as answer:
            assert answer.status == 201, await answer.text()

    async def placed(self) -> dict[str, str]:
        async with self._session.get(f"{self.url}/api/v1/pods") as answer:
            items = (await answer.json())["items"] or []
        return {one["metadata"]["name"]: one["spec"].get("nodeName", "") for one in items}

    async def until_placed(self, *names: str) -> dict[str, str]:
        async with asyncio.timeout(60):
            while True:
                found = await self.placed()
                if all(found.get(name) for name in names):
                    return found
                await asyncio.sleep(0.1)


@pytest.fixture
async def api(bed: Path, tmp_path: Path) -> AsyncIterator[Api]:
    """The bed with three equal nodes."""
    address = f"127.0.0.1:{free_port()}"
    async with (
        running(tmp_path / "bed.log", bed, "-addr", address),
        aiohttp.ClientSession() as session,
    ):
        made = Api(f"http://{address}", session)
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"{made.url}/healthz"):
                        break
                await asyncio.sleep(0.05)
        for name in TRAFFIC:
            item = node(name)
            item["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
            await made.create("/api/v1/nodes", {"kind": "Node", "apiVersion": "v1", **item})
        yield made


def written(directory: Path, name: str, config: Json) -> Path:
    path = directory / f"{name}.json"
    path.write_text(json.dumps(config))
    return path


def pending(name: str) -> Json:
    made = pod(name, requests={"cpu": "100m"}, schedulerName="default-scheduler")
    made["status"] = {"phase": "Pending"}
    made["spec"]["containers"][0]["image"] = "x"
    return {"kind": "Pod", "apiVersion": "v1", **made}


@contextlib.asynccontextmanager
async def both(
    directory: Path, api: Api, kube_scheduler: Path, plugins: Json, args: Json, **extender: Any
) -> AsyncIterator[Path]:
    """kube-scheduler, and our plugins behind it; yields the log of ours."""
    access = directory / "kubeconfig"
    access.write_text(kubeconfig(api.url))
    port, log = free_port(), directory / "koord-scheduler.log"
    client = {"kubeconfig": str(access)}
    ours = written(directory, "koord-scheduler", {
        "apiVersion": GROUP, "kind": "KubeSchedulerConfiguration", "clientConnection": client,
        "profiles": [{
            "schedulerName": "default-scheduler", "plugins": plugins,
            "pluginConfig": [{"name": name, "args": given} for name, given in args.items()],
        }],
    })  # fmt: skip
    theirs = written(directory, "kube-scheduler", {
        "apiVersion": GROUP, "kind": "KubeSchedulerConfiguration",
        "clientConnection": {**client, "contentType": "application/json"},
        "leaderElection": {"leaderElect": False},
        "extenders": [{
            "urlPrefix": f"http://127.0.0.1:{port}", "weight": 20, "httpTimeout": "5s", **extender,
        }],
    })  # fmt: skip
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(
            running(
                log, sys.executable, "-m", "koord_scheduler.command", f"--config={ours}",
                f"--extender=:{port}", "--port=0", "--secure-port=0",
            )
        )  # fmt: skip
        async with asyncio.timeout(60):
            while "extender.serving" not in text_of(log):  # noqa: ASYNC110 - it logs
                await asyncio.sleep(0.1)
        await stack.enter_async_context(
            running(
                directory / "kube-scheduler.log", kube_scheduler, f"--config={theirs}",
                "--secure-port=0", "--v=2",
            )
        )  # fmt: skip
        yield log


@pytest.mark.parametrize("cached", [True, False])
async def test_pods_go_where_our_plugin_scores_most(
    api: Api, kube_scheduler: Path, prometheus: ScriptedSite, tmp_path: Path, cached: bool
) -> None:
    """Names travel, or whole nodes; kube-scheduler binds."""
    plugins = {"score": {"enabled": [{"name": "NetworkTraffic"}]}}
    args = {"prometheusAddress": prometheus.url, "networkInterface": "eth0"}
    verbs = {"prioritizeVerb": "prioritize", "nodeCacheCapable": cached}
    given = {"NetworkTraffic": args}
    async with both(tmp_path, api, kube_scheduler, plugins, given, **verbs) as log:
        names = [f"web-{number}" for number in range(3)]
        for name in names:
            await api.create("/api/v1/namespaces/default/pods", pending(name))
        placed = await api.until_placed(*names)
        assert {placed[name] for name in names} == {"quiet"}
        assert '"verbs": ["prioritize"]' in text_of(log)


async def test_our_plugin_filters_and_binds(api: Api, kube_scheduler: Path, tmp_path: Path) -> None:
    """A plugin with Reserve needs the verb bind; its rejections are in kube-scheduler's event."""
    for name, cores in {"busy": "3900m", "busier": "3800m", "quiet": "200m"}.items():
        await api.create("/apis/slo.koordinator.sh/v1alpha1/nodemetrics", metric(name, cores))
    at = {"enabled": [{"name": "LoadAwareScheduling"}]}
    plugins = dict.fromkeys(("preFilter", "filter", "score", "reserve"), at)
    verbs = {"filterVerb": "filter", "prioritizeVerb": "prioritize", "bindVerb": "bind"}
    async with both(
        tmp_path, api, kube_scheduler, plugins, {}, nodeCacheCapable=True, **verbs
    ) as log:
        assert '"verbs": ["filter", "prioritize", "bind"]' in text_of(log)
        await api.create("/api/v1/namespaces/default/pods", pending("web"))
        assert (await api.until_placed("web"))["web"] == "quiet"
        large = pending("large")
        large["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "3500m"
        await api.create("/api/v1/namespaces/default/pods", large)
        async with asyncio.timeout(60):
            theirs = tmp_path / "kube-scheduler.log"
            while "usage exceed threshold" not in text_of(theirs):  # noqa: ASYNC110 - it logs
                await asyncio.sleep(0.1)
        assert not (await api.placed())["large"]


def metric(name: str, cores: str) -> Json:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    usage = {"resources": {"cpu": cores, "memory": "1Gi"}}
    return {
        "kind": "NodeMetric", "apiVersion": "slo.koordinator.sh/v1alpha1",
        "metadata": {"name": name}, "spec": {},
        "status": {"updateTime": now, "nodeMetric": {"nodeUsage": usage}, "podsMetric": []},
    }  # fmt: skip
