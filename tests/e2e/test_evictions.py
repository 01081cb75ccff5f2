"""A third party's plugin evicts pods through the real process, which keeps its own rules."""

import asyncio
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from front import Front
from realdaemon import running

from koord.kube.client import EVENTS, NODES, PODS
from koord.kube.credentials import ApiConfig
from koordlet.plugin.testing import FakeHost
from tests.support.kube.faults import refuse

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]
PLUGIN = """
    from koordlet.plugin import ExtensionPlugin

    class Reaper(ExtensionPlugin):
        def setup(self, client, metric_cache, states_informer):
            self.states = states_informer

        async def run(self, stop):
            async for turn in stop.every(0.3):
                for pod in self.states.pods():
                    if "reap" in pod.pod.labels:
                        await self.evict(pod, reason=f"turn {turn}")
"""
BY_BUDGET = {"causes": [{"reason": "DisruptionBudget", "message": "needs 2 healthy pods"}]}


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin as pip would install it."""
    info = tmp_path / "site" / "reaper-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reaper\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[koordlet.qos_plugins]\nReaper = reaper:Reaper\n")
    (tmp_path / "site" / "reaper.py").write_text(textwrap.dedent(PLUGIN))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))


@pytest.fixture
async def front(api_config: ApiConfig, node_name: str) -> AsyncIterator[Front]:
    front = Front(api_config)
    status = {"capacity": {"cpu": "4", "memory": "16Gi"}}
    front.objects.create(NODES.collection(), {"metadata": {"name": node_name}, "status": status})
    await front.start()
    yield front
    await front.stop()


def add_pod(front: Front, host: FakeHost, node: str, name: str, **labels: str) -> None:
    host.add_pod(f"uid-of-{name}", containers=(f"c-{name}",))
    statuses = [{"name": "app", "containerID": f"containerd://c-{name}"}]
    front.objects.create(
        PODS.collection(),
        {
            "metadata": {
                "namespace": "shop", "name": name, "uid": f"uid-of-{name}", "labels": labels,
            },
            "spec": {"nodeName": node, "containers": [{"name": "app"}]},
            "status": {
                "phase": "Running", "qosClass": "Burstable", "containerStatuses": statuses,
            },
        },
    )  # fmt: skip


def names(front: Front) -> list[str]:
    return [pod["metadata"]["name"] for pod in front.objects.all(PODS.collection())]


def told(front: Front, reason: str) -> list[str]:
    """The pods that have an event with this reason."""
    events = front.objects.all(EVENTS.collection())
    return [each["involvedObject"]["name"] for each in events if each["reason"] == reason]


async def explain(directory: Path, *pod: str) -> Any:
    """What koordletctl says."""
    command = [sys.executable, "-m", "koordlet.cli.koordletctl", "--output=json",
               f"--run-dir={directory / 'run'}", "explain", *pod]  # fmt: skip
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, check=True, env=os.environ
    )
    return json.loads(done.stdout)


async def test_a_plugin_evicts_within_the_rules(
    tmp_path: Path, front: Front, node_name: str, plugin: None, eventually: Eventually
) -> None:
    """Once per pod, not against a disruption budget, and after kill -9 not beyond the node's."""
    host = FakeHost(tmp_path / "host")
    for name in ("victim", "guarded"):
        add_pod(front, host, node_name, name, reap="yes")
    add_pod(front, host, node_name, "bystander")
    guarded = "/api/v1/namespaces/shop/pods/guarded/eviction"
    refusal = refuse(429, "TooManyRequests", headers={"Retry-After": "600"}, details=BY_BUDGET)
    front.script(*[refusal] * 9, method="POST", path=guarded)
    flags = ("--feature-gates=Reaper=true,NodeTopologyReport=false", "--evict-budget-per-hour=1",
             "--disable-query-kubelet-config")  # fmt: skip

    async with running(tmp_path, host, front.url, node_name, *flags) as daemon:
        await eventually(lambda: told(front, "evictPodSuccess") == ["victim"])
        await eventually(lambda: told(front, "evictPodFail") == ["guarded"])
        assert names(front) == ["bystander", "guarded"]
        asked = [entry for entry in front.asked("create") if entry.path.endswith("/eviction")]
        assert {entry.path: entry.json["deleteOptions"] for entry in asked} == {
            guarded: {"preconditions": {"uid": "uid-of-guarded"}},
            guarded.replace("guarded", "victim"): {"preconditions": {"uid": "uid-of-victim"}},
        }
        assert len(asked) == 2
        found = await explain(tmp_path, "shop/guarded")
        assert found["evictionBudget"] == {"perHour": 1, "used": 1}
        [decision] = found["decisions"]
        assert (decision["plugin"], decision["outcome"]) == ("Reaper", "refused")
        assert "needs 2 healthy pods" in decision["message"]
        daemon.kill()
        await daemon.wait()

    add_pod(front, host, node_name, "second", reap="yes")
    async with running(tmp_path, host, front.url, node_name, *flags):
        await eventually(lambda: "second" in told(front, "evictPodFail"))
        assert "second" in names(front)
        outcomes = {each["pod"]: each["outcome"] for each in (await explain(tmp_path))["decisions"]}
        assert outcomes["shop/second"] == "over_budget"
