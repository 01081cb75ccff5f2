"""A whole daemon in the test's process: fake host, simulated time, real loopback HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from koord.api.nodemetric import parse_spec
from koord.api.qos import KubeQoS
from koord.component.http.exposition import Exposition
from koord.util.logs import LevelSpec, configure, set_levels
from koord.util.stop import Stop
from koordlet.daemon import run
from koordlet.daemon.components import DaemonComponents
from koordlet.daemon.settings import Settings, load_settings
from koordlet.plugin import ExtensionPlugin, FeatureSpec, PluginRegistry
from koordlet.plugin.testing import FakeGroup, FakeHost, FakePod, SimulatedClock
from koordlet.server.app import FAMILIES
from koordlet.statesinformer.informer import StatesInformer, StateType
from tests.support.kube.daemon_flags import host_flags
from tests.support.kube.inline_executor import InlineExecutor
from tests.support.kube.own_metrics import passes_of


class Probe(ExtensionPlugin):
    """A plugin that notes what happens to it; a round a second."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.rounds = 0
        self.error: Exception | None = None

    def setup(self, client: Any, metric_cache: Any, states_informer: Any) -> None:
        self.cache, self.states = metric_cache, states_informer

    async def run(self, stop: Stop) -> None:
        self.calls.append("run")
        async for _ in stop.every(1.0):
            self.rounds += 1
            self.log.debug("probe.round", number=self.rounds)
            if self.error:
                raise self.error
        self.calls.append("returned")

    async def stop(self) -> None:
        self.calls.append("stop")


