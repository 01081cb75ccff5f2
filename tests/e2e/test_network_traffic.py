"""NetworkTraffic with the real Prometheus, which scrapes real agents; and without it."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from koord.cluster.state import ClusterState
from koord.component.plugins.args import args_type_of
from koord.controlplane.testing import FakeCluster
from koord.util.clock import SystemClock
from koord.util.health import Health
from koord.util.stop import Stop
from koord_scheduler.framework.status import CycleState
from koord_scheduler.plugin import NODE, Handle, Services
from koord_scheduler.plugin.testing.harness import fake_services
from koord_scheduler_plugins.network_traffic import NetworkTraffic
from koordlet.plugin.testing import FakeHost
from tests.support.clusters import node, read_node
from tests.support.kube.daemon_flags import LAID_OUT, host_flags
from tests.support.processes.prometheus import free_port, made, scraping
from tests.support.real_apiserver.control_plane import missing
from tests.support.scheduler.framework import make_pod

ADDRESSES = {"quiet": "127.0.0.2", "busy": "127.0.0.3", "busiest": "127.0.0.4"}
RECEIVED = {
    "quiet": 100_000,
    "busy": 1_000_000,
    "busiest": 2_000_000,
}  # bytes, each tenth of a second
SLEEP = 0.1

Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


@pytest.fixture(scope="session", autouse=True)
def prometheus() -> None:
    """Only where it is installed; in CI it must be."""
    if lacking := missing("prometheus"):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs {lacking}")


@contextlib.asynccontextmanager
async def agent(directory: Path, host: FakeHost, name: str, port: int) -> AsyncIterator[None]:
    """A real agent of a node, on an address of its own."""
    with (made(directory) / "log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, LAID_OUT, "--standalone",
            f"--node-name={name}",
            f"--addr={ADDRESSES[name]}:{port}",
            f"--run-dir={directory / 'run'}",
            "--network-collector-interval=1s",
            *host_flags(host.paths),
            stderr=log,
        )  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 60)
        sys.stderr.write((directory / "log").read_text())


async def use_network(hosts: dict[str, FakeHost]) -> None:
    """Traffic on all hosts, for ever."""
    while True:
        for name, host in hosts.items():
            host.use_network("eth0", RECEIVED[name], 0)
        await asyncio.sleep(SLEEP)


@pytest.fixture
async def agents(tmp_path: Path) -> AsyncIterator[int]:
    """Three nodes with traffic, whose agents listen on one port of different addresses."""
    port = free_port()
    hosts = {name: FakeHost(tmp_path / f"host-{name}") for name in ADDRESSES}
    async with contextlib.AsyncExitStack() as stack:
        for name, host in hosts.items():
            await stack.enter_async_context(agent(tmp_path / name, host, name, port))
        traffic = asyncio.create_task(use_network(hosts))
        try:
            yield port
        finally:
            traffic.cancel()


class Scheduler:
    """The plugin among its services, in real time, without cycles around."""

    def __init__(self) -> None:
        clock: Any = SystemClock()
        self.services: Services = fake_services(FakeCluster(clock, ClusterState()))
        self._stop = Stop(clock)
        for name, address in ADDRESSES.items():
            facts = node(name)
            facts["status"]["addresses"] = [{"type": "InternalIP", "address": address}]
            self.services.cluster.put(NODE, read_node(facts))

    def plugin(self, **given: Any) -> NetworkTraffic:
        declared = args_type_of(NetworkTraffic)
        assert declared is not None
        args, faults = declared.read({"interval": "1s", **given}, ())
        assert not faults
        handle = Handle(profile="p", services=self.services, filters=lambda: pytest.fail("no"))
        return NetworkTraffic(args, handle)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        work = asyncio.create_task(
            self.services.shared.run(self._stop, self.services.clock, Health())
        )
        try:
            yield
        finally:
            self._stop.set()
            await work

    def scores(self, plugin: NetworkTraffic) -> dict[str, int]:
        view, pod, state = self.services.cluster.view(), make_pod(), CycleState()
        raw = plugin.score_all(state, pod, view)
        found = plugin.normalize_scores(state, pod, raw)
        return {view.node(row).name: int(score) for row, score in enumerate(found)}


async def test_scores_by_a_real_prometheus(
    agents: int, tmp_path: Path, eventually: Eventually
) -> None:
    """Rates of the agents' counters, under their own names and node_exporter's; capacity.

    When Prometheus is away the figures stay.
    """
    scheduler = Scheduler()
    targets = {name: f"{address}:{agents}" for name, address in ADDRESSES.items()}
    async with scraping(tmp_path / "prometheus", targets) as (url, process):
        eth0 = {"prometheusAddress": url, "networkInterface": "eth0", "timeRangeInMinutes": 1}
        exporter = scheduler.plugin(**eth0)
        own = scheduler.plugin(
            **eth0, metricPrefix="koordlet_node_network", nodeLabel="node", direction="receive"
        )
        capacity = scheduler.plugin(**eth0, linkSpeedMbps=400)
        tutorial = scheduler.plugin(**eth0, query="sum_over_time")
        async with scheduler.running():
            for plugin in (exporter, own):
                await eventually(
                    lambda plugin=plugin: _about(
                        scheduler.scores(plugin), quiet=95, busy=50, busiest=0
                    )
                )
            await eventually(lambda: _shares_of_links(scheduler.scores(capacity)))
            sums = scheduler.scores(tutorial)
            assert sums["quiet"] > sums["busy"] > sums["busiest"] == 0
            known = scheduler.scores(exporter)
            process.kill()
            await process.wait()
            await eventually(lambda: exporter.meter.health().reason != "")
            assert scheduler.scores(exporter).keys() == known.keys()
            assert _about(scheduler.scores(exporter), quiet=95, busy=50, busiest=0)


async def test_scores_by_the_agents_themselves(agents: int, eventually: Eventually) -> None:
    """Without Prometheus.

    Every 3 s: agents count once a second, and answers of one second are one, so that questions
    every second may see none and two of their turns for ever.
    """
    scheduler = Scheduler()
    plugin = scheduler.plugin(agentAddress=f"http://{{address}}:{agents}/metrics", interval="3s")
    async with scheduler.running():
        await eventually(lambda: _about(scheduler.scores(plugin), quiet=95, busy=50, busiest=0))


def _shares_of_links(found: dict[str, int]) -> bool:
    """Free percent: the rate of series that are younger than its range is still growing."""
    busy, busiest = 100 - found["busy"], 100 - found["busiest"]
    return 10 < busiest < 100 and abs(2 * busy - busiest) <= 4


def _about(found: dict[str, int], **wanted: int) -> bool:
    """Within what the pace of a loaded machine does to counters."""
    return all(abs(found[name] - score) <= 8 for name, score in wanted.items())
