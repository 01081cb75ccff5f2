"""The life of the daemon: start in order, stand by, lead, stop in order."""

import asyncio
import socket

from prometheus_client import Counter

from koord.cluster.state import ClusterState
from koord.component.components import ComponentSet
from koord.component.config.follower import AppliedConfig, ConfigFollower
from koord.component.http.exposition import Exposition
from koord.component.leaderelection.metrics import LeaderMetrics
from koord.component.tasks import supervise
from koord.controlplane.connection import Connection, connect
from koord.controlplane.effective import effective_text
from koord.controlplane.flags import CONFIG_VERBOSITY
from koord.controlplane.kinds import SERVED
from koord.controlplane.lifecycle import Lifecycle, add_common_components, lead, new_elector
from koord.controlplane.program import Program
from koord.controlplane.serving import HttpSources, Servers
from koord.util.clock import Clock
from koord.util.health import Health
from koord.util.logs import get_logger
from koord.util.stop import Stop
from koord_descheduler import NAME, PREFIX, __version__
from koord_descheduler.config.read import ReadConfig, config_parser
from koord_descheduler.config.write import to_document
from koord_descheduler.daemon.live import LiveConfiguration
from koord_descheduler.daemon.serving import create_app
from koord_descheduler.daemon.settings import Settings
from koord_descheduler.framework.decisions import Decisions
from koord_descheduler.framework.handle import Services
from koord_descheduler.framework.metrics import FrameworkMetrics
from koord_descheduler.framework.migrations import Migrations
from koord_descheduler.ledger.keeper import LedgerKeeper
from koord_descheduler.ledger.ledger import Ledger
from koord_descheduler.ledger.metrics import LedgerMetrics

PROGRAM = Program(NAME, PREFIX, __version__)

log = get_logger("koord_descheduler.daemon")


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
    connection = connect_daemon(settings, exposition, clock, hostname)
    try:
        await Daemon(settings, connection, exposition, clock, hostname).run(stop)
    finally:
        await connection.close()


def connect_daemon(
    settings: Settings, exposition: Exposition, clock: Clock, hostname: str
) -> Connection[ClusterState]:
    """Make what talks to the API server. Raises ConfigError; see connect."""
    return connect(
        settings.configuration.client_connection,
        ClusterState(),
        SERVED,
        PROGRAM,
        environ=settings.environ,
        hostname=hostname,
        clock=clock,
        registry=exposition.internal,
    )


class Daemon:
    """One daemon, run once."""

    def __init__(
        self,
        settings: Settings,
        connection: Connection[ClusterState],
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
        self._elector = new_elector(
            election,
            connection,
            self._lead,
            clock,
            hostname=hostname,
            metrics=LeaderMetrics(registry),
            component=settings.configuration.profiles[0].name,
        )
        self._lifecycle = Lifecycle(self._components, clock)
        self._follower = self._new_follower(exposition)
        sources = HttpSources(
            exposition=exposition,
            health=self._components.health,
            clock=clock,
            guard=connection.guard,
            configuration=lambda: to_document(self._live.configuration),
        )
        config = settings.configuration
        self._servers = Servers(
            (config.healthz_bind_address, config.metrics_bind_address),
            settings.options,
            sources,
            lambda: create_app(sources, self._services.decisions, self._leads),
        )
        self._add_components(exposition)

    async def run(self, stop: Stop | None) -> None:
        """Start, work until stop, and stop. Raises as run_daemon."""
        reread = self._follower.ask if self._follower else None
        await self._lifecycle.run(self._servers, self._work, self._live.close, stop, reread)

    def _leads(self) -> bool:
        return self._elector is None or self._elector.leading

    async def _work(self, stop: Stop) -> None:
        """Build the profiles, wait for the lead, lead."""
        await stop.bound(self._live.build())
        if stop.is_set():
            return
        self._announce()
        await lead(self._elector, self._lead, stop)

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
        applied = await self._lifecycle.background.bound(self._live.apply(read))
        return applied or AppliedConfig(changed=())

    def _add_components(self, exposition: Exposition) -> None:
        components = self._components
        add_common_components(components, self._connection, exposition, self._elector)
        components.health.register("cycles", self._live.cycles.health)
        components.health.register("ledger", self._keeper.health)
        components.add("config", self._follower)
        components.add("certificate", self._servers.certificate)

    def _announce(self) -> None:
        """Log that the daemon has started, and what of its settings has no effect."""
        settings, config = self._settings, self._settings.configuration
        log.info(
            "daemon.started",
            version=__version__,
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
            log.info("config.effective", config=effective_text(settings.document()))