class BuiltParts:
    """Keeps what the daemon of a test is made of, for tests that look inside."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._parts: list[DaemonComponents] = []
        build = run.build

        def keep(*args: Any) -> DaemonComponents:
            self._parts.append(build(*args))
            return self._parts[-1]

        patch.setattr(run, "build", keep)

    @property
    def states(self) -> StatesInformer:
        """The states informer of the latest daemon."""
        return self._parts[-1].states

    @property
    def components(self) -> DaemonComponents:
        """All parts of the latest daemon."""
        return self._parts[-1]


class WholeDaemon:
    """Starts a daemon with flags, lets simulated seconds pass, and asks it over its sockets."""

    def __init__(self, directory: Path, read_stderr: Callable[[], str], parts: BuiltParts) -> None:
        self._parts = parts
        self._directory = directory
        self.host = FakeHost(directory / "host")
        self.clock = SimulatedClock()
        self.run_dir = directory / "run"
        self._kubepods: FakeGroup | None = None
        self.each_second: list[Callable[[], None]] = [
            lambda: self.host.use_cpu(1.5, system=0.5, idle=2.0)
        ]
        self.probe = Probe()
        self.settings: Settings
        self._read_stderr = read_stderr
        self._log: list[dict[str, Any]] = []
        self._passes = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def states(self) -> StatesInformer:
        return self._parts.states

    def use_host(self, **options: Any) -> FakeHost:
        """Run on another host than the default one."""
        self.host = FakeHost(self._directory / "another-host", **options)
        return self.host

    def busy_pod(self, uid: str, qos: KubeQoS = KubeQoS.BURSTABLE, cores: float = 0.25) -> FakePod:
        """A pod that uses so many cores from now on; the kubepods group is charged, too."""
        pod = self.host.add_pod(uid, qos)
        self._kubepods = self._kubepods or self.host.group(self.host.layout.root)
        for group in (*pod.containers.values(), pod.group, self._kubepods):
            self.each_second.append(partial(group.use_cpu, cores))
        return pod

    async def start(self, *args: str, **environ: str) -> None:
        """Return when the daemon serves, half a second after its first sampling pass.

        From then on reports come half a second after the samples they are made of.
        """
        asyncio.get_running_loop().set_default_executor(InlineExecutor())
        configure("json", LevelSpec())
        self._exposition = Exposition(FAMILIES, clock=self.clock)
        self.settings = load_settings(
            [
                "--standalone",
                "--addr=127.0.0.1:0",
                f"--run-dir={self.run_dir}",
                *host_flags(self.host.paths),
                "--node-name=n1",
                *args,
            ],
            environ,
            clock=self.clock,
            metrics=self._exposition.internal,
            discover=self._discover,
            laid_out=True,
        )
        self._stop = Stop(self.clock)
        self._passes = 0
        work = run.run_daemon(self.settings, self._exposition, self.clock, stop=self._stop)
        self._task = asyncio.create_task(work, name="daemon")
        await self._pass_done()
        await self.clock.advance(0.5)
        self.states.send_callback(StateType.NODE_METRIC_SPEC)
        await self.clock.settle()

    async def seconds(self, count: int = 1) -> None:
        """Let time pass; each second the host works and one sampling pass is made of it."""
        for _ in range(count):
            for work in self.each_second:
                work()
            await self.clock.advance(0.5)
            await self._pass_done()
            await self.clock.advance(0.5)

    async def stop(self) -> None:
        """Stop the daemon in order, as SIGTERM does."""
        if self._task is not None:
            self._stop.set()
            task, self._task = self._task, None
            await asyncio.wait_for(task, 60)
            set_levels(LevelSpec())

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text of an HTTP response."""
        address = (await self.ctl("status"))["address"]
        async with aiohttp.ClientSession() as session, session.get(f"http://{address}{path}") as r:
            return r.status, await r.text()

    def set_spec(self, **policy: Any) -> None:
        """Ask for other reports, as a cluster does in the spec of the NodeMetric."""
        spec = parse_spec({"spec": {"metricCollectPolicy": policy}})
        self.states.set_node_metric_spec(spec)

    async def metric(self, name: str) -> list[float]:
        """The values of a family on /metrics."""
        _, text = await self.get("/metrics")
        samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return [float(value) for key, _, value in samples if key.partition("{")[0] == name]

    async def problems(self) -> dict[str, tuple[str, str]]:
        """Status and reason of each part of /healthz that is not ok."""
        _, text = await self.get("/healthz?format=json")
        parts = json.loads(text)["parts"]
        return {
            name: (part["status"], part["reason"])
            for name, part in parts.items()
            if part["status"] != "ok"
        }

    async def node_metric(self) -> dict[str, Any]:
        """The latest report, as the file and the endpoint have it."""
        status, text = await self.get("/nodemetric")
        assert status == 200, text
        assert (self.run_dir / "nodemetric.json").read_text() == text
        return json.loads(text)

    async def ctl(self, path: str) -> Any:
        """The answers to koordletctl."""
        connector = aiohttp.UnixConnector(str(self.run_dir / "ctl.sock"))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(f"http://koordlet/{path}") as response,
        ):
            return await response.json()

    async def post(self, path: str, *, status: int = 200) -> Any:
        """Give a command, as koordletctl does; text when it is refused."""
        connector = aiohttp.UnixConnector(str(self.run_dir / "ctl.sock"))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(f"http://koordlet/{path}") as response,
        ):
            assert response.status == status
            return await (response.json() if status == 200 else response.text())

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log events of that name so far, oldest first."""
        self._log += map(json.loads, self._read_stderr().splitlines())
        return [entry for entry in self._log if entry["event"] == name]

    def _discover(self, registry: PluginRegistry) -> list[str]:
        view = registry.from_source("test", "1.0")
        view.register_qos_ext_plugin("Probe", FeatureSpec(), self.probe)
        return []

    async def _pass_done(self) -> None:
        self._passes += 1
        await self.clock.settle()
        await self.clock.until(self._has_passed)
        await self.clock.settle()

    def _has_passed(self) -> bool:
        if self._task is not None and self._task.done():
            self._task.result()
        return passes_of(self._exposition.internal) >= self._passes


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> BuiltParts:
    return BuiltParts(monkeypatch)


@pytest.fixture
async def daemon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], built: BuiltParts
) -> AsyncIterator[WholeDaemon]:
    daemon = WholeDaemon(tmp_path, lambda: capsys.readouterr().err, built)
    yield daemon
    await daemon.stop()
