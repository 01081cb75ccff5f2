"""The life of the daemon: start in order, stand by, lead, stop in order."""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import Counter

from koord.cluster.state import ClusterState
from koord.component.config.follower import AppliedConfig, ConfigFollower
from koord.component.http.endpoints import guarded
from koord.component.http.exposition import Exposition
from koord.component.page.serving import Page
from koord.component.supervisor import supervise
from koord.controlplane import serving
from koord.controlplane.cluster_access import ClusterAccess, connect
from koord.controlplane.clusterfeed import SERVED_KINDS
from koord.controlplane.daemon import CommonParts, run_connected, run_in_background
from koord.controlplane.sections import ComponentInfo
from koord.controlplane.serving import HttpSources
from koord.util.clock import Clock
from koord.util.logs import get_logger
from koord.util.stop import Stop
from koord_descheduler import NAME, PREFIX, __version__
from koord_descheduler.config.file import ReadConfig, config_parser, to_document
from koord_descheduler.daemon.live import LiveConfiguration
from koord_descheduler.daemon.settings import Settings
from koord_descheduler.framework.decisions import Decisions
from koord_descheduler.framework.evictor import FrameworkMetrics
from koord_descheduler.framework.handle import Migrations, Services
from koord_descheduler.framework.profile import fields_read
from koord_descheduler.ledger.keeper import LedgerStore
from koord_descheduler.ledger.ledger import Ledger, LedgerMetrics
from koord_descheduler.planning.report import explain_handler


def create_app(
    sources: HttpSources, decisions: Decisions, is_leader: Callable[[], bool]
) -> web.Application:
    """The application."""
    app = serving.create_app(sources)
    app.router.add_get("/explain", guarded(sources.guard, explain_handler(decisions, is_leader)))
    return app


PROGRAM = ComponentInfo(NAME, PREFIX, __version__)

log = get_logger("koord_descheduler.daemon")


async def run_daemon(
    settings: Settings, exposition: Exposition, clock: Clock, *, stop: Stop | None = None
) -> None:
    """Run until stop is set, or until a signal when there is none; see run_connected."""
    await run_connected(settings, exposition, clock, connect_daemon, Daemon, stop)


def connect_daemon(
    settings: Settings, exposition: Exposition, clock: Clock, hostname: str
) -> ClusterAccess[ClusterState]:
    """Make what talks to the API server. Raises ConfigError; see connect."""
    return connect(
        settings.configuration.client_connection,
        ClusterState(),
        SERVED_KINDS,
        PROGRAM,
        environ=settings.environ,
        hostname=hostname,
        clock=clock,
        registry=exposition.internal,
        kept=fields_read(settings.configuration, settings.registry),
    )


class Daemon:
    """One daemon, run once."""

    def __init__(
        self,
        settings: Settings,
        connection: ClusterAccess[ClusterState],
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
        self._common = CommonParts(PROGRAM, settings, connection, exposition, clock)
        registry, election = exposition.internal, settings.configuration.leader_election
        metrics, namespace = LedgerMetrics(registry), election.resource_namespace
        ledger = Ledger(
            connection.state,
            settings.configuration.eviction_ledger,
            metrics,
            connection.events.emit,
        )
        self._keeper = LedgerStore(ledger, connection.client, namespace, clock, metrics)
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
        self._live = LiveConfiguration(
            settings.read, settings.registry, self._services, ledger, keep=connection.feed.keep
        )
        component = settings.configuration.profiles[0].name
        self._common.elect(self._lead, hostname=hostname, component=component)
        self._follower = self._new_follower(exposition)
        config = settings.configuration
        self._common.serve(
            (config.healthz_bind_address, config.metrics_bind_address),
            lambda: to_document(self._live.configuration),
            lambda sources: create_app(sources, self._services.decisions, self._common.is_leader),
            lambda: self._page(ledger),
        )
        components = self._common.components
        components.health.register("cycles", self._live.cycles.health)
        components.health.register("ledger", self._keeper.health)
        components.add("config", self._follower)

    def _page(self, ledger: Ledger) -> Page:
        from koord_descheduler.daemon.page import descheduler_page

        health = self._common.components.health
        decisions, is_leader = self._services.decisions, self._common.is_leader
        return descheduler_page(health, decisions, ledger, self._live, is_leader, self._clock)

    async def run(self, stop: Stop | None) -> None:
        """Start, work until stop, and stop. Raises as run_connected."""
        reread = self._follower.ask if self._follower else None
        await self._common.run(self._work, self._live.close, stop, reread)

    async def _work(self, stop: Stop) -> None:
        """Build the profiles, wait for the lead, lead."""
        await stop.bound(self._live.build())
        if stop.is_set():
            return
        self._announce()
        await self._common.lead(self._lead, stop)

    async def _lead(self, stop: Stop) -> None:
        """Run the shared parts of plugins, and cycles once the cluster is known."""
        async with run_in_background(self._clock) as start:
            start(self._run_shared)
            await stop.bound(self._know_cluster())
            if not stop.is_set():
                start(self._keep_ledger)
                await self._live.cycles.run(stop)

    async def _keep_ledger(self, stop: Stop) -> None:
        health = self._common.components.health
        await supervise("ledger", self._keeper.run, stop, self._clock, health)

    async def _run_shared(self, stop: Stop) -> None:
        """Run the shared parts of plugins, once the cluster is known, until stop."""
        await stop.bound(self._connection.feed.wait_synced())
        if not stop.is_set():
            await self._services.shared.run(stop, self._clock, self._common.components.health)

    async def _know_cluster(self) -> None:
        """Return when the first cycle can begin."""
        began = self._clock.monotonic()
        await self._connection.feed.wait_synced()
        await self._keeper.load()
        await self._services.shared.wait_ready()
        seconds = round(self._clock.monotonic() - began, 3)
        log.info("cluster.synced", nodes=len(self._connection.state.snapshot), seconds=seconds)

    def _new_follower(self, exposition: Exposition) -> ConfigFollower[ReadConfig] | None:
        """Return the follower that reads the file again when it changes; None: there is no file."""
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
        applied = await self._common.lifecycle.background.bound(self._live.apply(read))
        return applied or AppliedConfig(changed=())

    def _announce(self) -> None:
        settings, config = self._settings, self._settings.configuration
        facts = {
            "interval_s": config.descheduling_interval,
            "dry_run": config.dry_run,
            "profiles": {profile.name: sorted(profile.names) for profile in config.profiles},
        }
        self._common.announce(facts, settings.document())
