"""A daemon of the control plane: options in, start, leadership and stop in order, status out."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from aiohttp import web

from koord.cluster.state import ClusterState
from koord.component.config.field_errors import InvalidConfig
from koord.component.eventloops import LoopHandle, LoopLag, LoopThread
from koord.component.flags import HelpRequested
from koord.component.http.exposition import Exposition
from koord.component.leaderelection import (
    ElectionConfig,
    LeaderElector,
    LeaderMetrics,
    LeaseLost,
    unique_identity,
)
from koord.component.metrics import FamilyRules
from koord.component.page.serving import Page
from koord.component.process import (
    freeze_growing_heap,
    handle_signals,
    kill_process_after,
    restore_gc,
)
from koord.component.supervisor import ComponentSet, Run, supervise
from koord.controlplane.cluster_access import ClusterAccess
from koord.controlplane.sections import ComponentInfo, LeaderElection
from koord.controlplane.serving import PART, HttpSources, MainLoop, Servers
from koord.controlplane.settings import (
    CONFIG_VERBOSITY,
    CommonSettings,
    ControlPlaneFlags,
    effective_text,
    write_configuration,
)
from koord.kube.events import Event
from koord.util.clock import Clock, SystemClock
from koord.util.errors import InvalidObject, KoordError, OptionError
from koord.util.health import OK, Health
from koord.util.logs import LevelSpec, configure, get_logger, parse_levels, redirect_library_logs
from koord.util.stop import Stop
from koord.util.text import printable

STOP_LIMIT = 9.0  # seconds for an orderly stop; Koordinator's manifests give 10

log = get_logger("koord.daemon")

T = TypeVar("T")
S = TypeVar("S", bound=ClusterState)


class FinishedWithoutElection(KoordError):
    """The work has ended, and no lease says that it may."""


class Lifecycle:
    """Runs the components of a daemon, its servers, and its work."""

    def __init__(self, components: ComponentSet, home: MainLoop, clock: Clock) -> None:
        self._components = components
        self._home = home
        self._clock = clock
        self._listener_thread: LoopThread | None = None
        self.background = Stop(clock)
        """Set when the work has ended; components run until then."""

    async def run(
        self,
        servers: Servers,
        work: Run,
        close: Callable[[], Awaitable[None]],
        stop: Stop | None,
        reread: Callable[[], None] | None = None,
    ) -> None:
        """Serve, run all components, and work until stop; then close and stop.

        stop None: as a process, until SIGINT or SIGTERM; reread is called at SIGHUP. Listeners and
        the lease have a thread then, so that neither waits for what the daemon computes.

        Raises:
            KoordError: an address cannot be listened on, or the work has failed.
        """
        if stop is None:
            stop = Stop(self._clock)
            handle_signals(stop, reread)
            asyncio.ensure_future(_bound_the_end(stop))  # noqa: RUF006 - ends with the process
            self._start_listener_thread()
        error: Exception | None = None
        try:
            await self._call_on_listener_loop(servers.start)
            async with asyncio.TaskGroup() as group:
                self._start_components(group)
                try:
                    await work(stop)
                except Exception as err:  # a task group would wrap it
                    error = err
                finally:
                    await close()
                    self.background.set()
        finally:
            await self._call_on_listener_loop(servers.stop)
            if self._listener_thread is not None:
                await self._listener_thread.stop()
        log.info("daemon.stopped")
        if error is not None:
            raise error

    async def lead(self, elector: LeaderElector | None, work: Run, stop: Stop) -> None:
        """Work while this replica leads; without an elector at once, whatever others do.

        Raises:
            LeaseLost: another replica may lead.
            FinishedWithoutElection: stop was set, and there is no leader election.
        """
        if elector is None:
            await work(stop)
            raise FinishedWithoutElection("finished without leader elect")
        if self._listener_thread is None:
            await elector.run(stop)
            return

        async def run(stop: Stop) -> None:
            try:
                await elector.run(stop)
            except LeaseLost as err:
                self._end_if_stuck(err)
                raise
            finally:
                await elector.close()

        await self._listener_thread.loop.run(run, stop)

    def _start_listener_thread(self) -> None:
        """Start a thread for the requests that need a response in time."""
        home = LoopHandle(asyncio.get_running_loop(), self._clock)
        self._home.leave(home)
        self._components.runs[PART] = home.watch
        self._listener_thread = LoopThread("listeners", self._clock)
        self._listener_thread.start()

    async def _call_on_listener_loop(self, work: Callable[[], Awaitable[None]]) -> None:
        await (work() if self._listener_thread is None else self._listener_thread.loop.call(work))

    def _end_if_stuck(self, err: LeaseLost) -> None:
        """End the process: nothing else of it does, as the loop of all parts does not turn."""
        home = self._home.loop
        if home is not None and home.is_stuck:
            log.error("event_loop.stuck", seconds=round(home.busy_seconds), error=str(err))
            kill_process_after(0.0)

    def _start_components(self, group: asyncio.TaskGroup) -> None:
        health = self._components.health
        for name, run in self._components.runs.items():
            group.create_task(supervise(name, run, self.background, self._clock, health), name=name)


def new_elector(
    election: LeaderElection,
    connection: ClusterAccess[Any],
    home: MainLoop,
    work: Run,
    clock: Clock,
    *,
    hostname: str,
    metrics: LeaderMetrics,
    component: str,
) -> LeaderElector | None:
    """Return the candidate, in whose name as component events are sent.

    None: this process leads whatever others do. home: where the work and the events are, as the
    candidate may be on another loop.
    """

    async def run(stop: Stop) -> None:
        await (work(stop) if home.loop is None else home.loop.run(work, stop))

    def announce(event: Event) -> None:
        emit = connection.events.emit
        if home.loop is None:
            emit(event)
        else:
            home.loop.post(emit, event)

    def blocker() -> str:
        if home.loop is None or not home.loop.is_stuck:
            return ""
        return f"its event loop without a turn for {home.loop.busy_seconds:.0f} s"

    if not election.leader_elect:
        return None
    config = ElectionConfig(
        namespace=election.resource_namespace,
        name=election.resource_name,
        identity=unique_identity(hostname),
        lease_duration=election.lease_duration,
        renew_deadline=election.renew_deadline,
        retry_period=election.retry_period,
    )
    return LeaderElector(
        connection.lease_client,
        config,
        run,
        clock,
        metrics=metrics,
        announce=announce,
        component=component,
        blocker=blocker,
    )


def add_common_components(
    components: ComponentSet,
    connection: ClusterAccess[Any],
    exposition: Exposition,
    elector: LeaderElector | None,
) -> None:
    """Take in what each daemon has: ping, the lead, the cluster, informers, events, the loop."""
    health, runs = components.health, components.runs
    health.register("ping", lambda: OK, live=True)
    if elector is not None:
        health.register(elector.name, elector.health)
    components.add("cluster", connection.feed, ready=True)
    health.register_group("cluster", connection.feed.kinds_health)
    health.register_group("informer", connection.informers.health)
    health.register("informers", connection.informers.start_health, ready=True)
    health.register("tokens", connection.guard.health)

    async def settle(stop: Stop) -> None:
        """Exclude the cluster's objects from garbage collection, once they are synced."""
        await stop.bound(connection.feed.wait_synced())
        restore_gc()

    runs["informers"] = connection.informers.run
    runs["events"] = connection.events.run
    runs["heap"] = settle
    runs["loop lag"] = LoopLag(exposition.internal, exposition.rules.prefix).run


