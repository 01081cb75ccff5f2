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
from koordlet.daemon.doctor import Doctor
from koordlet.daemon.parts import Parts, build
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
from koordlet.server.ctl import CtlSources, create_ctl_app

OTHER_DESCRIPTORS = 512  # sockets, rings and logs, beside held kernel files
STOP_LIMIT = 10.0  # seconds for an orderly stop, then the process ends as it is

log = get_logger("koordlet.daemon")


async def run_daemon(
    settings: Settings, exposition: Exposition, clock: Clock, *, stop: Stop | None = None
) -> None:
    """Run until stop is set, or until SIGINT or SIGTERM when there is none.

    Raises:
        KoordletError: the daemon could not start; the message says why.
    """
    with RunDir.open(settings.run_dir) as run_dir:
        parts = build(settings, exposition, clock, run_dir.directory)
        try:
            await Daemon(parts, run_dir.directory).run(stop)
        finally:
            if parts.cluster is not None:
                await parts.cluster.close()
            parts.cache.close()
            parts.audit.log.close()
            parts.actions.lock.close()


class Daemon:
    """One built daemon, run once."""

    def __init__(self, parts: Parts, run_dir: OwnedDirectory) -> None:
        self._parts = parts
        self._run_dir = run_dir
        self._started_at = parts.clock.wall()
        self._notifier = Notifier()
        sources = HttpSources(
            exposition=parts.exposition,
            health=parts.health,
            clock=parts.clock,
            node_metric=self._node_metric,
            explain=parts.explainer.explain,
            events=parts.audit.events,
        )
        self._address = Address.parse(parts.settings.options.addr.value)
        app = create_app(sources, guard=parts.cluster.guard if parts.cluster else local_only)
        tls = parts.certificate.context if parts.certificate else None
        self._http = HttpServer(
            app, self._address, tls, clock=parts.clock, registry=parts.exposition.internal
        )
        self._ctl = UnixServer(create_ctl_app(self._ctl_sources()), run_dir / "ctl.sock")
        self._tell_start(parts.exposition)

    async def run(self, stop: Stop | None) -> None:
        """Start, work until stop, and stop: plugins first, then what they stand on."""
        background, owns_process = Stop(self._parts.clock), stop is None
        if stop is None:
            stop = Stop(self._parts.clock)
            self._take_signals(stop)
        held = self._parts.settings.options.descriptor_budget.value + ACTION_DESCRIPTORS
        raise_nofile(held + OTHER_DESCRIPTORS)
        try:
            await self._http.start()
            self._address = Address(self._address.host, self._http.port)
            await self._ctl.start()
            await self._begin_acting(stop)
            self._greet()
            async with asyncio.TaskGroup() as group:
                for name, run in self._parts.components.items():
                    group.create_task(
                        supervise(name, run, background, self._parts.clock, self._parts.health),
                        name=name,
                    )
                watchdog = self._notifier.feed_watchdog(background, self._parts.health)
                group.create_task(watchdog, name="systemd watchdog")
                await self._parts.plugins.run(stop)
                await stop.wait()
                self._notifier.send("STOPPING=1")
                log.info("daemon.stopping")
                if owns_process:
                    _end_anyway_after(STOP_LIMIT)
                if not self._keeps():
                    await self._parts.actions.restorer.end()
                background.set()
        finally:
            await self._ctl.stop()
            await self._http.stop()
        log.info("daemon.stopped")

    async def _begin_acting(self, stop: Stop) -> None:
        """Deal with what an earlier process left in the kernel, and say what becomes of ours."""
        actions = self._parts.actions
        await actions.restorer.begin(self._parts.plugins.enabled() if self._keeps() else ())
        actions.claims.leave_when(lambda: stop.is_set() and self._keeps())

    def _keeps(self) -> bool:
        """Whether changed kernel values are left for the next process."""
        return self._parts.settings.options.on_exit.value == OnExit.KEEP

    def _take_signals(self, stop: Stop) -> None:
        loop = asyncio.get_running_loop()

        def end() -> None:
            if stop.is_set():
                log.warning("daemon.ended_by_second_signal")
                os._exit(1)
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end)
        live_config = self._parts.live_config
        loop.add_signal_handler(signal.SIGHUP, live_config.ask if live_config else _no_config)

    def _greet(self) -> None:
        settings = self._parts.settings
        log.info(
            "daemon.started",
            version=koordlet.__version__,
            node=settings.node_name,
            address=str(self._address),
            tls=self._parts.certificate is not None,
            run_dir=str(self._run_dir),
            standalone=settings.mode.standalone,
            cgroups=str(self._parts.host.cgroups.flavour),
        )
        for event, facts in settings.warnings():
            log.warning(event, **facts)
        if lacking := missing_privileges(settings.paths.proc):
            log.info("privileges.missing", without=lacking)
        self._notifier.send("READY=1", f"STATUS=measuring {settings.node_name}")

    def _tell_start(self, exposition: Exposition) -> None:
        node = self._parts.settings.node_name
        start = Gauge(
            "koordlet_start_time", "Unix time of the start.", ["node"], registry=exposition.internal
        )
        start.labels(node).set(int(self._started_at))
        build_info = Gauge(
            "koordlet_build_info", "Always 1.", ["version"], registry=exposition.internal
        )
        build_info.labels(koordlet.__version__).set(1)

    def _node_metric(self) -> bytes:
        reporter = self._parts.reporter
        if reporter is None:
            raise Unavailable("no NodeMetric: --enable-node-metric-report is false")
        return reporter.latest()

    def _ctl_sources(self) -> CtlSources:
        parts = self._parts
        return CtlSources(
            node=parts.settings.node_name,
            cache=parts.cache,
            states=parts.states,
            cpu_limits=lambda: cpu_limits(parts.actions.claims.snapshot(Level.QOS)),
            status=self._status,
            plugins=lambda: [dataclasses.asdict(plugin) for plugin in parts.plugins.describe()],
            release=parts.plugins.release,
            node_metric=self._node_metric,
            explain=parts.explainer.explain,
            dry_run=parts.dry_run,
            audit=parts.audit,
            doctor=Doctor(
                parts.settings.paths,
                self._run_dir.path,
                lambda: claimable_by_others(parts.settings.plugins.registry),
                parts.cluster.check_own_node if parts.cluster else None,
            ).look,
            record=partial(record, parts),
        )

    def _status(self) -> Mapping[str, object]:
        """What `koordletctl status` shows."""
        parts, settings = self._parts, self._parts.settings
        health = parts.health.parts()
        gates, working = settings.gates, settings.gates.working()
        cache = parts.cache.stats()
        return {
            "version": koordlet.__version__,
            "node": settings.node_name,
            "pid": os.getpid(),
            "started": datetime.fromtimestamp(self._started_at, UTC).isoformat(timespec="seconds"),
            "mode": "standalone" if settings.mode.standalone else "cluster",
            "mode_reason": settings.mode.reason,
            "address": str(self._address),
            "run_dir": str(self._run_dir),
            "cgroups": str(parts.host.cgroups.flavour),
            "cgroup_driver": parts.driver(),
            "health": worst(health).value,
            "problems": {name: part.reason for name, part in health.items() if part.reason},
            "observe_only": parts.actions.observe_only(),
            "claims": parts.actions.claims.count(),
            "dry_run": settings.dry_run.to_json(),
            "evictions": {
                "per_hour": parts.actions.budget.limit,
                "used": parts.actions.budget.used,
            },
            "gates_on": working,
            "gates_not_built": sorted(filter(gates.enabled, set(gates.names()) - set(working))),
            "manager_duties": self._manager_duties(),
            "needs_restart": list(parts.live_config.waiting) if parts.live_config else [],
            "values": parts.actions.restorer.counts(),
            "pods": len(parts.states.pods()),
            "series": cache.series,
            "cache_bytes": cache.file_bytes,
            "samples_dropped": {reason: n for reason, n in cache.dropped.items() if n},
        }

    def _manager_duties(self) -> Mapping[str, str]:
        """Whose the objects of this node are; nothing where that is no question."""
        cluster = self._parts.cluster
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
