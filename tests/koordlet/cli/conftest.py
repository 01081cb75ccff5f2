"""The control socket as the daemon serves it, and koordletctl in the test's process."""

import asyncio
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from koord.api.node import Node
from koord.api.nodemetric import NodeMetricSpec, NodeMetricStatus, Usage, node_metric
from koord.api.pod import Pod
from koord.api.qos import KubeQoS
from koord.component.http.responses import json_bytes
from koord.component.http.site import UnixServer
from koord.component.page.serving import Page
from koord.util.errors import OptionError
from koord.util.health import Health
from koord.util.ownedfiles import OwnedDirectory
from koordlet.cli.koordletctl import main
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import Cadence, RetentionClass
from koordlet.plugin.testing.scripted import SimulatedClock
from koordlet.server.control_app import CtlSources, create_ctl_app
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.podmeta import ContainerMeta, PodMeta
from tests.support.kube.health_page import HealthPage


async def no_record(seconds):
    """The lines of a record that no test needs."""
    yield b""


STATUS = {
    "version": "0.1.0",
    "node": "worker",
    "pid": 4711,
    "started": "2026-01-02T03:04:05+00:00",
    "mode": "standalone",
    "mode_reason": "--standalone=true",
    "address": "127.0.0.1:9316",
    "run_dir": "/run/koordlet",
    "cgroups": "v2",
    "cgroup_driver": "systemd",
    "health": "ok",
    "problems": {},
    "observe_only": "",
    "gates_on": ["NodeNetworkCollector"],
    "gates_not_built": ["CPUBurst"],
    "claims": {"BECPUSuppress": {"in force": 1}},
    "dry_run": False,
    "evictions": {"per_hour": 20, "used": 3},
    "manager_duties": {},
    "needs_restart": [],
    "values": {"changed": 0, "kept": 0},
    "pods": 2,
    "series": 30,
    "cache_bytes": 10 * 2**20,
    "samples_dropped": {},
}
PLUGIN = {
    "name": "PressureWatch",
    "source": "koordlet",
    "version": "0.1.0",
    "gates": ["PressureWatch"],
    "needs": ["PSICollector"],
    "enabled": True,
    "state": "quarantined",
    "reason": "held the event loop",
    "rounds": {"ok": 12, "failed": 1},
    "errors": 1,
    "cpu_seconds": 0.5,
    "longest_step_ms": 2.25,
    "memory_growth_bytes": 4096,
}
FINDINGS = [
    {
        "area": "node",
        "name": "pressure",
        "supported": True,
        "needed_by": ["PSICollector"],
        "detail": "",
        "fix": "",
    },
    {
        "area": "cgroup",
        "name": "cpu burst",
        "supported": False,
        "needed_by": ["CPUBurst"],
        "detail": "missing: cpu_burst",
        "fix": "Linux 5.14",
    },
]
SPEC = NodeMetricSpec()


def make_pod(name, qos=KubeQoS.BURSTABLE):
    pod = Pod("default", name, f"uid-{name}", qos=qos)
    container = ContainerMeta("app", f"containerd://{name}", f"kubepods/{name}/app")
    return PodMeta(pod, f"kubepods/{name}", (container,), pod.qos_class, qos)


EXPLAINED = {
    "dryRun": False,
    "observeOnly": "",
    "evictionBudget": {"perHour": 20, "used": 1},
    "values": [],
    "decisions": [
        {
            "first": "2023-11-14T22:10:00Z",
            "last": "2023-11-14T22:13:20Z",
            "times": 200,
            "plugin": "MemoryEvict",
            "feature": "BEMemoryEvict",
            "action": "evict",
            "pod": "jobs/crunch",
            "uid": "u2",
            "outcome": "refused",
            "reason": "memory 92 % of 16Gi, above 70 %",
            "message": "429 TooManyRequests: the budget needs 2 healthy pods",
            "dryRun": False,
            "inputs": {},
            "candidates": [],
            "freed": {},
        },
        {
            "first": "2023-11-14T22:09:00Z",
            "last": "2023-11-14T22:09:00Z",
            "times": 1,
            "plugin": "MemoryEvict",
            "feature": "BEMemoryEvict",
            "action": "evict",
            "pod": "jobs/sort",
            "uid": "u1",
            "outcome": "evicted",
            "reason": "memory 95 % of 16Gi, above 70 %",
            "message": "",
            "dryRun": False,
            "inputs": {"memory_bytes": 15.2e9, "threshold_percent": 70},
            "candidates": ["jobs/sort", "jobs/crunch"],
            "freed": {"memory_bytes": 2.5e9},
        },
    ],
}