class RunnableDaemon(Protocol):
    """A daemon that was built, to be run once."""

    async def run(self, stop: Stop | None) -> None: ...


async def run_connected(
    settings: T,
    exposition: Exposition,
    clock: Clock,
    connect: Callable[[T, Exposition, Clock, str], ClusterAccess[S]],
    build: Callable[[T, ClusterAccess[S], Exposition, Clock, str], RunnableDaemon],
    stop: Stop | None,
) -> None:
    """Connect, build and run a daemon until stop is set; None: until SIGINT or SIGTERM.

    connect and build get the host's name as the last. The connection is closed at the end.

    Raises:
        LeaseLost: another replica may be the leader.
        FinishedWithoutElection: stop was set, and there is no leader election.
        KoordError: the daemon could not start; the message says why.
    """
    hostname = socket.gethostname()
    connection = connect(settings, exposition, clock, hostname)
    try:
        await build(settings, connection, exposition, clock, hostname).run(stop)
    finally:
        await connection.close()


async def _bound_the_end(stop: Stop) -> None:
    await stop.wait()
    log.info("daemon.stopping")
    kill_process_after(STOP_LIMIT)


class CommonParts:
    """The parts of one daemon that every daemon has; `elect` and `serve` make the last of them."""

    def __init__(
        self,
        program: ComponentInfo,
        settings: CommonSettings[Any, Any],
        connection: ClusterAccess[Any],
        exposition: Exposition,
        clock: Clock,
    ) -> None:
        self.components = ComponentSet(Health())
        self._home = MainLoop(self.components.health)
        self.lifecycle = Lifecycle(self.components, self._home, clock)
        self._program = program
        self._settings = settings
        self._connection = connection
        self._exposition = exposition
        self._clock = clock
        self._elector: LeaderElector | None = None
        self._log = get_logger(f"{program.name.replace('-', '_')}.daemon")

    def elect(self, work: Run, *, hostname: str, component: str) -> None:
        """Make this replica take part in leader election; without a call it always leads.

        component: the name under which events are sent.
        """
        self._elector = new_elector(
            self._settings.configuration.leader_election,
            self._connection,
            self._home,
            work,
            self._clock,
            hostname=hostname,
            metrics=LeaderMetrics(self._exposition.internal),
            component=component,
        )

    def is_leader(self) -> bool:
        """Whether this replica leads right now."""
        return self._elector is None or self._elector.leading

    def follows(self) -> bool:
        """Whether another replica has led before this one."""
        return self._elector is not None and self._elector.follows

    async def lead(self, work: Run, stop: Stop) -> None:
        """Work while this replica leads; see Lifecycle.lead."""
        await self.lifecycle.lead(self._elector, work, stop)

    def serve(
        self,
        plain: Iterable[str],
        configuration: Callable[[], object],
        create: Callable[[HttpSources], web.Application],
        page: Callable[[], Page] | None,
    ) -> None:
        """Make what listens, and take all common parts in, of which the certificate is the last.

        page: makes the status page, if there is to be one; None: the daemon has none.

        Raises:
            CertificateError: it cannot be used.
        """
        sources = HttpSources(
            exposition=self._exposition,
            health=self.components.health,
            clock=self._clock,
            guard=self._connection.guard,
            configuration=configuration,
            page=page() if page and self._settings.options.status_page.value else None,
            home=self._home,
        )
        self._servers = Servers(plain, self._settings.options, sources, lambda: create(sources))
        add_common_components(self.components, self._connection, self._exposition, self._elector)

    def announce(self, facts: Mapping[str, object], document: object) -> None:
        """Log that the daemon has started, and what of its settings has no effect.

        document is the configuration, without what nobody should read in a log.
        """
        settings = self._settings
        self._log.info(
            "daemon.started",
            version=self._program.version,
            server=self._connection.server,
            config=str(settings.config_path or ""),
            **facts,
            leader_elect=self._elector is not None,
        )
        for event, warned in settings.warnings():
            self._log.warning(event, **warned)
        if settings.options.v.value >= CONFIG_VERBOSITY:
            self._log.info("config.effective", config=effective_text(document))

    async def run(
        self,
        work: Run,
        close: Callable[[], Awaitable[None]],
        stop: Stop | None,
        reread: Callable[[], None] | None = None,
    ) -> None:
        """Start, work until stop, and stop; see Lifecycle.run."""
        self.components.add("certificate", self._servers.certificate)
        await self.lifecycle.run(self._servers, work, close, stop, reread)


