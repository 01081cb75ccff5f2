"""The life of the daemon: start in order, stand by, lead, stop in order."""

import asyncio
import socket

from prometheus_client import Counter

import koord_descheduler
from koord.component.components import ComponentSet
from koord.component.config.follower import AppliedConfig, ConfigFollower
from koord.component.heap import leave_heap
from koord.component.http.exposition import Exposition
from koord.component.http.looplag import LoopLag
from koord.component.leaderelection.config import ElectionConfig, unique_identity
from koord.component.leaderelection.elector import LeaderElector
from koord.component.leaderelection.metrics import LeaderMetrics
from koord.component.signals import end_process_after, take_signals
from koord.component.tasks import supervise
from koord.controlplane.flags import CONFIG_VERBOSITY
from koord.util.clock import Clock
from koord.util.errors import KoordError
from koord.util.health import OK, Health
from koord.util.logs import get_logger
from koord.util.stop import Stop
from koord_descheduler import PREFIX
from koord_descheduler.config.read import ReadConfig, config_parser
from koord_descheduler.daemon.connection import Connection, connect
from koord_descheduler.daemon.live import LiveConfiguration
from koord_descheduler.daemon.serving import HttpSources, Servers
from koord_descheduler.daemon.settings import Settings, effective_text
from koord_descheduler.framework.decisions import Decisions
from koord_descheduler.framework.handle import Services
from koord_descheduler.framework.metrics import FrameworkMetrics
from koord_descheduler.framework.migrations import Migrations
from koord_descheduler.ledger.keeper import LedgerKeeper
from koord_descheduler.ledger.ledger import Ledger
from koord_descheduler.ledger.metrics import LedgerMetrics

STOP_LIMIT = 9.0  # seconds for an orderly stop; Koordinator's manifest gives 10

log = get_logger("koord_descheduler.daemon")


class FinishedWithoutElection(KoordError):
    """The work has ended, and no lease says that it may."""


async def run_daemon(
    settings: Settings, exposition: Exposition, clock: Clock, *, stop: Stop | None = None
) -> None:
    """Run until stop is set, or until SIGINT or SIGTERM when there is none.

    Raises:
        LostLease: another replica may lead.
        FinishedWithoutElection: stop came, and there is no leader election.
        KoordError: the daemon could not start; the message says why.
    """
    hostname = socket.gethostname()
    connection = connect(settings, hostname, clock, exposition.internal)
    try:
        await Daemon(settings, connection, exposition, clock, hostname).run(stop)
    finally:
        await connection.close()


