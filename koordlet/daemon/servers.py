"""The two servers of the daemon, and what they serve: HTTP, and the control socket."""

import asyncio
import dataclasses
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, Gauge

import koordlet
from koord.component.http.guard import local_only
from koord.component.http.site import HttpServer, UnixServer
from koord.component.http.sockets import Address
from koord.component.page.serving import Page
from koord.util.errors import Unavailable
from koord.util.health import worst
from koord.util.ownedfiles import OwnedDirectory
from koordlet.daemon.components import DaemonComponents
from koordlet.doctor.probes import Finding
from koordlet.doctor.support import Claimable, findings
from koordlet.executor.claims.table import cpu_limits
from koordlet.host.host import Host
from koordlet.host.paths import HostPaths
from koordlet.host.resource import Level
from koordlet.qosmanager.config import claimable_by_others
from koordlet.replay.recorder import RecordSources
from koordlet.server.app import HttpSources, create_app
from koordlet.server.control_app import CtlSources, create_ctl_app

if TYPE_CHECKING:
    from koord.kube.authorization import AdmissionCheck
    from koordlet.server.page import AgentPage, ChangeAnnotations


def record(components: DaemonComponents, seconds: float) -> AsyncGenerator[bytes]:
    """Return the lines of a record of so many seconds; raises what Recorder.record does."""
    sources = RecordSources(
        states=components.states,
        cache=components.measuring.cache,
        facts=lambda: _facts(components),
        in_force=components.qos.executors.claims.in_force,
        decisions=components.qos.executors.decisions.explain,
    )
    return components.measuring.recorder.record(sources, seconds)