@asynccontextmanager
async def run_in_background(clock: Clock) -> AsyncIterator[Callable[[Run], object]]:
    """Yield a function that starts a part as a task; the parts run until the block ends."""
    stop = Stop(clock)
    try:
        async with asyncio.TaskGroup() as group:
            try:
                yield lambda run: group.create_task(_of(run, stop))
            finally:
                stop.set()
    except ExceptionGroup as errors:
        if len(errors.exceptions) > 1:
            raise
        raise errors.exceptions[0] from None  # whoever knows it need not know of the group


async def _of(run: Run, stop: Stop) -> None:
    await run(stop)


SWITCH_INTERVAL = 0.001  # seconds a thread may keep the interpreter while the loop wants it


class DaemonSettings(Protocol):
    """The settings that a process needs."""

    @property
    def options(self) -> ControlPlaneFlags: ...

    def document(self) -> object:
        """Return the effective configuration as JSON values that read back."""


D = TypeVar("D", bound=DaemonSettings)


@dataclass(frozen=True, kw_only=True, slots=True)
class Process(Generic[D]):
    """The parts of a daemon's program."""

    program: ComponentInfo
    families: FamilyRules
    load: Callable[[Sequence[str], Mapping[str, str], bool], D]
    """load(argv, environ, terminal): returns the settings; raises OptionError and the like."""
    run: Callable[[D, Exposition, Clock], Awaitable[None]]
    commands: str = ""  # for the help: the commands besides the daemon


def run_process(process: Process[D], argv: Sequence[str]) -> int:
    """Run a daemon.

    Returns 0 after a stop, 1 after a lost lease, a failed start, or a stop without leader election;
    2 for unusable options or an unusable file.
    """
    name = process.program.name
    if list(argv) in (["--version"], ["-version"]):
        print(f"{name} {process.program.version}")
        return 0
    sys.setswitchinterval(SWITCH_INTERVAL)
    terminal = sys.stderr.isatty()
    configure("console" if terminal else "json", LevelSpec(), name)  # until the flags are known
    try:
        asyncio.run(_run(process, argv, terminal=terminal))
    except HelpRequested as help_text:
        print(help_text)
        if process.commands:
            print(process.commands)
    except (OptionError, InvalidConfig, InvalidObject) as err:
        print(f"{name}: {printable(err)}\n{name} --help lists the flags", file=sys.stderr)
        return 2
    except KoordError as err:
        print(f"{name}: {printable(err)}", file=sys.stderr)
        return 1
    return 0


async def _run(process: Process[D], argv: Sequence[str], *, terminal: bool) -> None:
    clock = SystemClock()
    exposition = Exposition(process.families, clock=clock)
    redirect_library_logs(clock)
    settings = process.load(argv, os.environ, terminal)
    options = settings.options
    configure(options.log_format, parse_levels(options.level_spec), process.program.name)
    if options.write_config_to.value:
        write_configuration(settings.document(), Path(options.write_config_to.value))
        return
    freeze_growing_heap()
    await process.run(settings, exposition, clock)
