"""The life of a daemon of the control plane: start in order, work, perhaps as a leader, stop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from koord.component.components import ComponentSet
from koord.component.heap import leave_heap
from koord.component.http.exposition import Exposition
from koord.component.http.looplag import LoopLag
from koord.component.leaderelection.config import ElectionConfig, unique_identity
from koord.component.leaderelection.elector import LeaderElector, LostLease
from koord.component.leaderelection.metrics import LeaderMetrics
from koord.component.otherloops import LoopThread, OtherLoop
from koord.component.signals import end_process_after, take_signals
from koord.component.tasks import Run, supervise
from koord.controlplane.connection import Connection
from koord.controlplane.sections import LeaderElection
from koord.controlplane.serving import PART, HomeLoop, Servers
from koord.kube.eventobjects import Event
from koord.util.clock import Clock
from koord.util.errors import KoordError
from koord.util.health import OK
from koord.util.logs import get_logger
from koord.util.stop import Stop

STOP_LIMIT = 9.0  # seconds for an orderly stop; Koordinator's manifests give 10

log = get_logger("koord.daemon")


class FinishedWithoutElection(KoordError):
    """The work has ended, and no lease says that it may."""


class Lifecycle:
    """Runs the components of a daemon, its servers, and its work."""

    def __init__(self, components: ComponentSet, home: HomeLoop, clock: Clock) -> None:
        self._components = components
        self._home = home
        self._clock = clock
        self._beside: LoopThread | None = None
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
            take_signals(stop, reread)
            asyncio.ensure_future(_bound_the_end(stop))  # noqa: RUF006 - ends with the process
            self._begin_beside()
        error: Exception | None = None
        try:
            await self._call_beside(servers.start)
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
            await self._call_beside(servers.stop)
            if self._beside is not None:
                await self._beside.stop()
        log.info("daemon.stopped")
        if error is not None:
            raise error

    async def lead(self, elector: LeaderElector | None, work: Run, stop: Stop) -> None:
        """Work while this replica leads; without an elector at once, whatever others do.

        Raises:
            LostLease: another replica may lead.
            FinishedWithoutElection: stop came, and there is no leader election.
        """
        if elector is None:
            await work(stop)
            raise FinishedWithoutElection("finished without leader elect")
        if self._beside is None:
            await elector.run(stop)
            return

        async def run(stop: Stop) -> None:
            try:
                await elector.run(stop)
            except LostLease as err:
                self._end_if_stuck(err)
                raise
            finally:
                await elector.close()

        await self._beside.loop.run(run, stop)

    def _begin_beside(self) -> None:
        """Have a thread for what must be answered in time."""
        home = OtherLoop(asyncio.get_running_loop(), self._clock)
        self._home.leave(home)
        self._components.runs[PART] = home.watch
        self._beside = LoopThread("listeners", self._clock)
        self._beside.start()

    async def _call_beside(self, work: Callable[[], Awaitable[None]]) -> None:
        await (work() if self._beside is None else self._beside.loop.call(work))

    def _end_if_stuck(self, err: LostLease) -> None:
        """End the process: nothing else of it does, as the loop of all parts does not turn."""
        home = self._home.loop
        if home is not None and home.is_stuck:
            log.error("loop.stuck", seconds=round(home.busy_seconds), error=str(err))
            end_process_after(0.0)

    def _start_components(self, group: asyncio.TaskGroup) -> None:
        health = self._components.health
        for name, run in self._components.runs.items():
            group.create_task(supervise(name, run, self.background, self._clock, health), name=name)


def new_elector(
    election: LeaderElection,
    connection: Connection[Any],
    home: HomeLoop,
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

    def hindrance() -> str:
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
        hindrance=hindrance,
    )


def add_common_components(
    components: ComponentSet,
    connection: Connection[Any],
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
        """Have the garbage collector leave the cluster alone, once it is there."""
        await stop.bound(connection.feed.wait_synced())
        leave_heap()

    runs["informers"] = connection.informers.run
    runs["events"] = connection.events.run
    runs["heap"] = settle
    runs["loop lag"] = LoopLag(exposition.internal, exposition.rules.prefix).run


async def _bound_the_end(stop: Stop) -> None:
    await stop.wait()
    log.info("daemon.stopping")
    end_process_after(STOP_LIMIT)
