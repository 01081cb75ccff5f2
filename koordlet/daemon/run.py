"""The life of the daemon: start in order, work until stop, stop in order."""

import asyncio

import koordlet
from koord.component.http.exposition import Exposition
from koord.component.process import SystemdNotifier, handle_signals, kill_process_after
from koord.component.supervisor import supervise
from koord.util.clock import Clock
from koord.util.logs import get_logger
from koord.util.ownedfiles import OwnedDirectory
from koord.util.stop import Stop
from koordlet.collectors.container_cpi import MAX_DESCRIPTORS as CPI_DESCRIPTORS
from koordlet.daemon.components import DaemonComponents, build
from koordlet.daemon.environment import RunDir
from koordlet.daemon.executors import EXECUTOR_DESCRIPTORS
from koordlet.daemon.servers import DaemonServers
from koordlet.daemon.settings import Settings
from koordlet.doctor.privileges import missing_privileges
from koordlet.executor.restorer import OnExit
from koordlet.host.files import raise_nofile

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
        self._notifier = SystemdNotifier()
        self._servers = DaemonServers(components, run_dir)

    async def run(self, stop: Stop | None) -> None:
        """Start, work until stop, and stop: plugins first, then what they stand on."""
        components = self._components
        background, owns_process = Stop(components.clock), stop is None
        if stop is None:
            stop = Stop(components.clock)
            live_config = components.serving.live_config
            handle_signals(stop, live_config.ask if live_config else None)
        held = components.settings.options.descriptor_budget.value + EXECUTOR_DESCRIPTORS
        raise_nofile(held + CPI_DESCRIPTORS + OTHER_DESCRIPTORS)
        try:
            await self._servers.start()
            await self._begin_acting(stop)
            self._announce()
            async with asyncio.TaskGroup() as group:
                self._start_components(group, background)
                plugins_end = Stop(components.clock)
                group.create_task(self._end_plugins(stop, plugins_end), name="end of plugins")
                await components.qos.plugins.run(plugins_end)
                await stop.wait()
                self._notifier.send("STOPPING=1")
                log.info("daemon.stopping")
                if owns_process:
                    kill_process_after(STOP_LIMIT)
                if not self._keeps():
                    await components.qos.executors.restorer.end()
                background.set()
        finally:
            await self._servers.stop()
        log.info("daemon.stopped")

    async def _begin_acting(self, stop: Stop) -> None:
        """Settle the values that an earlier process left in the kernel, and whether ours stay."""
        executors, plugins = self._components.qos.executors, self._components.qos.plugins
        await executors.restorer.begin(plugins.enabled() if self._keeps() else ())
        executors.claims.freeze_when(lambda: stop.is_set() and self._keeps())

    async def _end_plugins(self, stop: Stop, plugins_end: Stop) -> None:
        """End the plugins, and with them their claims, at the stop."""
        await stop.wait()
        if self._components.qos.hooks is not None and not self._keeps():
            await self._components.qos.hooks.settle()
        plugins_end.set()

    def _start_components(self, group: asyncio.TaskGroup, background: Stop) -> None:
        clock, health = self._components.clock, self._components.health
        for name, run in self._components.runs.items():
            group.create_task(supervise(name, run, background, clock, health), name=name)
        watchdog = self._notifier.feed_watchdog(background, health)
        group.create_task(watchdog, name="systemd watchdog")

    def _keeps(self) -> bool:
        """Whether changed kernel values are left for the next process."""
        return self._components.settings.options.on_exit.value == OnExit.KEEP

    def _announce(self) -> None:
        """Log and notify that the daemon has started."""
        settings = self._components.settings
        log.info(
            "daemon.started",
            version=koordlet.__version__,
            node=settings.node_name,
            address=str(self._servers.address),
            tls=self._components.serving.certificate is not None,
            page=self._servers.page_url,
            run_dir=str(self._run_dir),
            standalone=settings.mode.standalone,
            cgroups=str(self._components.host.cgroups.flavour),
        )
        for event, facts in settings.warnings():
            log.warning(event, **facts)
        if lacking := missing_privileges(settings.paths.proc):
            log.info("privileges.missing", without=lacking)
        self._notifier.send("READY=1", f"STATUS=measuring {settings.node_name}")
