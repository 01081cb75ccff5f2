"""The two servers of the daemon: HTTP, and the control socket in its run directory."""

import dataclasses
from functools import partial

from koord.component.http.guard import local_only
from koord.component.http.site import HttpServer, UnixServer
from koord.component.http.sockets import Address
from koord.component.page.serving import Page
from koord.util.errors import Unavailable
from koord.util.owneddir import OwnedDirectory
from koordlet.daemon.components import DaemonComponents
from koordlet.daemon.serve.doctor import Doctor
from koordlet.daemon.serve.recording import record
from koordlet.daemon.serve.status import DaemonStatus
from koordlet.executor.claims.inforce import cpu_limits
from koordlet.executor.claims.target import Level
from koordlet.qosmanager.claimable import claimable_by_others
from koordlet.server.app import HttpSources, create_app
from koordlet.server.ctl.app import CtlSources, create_ctl_app


class DaemonServers:
    """Serves the answers of one daemon's components."""

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
        """Where a browser on this machine finds the status page; "" without one."""
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
        explain=components.acting.explainer.explain,
        events=components.acting.audit.events,
        page=page,
    )


def _page(components: DaemonComponents) -> Page | None:
    """The status page; None: it is switched off."""
    marks = components.acting.marks
    if marks is None:
        return None
    from koordlet.daemon.serve.page import agent_page

    return agent_page(components, marks)


def _ctl_sources(components: DaemonComponents, status: DaemonStatus) -> CtlSources:
    acting, settings = components.acting, components.settings
    return CtlSources(
        node=settings.node_name,
        cache=components.measuring.cache,
        states=components.states,
        cpu_limits=lambda: cpu_limits(acting.actions.claims.snapshot(Level.QOS)),
        status=status.describe,
        plugins=lambda: [dataclasses.asdict(plugin) for plugin in acting.plugins.describe()],
        release=acting.plugins.release,
        node_metric=partial(_node_metric, components),
        explain=acting.explainer.explain,
        dry_run=acting.dry_run,
        audit=acting.audit,
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