class Switches:
    """Dry-run of two plugins."""

    def __init__(self):
        self.observe_only = ""
        self.on = {"BECPUSuppress": False, "CPUBurst": True}
        self.by_hand = set()

    def describe(self):
        return {
            "observeOnly": self.observe_only,
            "plugins": [
                {"name": name, "dryRun": on, "byHand": name in self.by_hand}
                for name, on in self.on.items()
            ],
        }

    async def switch(self, plugin, *, on):
        if plugin not in self.on:
            raise OptionError("plugin", plugin, "no plugin of this name; the nearest is 'CPUBurst'")
        self.on[plugin] = on
        self.by_hand.add(plugin)
        return self.describe()


class Audited:
    """An audit log of three events."""

    def __init__(self):
        self.directory = Path("/var/log/koordlet")
        self.enabled, self.problem = True, ""
        self.lines = [
            b'{"createdAt":"2026-07-24T06:52:45.123456789+08:00","type":"pod","namespace":"jobs",'
            b'"name":"sort","reason":"evicted","message":"kill pod: sort"}\n',
            b'{"createdAt":"2026-07-24T06:52:46.123456789+08:00","type":"node",'
            b'"reason":"UpdateCgroups","message":"update cpu.max to 5"}\n',
            b'{"createdAt":"2026-07-24T06:52:47.000000000Z","reason":"CPUBurst","message":"m",'
            b'"namespace":"shop","name":"web","container":"main"}\n',
        ]

    async def flush(self):
        """Nothing is kept back."""

    def answer(self, query):
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "audit.log").write_bytes(b"".join(self.lines))
            events = query.find(Path(directory))
        return {
            "enabled": self.enabled,
            "directory": str(self.directory),
            "problem": self.problem,
            "events": events,
        }


@dataclass
class Daemon:
    """The answers of a daemon. Tests change them before a command."""

    run_dir: object
    clock: SimulatedClock
    cache: MetricCache
    states: StatesInformer
    status: dict = field(default_factory=lambda: dict(STATUS))
    plugins: list = field(default_factory=lambda: [dict(PLUGIN)])
    explained: dict = field(default_factory=lambda: dict(EXPLAINED))
    limits: dict = field(default_factory=dict)
    switches: Switches = field(default_factory=lambda: Switches())
    audit: Audited = field(default_factory=lambda: Audited())
    findings: list = field(default_factory=lambda: [dict(finding) for finding in FINDINGS])

    def app(self):
        return create_ctl_app(
            CtlSources(
                node="worker",
                cache=self.cache,
                states=self.states,
                cpu_limits=lambda: self.limits,
                status=lambda: self.status,
                plugins=lambda: self.plugins,
                release=self._release,
                node_metric=self._node_metric,
                explain=self._explain,
                dry_run=self.switches,
                audit=self.audit,
                doctor=self._look,
                record=no_record,
            ),
            Page(source=HealthPage("koordlet on worker", Health(), self.clock)),
        )

    async def _explain(self, pod):
        def about(name):
            return [each for each in self.explained[name] if pod in ("", each["pod"])]

        return lambda: self.explained | {name: about(name) for name in ("values", "decisions")}

    async def _look(self):
        return self.findings

    def _release(self, name):
        plugin = next(plugin for plugin in self.plugins if plugin["name"] == name)
        was_in = plugin["state"] == "quarantined"
        plugin["state"] = "running"
        return was_in

    def _node_metric(self):
        status = NodeMetricStatus(self.clock.wall(), Usage(1.5, 2**30))
        return json_bytes(node_metric("worker", SPEC, status))


@contextmanager
def served(daemon):
    """A real Unix server in a thread of its own, as the test itself is synchronous."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = UnixServer(daemon.app(), OwnedDirectory.open(daemon.run_dir) / "ctl.sock")
    asyncio.run_coroutine_threadsafe(server.start(), loop).result()
    try:
        yield daemon
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@pytest.fixture
def serve():
    return served


@pytest.fixture
def daemon(tmp_path):
    clock = SimulatedClock()
    cache = MetricCache(
        None,
        "boot",
        clock,
        intervals=dict.fromkeys(Cadence, 1.0),
        retentions=dict.fromkeys(RetentionClass, 300.0),
    )
    states = StatesInformer(clock)
    states.set_node(Node("worker", capacity={"cpu": "4", "memory": "8Gi"}))
    states.set_pods((make_pod("web"), make_pod("batch", KubeQoS.BEST_EFFORT)))
    with served(Daemon(tmp_path, clock, cache, states)) as daemon:
        yield daemon


@pytest.fixture
def ctl(tmp_path, capsys):
    """Run koordletctl; returns its exit status, output and error text."""

    def run(*args):
        try:
            code = main([*args, "--run-dir", str(tmp_path)])
        except SystemExit as end:
            code = end.code
        output = capsys.readouterr()
        return code, output.out, output.err

    return run