def _facts(components: DaemonComponents) -> dict[str, object]:
    settings = components.settings
    layout = components.qos.executors.kernel.layout
    return {
        "node": settings.node_name,
        "driver": layout.driver.value,
        "root": layout.root,
        "gates": settings.gates.working(),
        "flags": {
            flag.name: flag.kind.write(flag.value)
            for flag in settings.flags
            if flag.is_set and flag.owner.startswith("plugin ")
        },
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class DaemonStatus:
    """Describes one daemon. address is where HTTP listens now; started_at is in Unix seconds."""

    components: DaemonComponents
    run_dir: Path
    address: Callable[[], str]
    started_at: float

    def describe(self) -> Mapping[str, object]:
        """Return what `koordletctl status` shows."""
        components, settings = self.components, self.components.settings
        executors, live_config = components.qos.executors, components.serving.live_config
        health = components.health.parts()
        gates, working = settings.gates, settings.gates.working()
        cache = components.measuring.cache.stats()
        return {
            "version": koordlet.__version__,
            "node": settings.node_name,
            "pid": os.getpid(),
            "started": datetime.fromtimestamp(self.started_at, UTC).isoformat(timespec="seconds"),
            "mode": "standalone" if settings.mode.standalone else "cluster",
            "mode_reason": settings.mode.reason,
            "address": self.address(),
            "run_dir": str(self.run_dir),
            "cgroups": str(components.host.cgroups.flavour),
            "cgroup_driver": components.sources.driver(),
            "health": worst(health).value,
            "problems": {name: part.reason for name, part in health.items() if part.reason},
            "observe_only": executors.observe_only(),
            "claims": executors.claims.count(),
            "dry_run": settings.dry_run.to_json(),
            "evictions": {"per_hour": executors.budget.limit, "used": executors.budget.used},
            "gates_on": working,
            "gates_not_built": sorted(filter(gates.enabled, set(gates.names()) - set(working))),
            "manager_duties": _manager_roles(components),
            "needs_restart": list(live_config.needs_restart) if live_config else [],
            "values": executors.restorer.counts(),
            "pods": len(components.states.pods()),
            "series": cache.series,
            "cache_bytes": cache.file_bytes,
            "samples_dropped": {reason: n for reason, n in cache.dropped.items() if n},
        }

    def export_start(self, registry: CollectorRegistry) -> None:
        """Export the Unix time of the start, and the version, in the registry."""
        start = Gauge("koordlet_start_time", "Unix time of the start.", ["node"], registry=registry)
        start.labels(self.components.settings.node_name).set(int(self.started_at))
        build_info = Gauge("koordlet_build_info", "Always 1.", ["version"], registry=registry)
        build_info.labels(koordlet.__version__).set(1)


def _manager_roles(components: DaemonComponents) -> Mapping[str, str]:
    """The keeper of each object of this node; empty where nothing is kept for a manager."""
    cluster = components.cluster
    return (
        cluster.manager_roles.state()
        if cluster is not None and cluster.manager_roles is not None
        else {}
    )


_FIX = (
    "apply deploy/admission.yaml on Kubernetes 1.30 or newer; this agent's ClusterRole has to have "
    "the verb write-own-node-only for nodemetrics, as in deploy/rbac.yaml"
)


class ClusterChecks(Protocol):
    """Checks what the API server must deny; koordlet.daemon.cluster.Cluster implements it."""

    @property
    def check_own_node(self) -> Callable[[], Awaitable["AdmissionCheck"]]: ...

    @property
    def check_pod_allocations(self) -> Callable[[], Awaitable["AdmissionCheck"]]: ...


class Doctor:
    """Looks anew each time.

    claimable: what plugins of third parties may claim. cluster asks the API server; None: there is
    none.
    """

    def __init__(
        self,
        paths: HostPaths,
        run_dir: Path,
        claimable: Callable[[], Sequence[Claimable]],
        cluster: "ClusterChecks | None",
    ) -> None:
        self._paths = paths
        self._run_dir = run_dir
        self._claimable = claimable
        self._cluster = cluster

    async def look(self) -> Sequence[Mapping[str, object]]:
        """Return the findings. The kernel is looked at in a worker thread."""
        claimable = self._claimable()
        found = await asyncio.to_thread(
            lambda: findings(Host(self._paths), self._run_dir, claimable)
        )
        if self._cluster is not None:
            # Both at once: koordletctl waits no longer than one of them may take, and a little.
            own_node, allocations = await asyncio.gather(
                self._cluster.check_own_node(), self._cluster.check_pod_allocations()
            )
            found += (_own_node(own_node), _allocations(allocations))
        return [asdict(finding) for finding in found]


def _own_node(check: "AdmissionCheck") -> Finding:
    fix = _FIX if check.holds is False else ""
    return Finding("cluster", "own node's objects only", check.holds, (), check.detail, fix)


def _allocations(check: "AdmissionCheck") -> Finding:
    fix = "add the component pod-allocations of deploy" if check.holds is False else ""
    name = "schedulers alone give pods CPUs and devices"
    return Finding("cluster", name, check.holds, (), check.detail, fix)


class DaemonServers:
    """Serves the responses of one daemon's components."""

    def __init__(self, components: DaemonComponents, run_dir: OwnedDirectory) -> None:
        self._address = Address.parse(components.settings.options.addr.value)
        exposition, certificate = components.serving.exposition, components.serving.certificate
        guard = components.cluster.guard if components.cluster else local_only
        page = _page(components)
        self._has_page, self._is_tls = page is not None, certificate is not None
        self._http = HttpServer(
            create_app(_http_sources(components, page), guard=guard),
            self._address,
            certificate.context if certificate else None,
            clock=components.clock,
            registry=exposition.internal,
            prefix=exposition.rules.prefix,
        )
        status = DaemonStatus(
            components=components,
            run_dir=run_dir.path,
            address=lambda: str(self.address),
            started_at=components.clock.wall(),
        )
        status.export_start(exposition.internal)
        sources = _ctl_sources(components, status)
        self._ctl = UnixServer(create_ctl_app(sources, page), run_dir / "ctl.sock")

    @property
    def address(self) -> Address:
        """The address of HTTP; its port is known after start."""
        return self._address

    @property
    def page_url(self) -> str:
        """Return the URL of the status page for a browser on this machine; "" without one."""
        if not self._has_page:
            return ""
        host, port = self._address.host, self._address.port
        scheme = "https" if self._is_tls else "http"
        name = f"[{host}]" if ":" in host else host
        return f"{scheme}://{name or '127.0.0.1'}:{port}/"

    async def start(self) -> None:
        """Listen.

        Raises:
            ListenError: an address or the socket cannot be listened on.
        """
        await self._http.start()
        self._address = Address(self._address.host, self._http.port)
        await self._ctl.start()

    async def stop(self) -> None:
        """Close both servers."""
        await self._ctl.stop()
        await self._http.stop()


def _http_sources(components: DaemonComponents, page: Page | None) -> HttpSources:
    return HttpSources(
        exposition=components.serving.exposition,
        health=components.health,
        clock=components.clock,
        node_metric=partial(_node_metric, components),
        explain=components.qos.explainer.explain,
        events=components.qos.audit.events,
        page=page,
    )


def _page(components: DaemonComponents) -> Page | None:
    """The status page; None: it is switched off."""
    annotations = components.qos.annotations
    if annotations is None:
        return None
    view = files("koordlet.server.page").joinpath("agent.js").read_bytes()
    return Page(source=build_agent_page(components, annotations), views={"agent.js": view})


def build_agent_page(components: DaemonComponents, annotations: "ChangeAnnotations") -> "AgentPage":
    """Build the status page of a daemon. annotations has listened since actions were built."""
    from koordlet.server.page import AgentPage, AgentPageSources  # not while there is no page

    qos, settings = components.qos, components.settings
    return AgentPage(
        AgentPageSources(
            node=settings.node_name,
            cache=components.measuring.cache,
            states=components.states,
            health=components.health,
            cpu_limits=lambda: cpu_limits(qos.executors.claims.snapshot(Level.QOS)),
            plugins=lambda: [dataclasses.asdict(each) for each in qos.plugins.describe()],
            dry_run=qos.dry_run.describe,
            decisions=qos.executors.decisions.explain,
            explain=qos.explainer.explain,
            flush=qos.audit.flush,
            audit=qos.audit.answer,
            annotations=annotations,
        ),
        components.clock,
    )


def _ctl_sources(components: DaemonComponents, status: DaemonStatus) -> CtlSources:
    qos, settings = components.qos, components.settings
    return CtlSources(
        node=settings.node_name,
        cache=components.measuring.cache,
        states=components.states,
        cpu_limits=lambda: cpu_limits(qos.executors.claims.snapshot(Level.QOS)),
        status=status.describe,
        plugins=lambda: [dataclasses.asdict(plugin) for plugin in qos.plugins.describe()],
        release=qos.plugins.release,
        node_metric=partial(_node_metric, components),
        explain=qos.explainer.explain,
        dry_run=qos.dry_run,
        audit=qos.audit,
        doctor=Doctor(
            settings.paths,
            status.run_dir,
            lambda: claimable_by_others(settings.plugins.registry),
            components.cluster,
        ).look,
        record=partial(record, components),
    )


def _node_metric(components: DaemonComponents) -> bytes:
    """Return the latest report; Unavailable where none is made."""
    if components.reporter is None:
        raise Unavailable("no NodeMetric: --enable-node-metric-report is false")
    return components.reporter.latest()
