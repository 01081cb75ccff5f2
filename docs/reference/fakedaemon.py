"""A whole daemon on a fake host with everything switched on, so that it makes all its families."""

import asyncio
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from prometheus_client import Metric

from koord.api.qos import KubeQoS
from koord.component.http.exposition import Exposition
from koord.component.metrics import FamilySource
from koord.component.plugins.discovery import discover, installed_plugins
from koord.util.errors import Unavailable
from koord.util.logs import LevelSpec, configure
from koord.util.ownedfiles import OwnedDirectory
from koord.util.stop import Stop
from koordlet.daemon.cluster import connect
from koordlet.daemon.components import DaemonComponents, build
from koordlet.daemon.other_agents import OtherAgent
from koordlet.daemon.run import Daemon
from koordlet.daemon.settings import Settings, load_settings
from koordlet.plugin.registry import PluginRegistry
from koordlet.plugin.testing import FakeHost, SimulatedClock
from koordlet.server.app import FAMILIES

_ENOUGH = 3  # passes that show nothing new
_MOST_TICKS = 60  # until everything has been measured; five do
_NODE_SLO = """{"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeSLO", "spec":
{"hostApplications": [{"name": "app", "cgroupPath": {"parentDir": "system", "relativePath": "app"}}]
}}"""
_KUBECONFIG = """{"current-context": "it", "users": [{"name": "it", "user": {}}],
"clusters": [{"name": "it", "cluster": {"server": "https://127.0.0.1"}}],
"contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}]}"""
_KERNEL_FILES = Path(__file__).parents[2] / "tests" / "koordlet" / "host" / "data"
_CAPTURED = {
    "netstat": "1/net/netstat",
    "snmp": "1/net/snmp",
    "snmp6": "1/net/snmp6",
    "sockstat": "1/net/sockstat",
    "sockstat6": "1/net/sockstat6",
    "softnet_stat": "net/softnet_stat",
    "net_dev": "self/net/dev",
}
_SYSCTLS = (
    "core/netdev_max_backlog",
    "netfilter/nf_conntrack_count",
    "netfilter/nf_conntrack_max",
)


class FamilyExposition(Exposition):
    """An exposition that records every family that it saw, with its source."""

    def __init__(self) -> None:
        super().__init__(FAMILIES)
        self._asked: list[Callable[[], Iterable[FamilySource]]] = []
        self.seen: dict[str, tuple[FamilySource, Metric]] = {}  # by name

    def add_sources(self, sources: Callable[[], Iterable[FamilySource]]) -> None:
        super().add_sources(sources)
        self._asked.append(sources)

    def look(self) -> int:
        """Remember what there is now; return how many families were seen so far.

        One moment does not show all: a pass may have met a file that the fake host was writing.
        """
        for sources in self._asked:
            for source in sources():
                self.seen |= {family.name: (source, family) for family in source.families()}
        return len(self.seen)


@cache
def measured_exposition() -> FamilyExposition:
    """The exposition of a daemon that has measured everything it can."""
    configure("json", LevelSpec(default="error"))
    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(_measure(Path(directory)))


def settings_of(argv: Iterable[str], *, exposition: Exposition, clock: SimulatedClock) -> Settings:
    """The settings of a command line, with no environment and the shipped plugins."""
    return load_settings(
        list(argv),
        {},
        clock=clock,
        metrics=exposition.internal,
        discover=_discover_shipped,
        laid_out=True,
    )


def _discover_shipped(registry: PluginRegistry) -> list[str]:
    """Leave out what else happens to be installed here."""
    found = installed_plugins(entry_points(group=registry.group))
    shipped = [each.entry for each in found if each.distribution == registry.shipped]
    return discover(registry, shipped)


async def _measure(directory: Path) -> FamilyExposition:
    clock, exposition, host = SimulatedClock(), FamilyExposition(), _host(directory / "host")
    slo = directory / "slo.json"
    slo.write_text(_NODE_SLO)
    flags = [
        *_roots(host),
        "--standalone",
        "--node-name=node",
        "--feature-gates=AllAlpha=true,AllBeta=true",
        "--exporter-compat=true",
        "--enable-pagecache-collector",
        "--psi-collector-interval=1s",
        "--network-collector-interval=1s",
        f"--nodeslo-file={slo}",
        f"--run-dir={directory}",
    ]
    settings = settings_of(flags, exposition=exposition, clock=clock)
    run_dir = OwnedDirectory.open(directory)
    components = build(settings, exposition, clock, run_dir)
    Daemon(components, run_dir)  # adds the families about the start
    _connect(flags, exposition, components, directory)
    await _run(components, host, clock, exposition)
    return exposition


def _connect(
    flags: list[str], exposition: Exposition, components: DaemonComponents, directory: Path
) -> None:
    """Add the families of a daemon in a cluster. Nothing is sent there."""
    kubeconfig = directory / "kubeconfig"
    kubeconfig.write_text(_KUBECONFIG)
    in_cluster = [*flags, "--standalone=false", f"--kubeconfig={kubeconfig}"]
    settings = settings_of(in_cluster, exposition=Exposition(FAMILIES), clock=components.clock)
    no_agent = OtherAgent(components.clock, synced=lambda: False)
    connect(
        settings,
        components.states,
        components.measuring.cache,
        components.clock,
        exposition.internal,
        no_agent,
    )


async def _run(
    components: DaemonComponents,
    host: FakeHost,
    clock: SimulatedClock,
    exposition: FamilyExposition,
) -> None:
    """Let the parts work until all of them have."""
    stop = Stop(clock)
    tasks = [asyncio.create_task(run(stop)) for run in components.runs.values()]
    tasks.append(asyncio.create_task(components.qos.plugins.run(stop)))
    await clock.until(components.states.has_synced)
    seen, same = 0, 0
    for _ in range(_MOST_TICKS):
        passes = _passes(exposition)
        host.use_cpu(1.0, idle=1.0)
        host.use_network("eth0", 1000, 1000)
        await clock.advance(1.0)
        await clock.until(lambda done=passes: _passes(exposition) > done)
        before, seen = seen, exposition.look()
        same = same + 1 if seen == before else 0
        if same >= _ENOUGH and _has_reported(components):
            break
    else:
        raise SystemExit("the daemon on the fake host makes no report")
    stop.set()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks)


def _passes(exposition: Exposition) -> float:
    return exposition.internal.get_sample_value("koordlet_sampling_pass_seconds_count") or 0.0


def _has_reported(components: DaemonComponents) -> bool:
    try:
        components.reporter.latest()
    except Unavailable:
        return False
    return True


def _host(root: Path) -> FakeHost:
    host = FakeHost(root, version=2)
    host.add_pod("6f3c1a9e-0000-4000-8000-000000000001", KubeQoS.BEST_EFFORT)
    host.group("system/app")
    for name, path in _CAPTURED.items():
        host.write(f"proc/{path}", (_KERNEL_FILES / name).read_bytes())
    for path in (
        "core/netdev_max_backlog",
        "netfilter/nf_conntrack_count",
        "netfilter/nf_conntrack_max",
    ):
        host.write(f"proc/sys/net/{path}", "1000\n")
    return host


def _roots(host: FakeHost) -> list[str]:
    paths = host.paths
    return [
        f"--cgroup-root-dir={paths.cgroup}",
        f"--proc-root-dir={paths.proc}",
        f"--sys-root-dir={paths.sys}",
        f"--sys-fs-root-dir={paths.sysfs}",
        f"--var-run-root-dir={paths.var_run}",
        f"--var-lib-kubelet-dir={paths.kubelet}",
    ]