class Daemon:
    """One daemon, run once."""

    def __init__(
        self,
        settings: Settings,
        connection: Connection,
        exposition: Exposition,
        clock: Clock,
        hostname: str,
    ) -> None:
        """Build all parts.

        Raises:
            KoordError: the certificate cannot be used.
        """
        self._settings = settings
        self._connection = connection
        self._clock = clock
        self._components = ComponentSet(Health())
        registry, election = exposition.internal, settings.configuration.leader_election
        metrics, namespace = LedgerMetrics(registry), election.resource_namespace
        ledger = Ledger(
            connection.state,
            settings.configuration.eviction_ledger,
            metrics,
            connection.events.emit,
        )
        self._keeper = LedgerKeeper(ledger, connection.client, namespace, clock, metrics)
        self._services = Services(
            client=connection.client,
            events=connection.events,
            informers=connection.informers,
            cluster=connection.state,
            decisions=Decisions(),
            migrations=Migrations(),
            clock=clock,
            metrics=FrameworkMetrics(registry),
            identity=f"{namespace}/{election.resource_name}",
            gate=ledger,
        )
        self._live = LiveConfiguration(settings.read, settings.registry, self._services, ledger)
        self._elector = self._new_elector(hostname, LeaderMetrics(registry))
        self._background = Stop(clock)
        self._follower = self._new_follower(exposition)
        self._servers = Servers(
            settings,
            HttpSources(
                exposition=exposition,
                health=self._components.health,
                clock=clock,
                guard=connection.guard,
                configuration=lambda: self._live.configuration,
                decisions=self._services.decisions,
                leads=lambda: self._elector is None or self._elector.leading,
            ),
        )
        self._add_components(exposition)

    async def run(self, stop: Stop | None) -> None:
        """Start, work until stop, and stop. Raises as run_daemon."""
        if stop is None:
            stop = Stop(self._clock)
            take_signals(stop, self._follower.ask if self._follower else None)
            asyncio.ensure_future(_bound_the_end(stop))  # noqa: RUF006 - ends with the process
        error: KoordError | None = None
        try:
            await self._servers.start()
            async with asyncio.TaskGroup() as group:
                self._start_components(group)
                try:
                    await self._work(stop)
                except KoordError as err:  # a task group would wrap it
                    error = err
                finally:
                    await self._live.close()
                    self._background.set()
        finally:
            await self._servers.stop()
        log.info("daemon.stopped")
        if error is not None:
            raise error

    async def _work(self, stop: Stop) -> None:
        """Build the profiles, wait for the lead, lead."""
        await stop.bound(self._live.build())
        if stop.is_set():
            return
        self._announce()
        if self._elector is not None:
            await self._elector.run(stop)
        else:
            await self._lead(stop)
            raise FinishedWithoutElection("finished without leader elect")

    async def _lead(self, stop: Stop) -> None:
        """Run what plugins have beside the cycles, and cycles once the cluster is known."""
        parts, health = Stop(self._clock), self._components.health
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_shared(parts))
            try:
                await stop.bound(self._know_cluster())
                if not stop.is_set():
                    keep = supervise("ledger", self._keeper.run, parts, self._clock, health)
                    group.create_task(keep)
                    await self._live.cycles.run(stop)
            finally:
                parts.set()

    async def _run_shared(self, stop: Stop) -> None:
        """Run what plugins have beside the cycles, once the cluster is known, until stop."""
        await stop.bound(self._connection.feed.wait_synced())
        if not stop.is_set():
            await self._services.shared.run(stop, self._clock, self._components.health)

    async def _know_cluster(self) -> None:
        """Return when the first cycle can begin."""
        began = self._clock.monotonic()
        await self._connection.feed.wait_synced()
        await self._keeper.load()
        await self._services.shared.wait_ready()
        seconds = round(self._clock.monotonic() - began, 3)
        log.info("cluster.known", nodes=len(self._connection.state.snapshot), seconds=seconds)

    async def _settle(self, stop: Stop) -> None:
        """Have the garbage collector leave the cluster alone, once it is there."""
        await stop.bound(self._connection.feed.wait_synced())
        leave_heap()

    def _new_elector(self, hostname: str, metrics: LeaderMetrics) -> LeaderElector | None:
        """The candidate; None: this process leads whatever others do."""
        election = self._settings.configuration.leader_election
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
            self._connection.client,
            config,
            self._lead,
            self._clock,
            metrics=metrics,
            announce=self._connection.events.emit,
            component=self._settings.configuration.profiles[0].name,
        )

    def _new_follower(self, exposition: Exposition) -> ConfigFollower[ReadConfig] | None:
        """What reads the file again; None: there is none."""
        settings = self._settings
        if settings.config_path is None:
            return None
        readings = Counter(
            f"{PREFIX}_config_readings_total",
            "Readings of the configuration file by outcome: applied or refused.",
            ["outcome"],
            registry=exposition.internal,
        )
        parse = config_parser(settings.known, settings.options.leader_election())
        return ConfigFollower(
            settings.config_path,
            parse,
            self._apply,
            count=lambda outcome: readings.labels(outcome).inc(),
        )

    async def _apply(self, read: ReadConfig) -> AppliedConfig:
        applied = await self._background.bound(self._live.apply(read))
        return applied or AppliedConfig(changed=())

    def _add_components(self, exposition: Exposition) -> None:
        connection, components = self._connection, self._components
        health, runs = components.health, components.runs
        health.register("ping", lambda: OK, live=True)
        if self._elector is not None:
            health.register(self._elector.name, self._elector.health)
        components.add("cluster", connection.feed, ready=True)
        health.register_group("cluster", connection.feed.kinds_health)
        health.register_group("informer", connection.informers.health)
        health.register("tokens", connection.guard.health)
        health.register("cycles", self._live.cycles.health)
        health.register("ledger", self._keeper.health)
        runs["informers"] = connection.informers.run
        runs["events"] = connection.events.run
        runs["heap"] = self._settle
        runs["loop lag"] = LoopLag(exposition.internal, exposition.rules.prefix).run
        components.add("config", self._follower)
        components.add("certificate", self._servers.certificate)

    def _start_components(self, group: asyncio.TaskGroup) -> None:
        stop, health = self._background, self._components.health
        for name, run in self._components.runs.items():
            group.create_task(supervise(name, run, stop, self._clock, health), name=name)

    def _announce(self) -> None:
        """Log that the daemon has started, and what of its settings has no effect."""
        settings, config = self._settings, self._settings.configuration
        log.info(
            "daemon.started",
            version=koord_descheduler.__version__,
            server=self._connection.server,
            config=str(settings.config_path or ""),
            interval_s=config.descheduling_interval,
            dry_run=config.dry_run,
            profiles={profile.name: sorted(profile.names) for profile in config.profiles},
            leader_elect=config.leader_election.leader_elect,
        )
        for event, facts in settings.warnings():
            log.warning(event, **facts)
        if settings.options.v.value >= CONFIG_VERBOSITY:
            log.info("config.effective", config=effective_text(config))


async def _bound_the_end(stop: Stop) -> None:
    await stop.wait()
    log.info("daemon.stopping")
    end_process_after(STOP_LIMIT)
