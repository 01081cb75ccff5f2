"""The life of the daemon: start in order, work until told to stop, stop in order."""

import asyncio
import dataclasses
import os
import signal
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial

from prometheus_client import Gauge

import koordlet
from koord.component.http.exposition import Exposition
from koord.component.http.guard import local_only
from koord.component.http.site import HttpServer, UnixServer
from koord.component.http.sockets import Address
from koord.component.sdnotify import Notifier
from koord.component.tasks import supervise
from koord.util.clock import Clock
from koord.util.errors import Unavailable
from koord.util.health import worst
from koord.util.logs import get_logger
from koord.util.owneddir import OwnedDirectory
from koord.util.stop import Stop
from koordlet.daemon.actions import ACTION_DESCRIPTORS
from koordlet.daemon.components import DaemonComponents, build
from koordlet.daemon.doctor import Doctor
from koordlet.daemon.recording import record
from koordlet.daemon.rundir import RunDir
from koordlet.daemon.settings import Settings
from koordlet.doctor.privileges import missing_privileges
from koordlet.executor.claims.inforce import cpu_limits
from koordlet.executor.claims.target import Level
from koordlet.executor.restorer import OnExit
from koordlet.host.descriptors import raise_nofile
from koordlet.qosmanager.claimable import claimable_by_others
from koordlet.server.app import HttpSources, create_app
from koordlet.server.ctl.app import CtlSources, create_ctl_app

OTHER_DESCRIPTORS = 512  # sockets, rings and logs, beside held kernel files
STOP_LIMIT = 10.0  # seconds for an orderly stop, then the process ends as it is

log = get_logger("koordlet.daemon")


async def run_daemon(
    settings: Settings, exposition: Exposition, clock: Clock, *, stop: Stop | None = None
) -> None:
    """Run until stop is set, or until SIGINT or SIGTERM when there is none.

    Raises:
        KoordError: the daemon could not start; the message says why.
    """
    with RunDir.open(settings.run_dir) as run_dir:
        components = build(settings, exposition, clock, run_dir.directory)
        try:
            await Daemon(components, run_dir.directory).run(stop)
        finally:
            await components.close()


class Daemon:
    """One built daemon, run once."""

    def __init__(self, components: DaemonComponents, run_dir: OwnedDirectory) -> None:
        self._components = components
        self._run_dir = run_dir
        self._started_at = components.clock.wall()
        self._notifier = Notifier()
        sources = HttpSources(
            exposition=components.serving.exposition,
            health=components.health,
            clock=components.clock,
            node_metric=self._node_metric,
            explain=components.acting.explainer.explain,
            events=components.acting.audit.events,
        )
        self._address = Address.parse(components.settings.options.addr.value)
        app = create_app(
            sources, guard=components.cluster.guard if components.cluster else local_only
        )
        tls = components.serving.certificate.context if components.serving.certificate else None
        self._http = HttpServer(
            app,
            self._address,
            tls,
            clock=components.clock,
            registry=components.serving.exposition.internal,
            prefix=components.serving.exposition.rules.prefix,
        )
        self._ctl = UnixServer(create_ctl_app(self._ctl_sources()), run_dir / "ctl.sock")
        self._tell_start(components.serving.exposition)

    async def run(self, stop: Stop | None) -> None:
        """Start, work until stop, and stop: plugins first, then what they stand on."""
        background, owns_process = Stop(self._components.clock), stop is None
        if stop is None:
            stop = Stop(self._components.clock)
            self._take_signals(stop)
        held = self._components.settings.options.descriptor_budget.value + ACTION_DESCRIPTORS
        raise_nofile(held + OTHER_DESCRIPTORS)
        try:
            await self._http.start()
            self._address = Address(self._address.host, self._http.port)
            await self._ctl.start()
            await self._begin_acting(stop)
            self._greet()
            async with asyncio.TaskGroup() as group:
                for name, run in self._components.runs.items():
                    group.create_task(
                        supervise(
                            name, run, background, self._components.clock, self._components.health
                        ),
                        name=name,
                    )
                watchdog = self._notifier.feed_watchdog(background, self._components.health)
                group.create_task(watchdog, name="systemd watchdog")
                await self._components.acting.plugins.run(stop)
                await stop.wait()
                self._notifier.send("STOPPING=1")
                log.info("daemon.stopping")
                if owns_process:
                    _end_anyway_after(STOP_LIMIT)
                if not self._keeps():
                    await self._components.acting.actions.restorer.end()
                background.set()
        finally:
            await self._ctl.stop()
            await self._http.stop()
        log.info("daemon.stopped")

    async def _begin_acting(self, stop: Stop) -> None:
        """Deal with what an earlier process left in the kernel, and say what becomes of ours."""
        actions, plugins = self._components.acting.actions, self._components.acting.plugins
        await actions.restorer.begin(plugins.enabled() if self._keeps() else ())
        actions.claims.leave_when(lambda: stop.is_set() and self._keeps())

    def _keeps(self) -> bool:
        """Whether changed kernel values are left for the next process."""
        return self._components.settings.options.on_exit.value == OnExit.KEEP

    def _take_signals(self, stop: Stop) -> None:
        loop = asyncio.get_running_loop()

        def end() -> None:
            if stop.is_set():
                log.warning("daemon.ended_by_second_signal")
                os._exit(1)
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end)
        live_config = self._components.serving.live_config
        loop.add_signal_handler(signal.SIGHUP, live_config.ask if live_config else _no_config)

    def _greet(self) -> None:
        settings = self._components.settings
        log.info(
            "daemon.started",
            version=koordlet.__version__,
            node=settings.node_name,
            address=str(self._address),
            tls=self._components.serving.certificate is not None,
            run_dir=str(self._run_dir),
            standalone=settings.mode.standalone,
            cgroups=str(self._components.host.cgroups.flavour),
        )
        for event, facts in settings.warnings():
            log.warning(event, **facts)
        if lacking := missing_privileges(settings.paths.proc):
            log.info("privileges.missing", without=lacking)
        self._notifier.send("READY=1", f"STATUS=measuring {settings.node_name}")

    def _tell_start(self, exposition: Exposition) -> None:
        node = self._components.settings.node_name
        start = Gauge(
            "koordlet_start_time", "Unix time of the start.", ["node"], registry=exposition.internal
        )
        start.labels(node).set(int(self._started_at))
        build_info = Gauge(
            "koordlet_build_info", "Always 1.", ["version"], registry=exposition.internal
        )
        build_info.labels(koordlet.__version__).set(1)

    def _node_metric(self) -> bytes:
        reporter = self._components.reporter
        if reporter is None:
            raise Unavailable("no NodeMetric: --enable-node-metric-report is false")
        return reporter.latest()

    def _ctl_sources(self) -> CtlSources:
        components, acting = self._components, self._components.acting
        return CtlSources(
            node=components.settings.node_name,
            cache=components.measuring.cache,
            states=components.states,
            cpu_limits=lambda: cpu_limits(acting.actions.claims.snapshot(Level.QOS)),
            status=self._status,
            plugins=lambda: [dataclasses.asdict(plugin) for plugin in acting.plugins.describe()],
            release=acting.plugins.release,
            node_metric=self._node_metric,
            explain=acting.explainer.explain,
            dry_run=acting.dry_run,
            audit=acting.audit,
            doctor=Doctor(
                components.settings.paths,
                self._run_dir.path,
                lambda: claimable_by_others(components.settings.plugins.registry),
                components.cluster.check_own_node if components.cluster else None,
            ).look,
            record=partial(record, components),
        )

    def _status(self) -> Mapping[str, object]:
        """What `koordletctl status` shows."""
        components, settings = self._components, self._components.settings
        actions, live_config = components.acting.actions, components.serving.live_config
        health = components.health.parts()
        gates, working = settings.gates, settings.gates.working()
        cache = components.measuring.cache.stats()
        return {
            "version": koordlet.__version__,
            "node": settings.node_name,
            "pid": os.getpid(),
            "started": datetime.fromtimestamp(self._started_at, UTC).isoformat(timespec="seconds"),
            "mode": "standalone" if settings.mode.standalone else "cluster",
            "mode_reason": settings.mode.reason,
            "address": str(self._address),
            "run_dir": str(self._run_dir),
            "cgroups": str(components.host.cgroups.flavour),
            "cgroup_driver": components.sources.driver(),
            "health": worst(health).value,
            "problems": {name: part.reason for name, part in health.items() if part.reason},
            "observe_only": actions.observe_only(),
            "claims": actions.claims.count(),
            "dry_run": settings.dry_run.to_json(),
            "evictions": {
                "per_hour": actions.budget.limit,
                "used": actions.budget.used,
            },
            "gates_on": working,
            "gates_not_built": sorted(filter(gates.enabled, set(gates.names()) - set(working))),
            "manager_duties": self._manager_duties(),
            "needs_restart": list(live_config.needs_restart) if live_config else [],
            "values": actions.restorer.counts(),
            "pods": len(components.states.pods()),
            "series": cache.series,
            "cache_bytes": cache.file_bytes,
            "samples_dropped": {reason: n for reason, n in cache.dropped.items() if n},
        }

    def _manager_duties(self) -> Mapping[str, str]:
        """Whose the objects of this node are; nothing where that is no question."""
        cluster = self._components.cluster
        return cluster.duties.state() if cluster is not None and cluster.duties is not None else {}


def _no_config() -> None:
    log.warning("config.none", note="SIGHUP reads the file of --config again; there is none")


def _end_anyway_after(seconds: float) -> None:
    """End the process if a thread that hangs in the kernel keeps it from ending by itself."""

    def end() -> None:
        log.error("daemon.stop_forced", after_s=seconds)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
