"""The daemon from options to exit status: start in order, stand by, lead, stop in order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from aiohttp import web
from prometheus_client import Counter

from koord.cluster.state import ClusterState
from koord.component.config.document import read_config
from koord.component.config.follower import AppliedConfig, ConfigFollower
from koord.component.flags import FeatureGates, FeatureSpec, FlagSet
from koord.component.http.endpoints import guarded
from koord.component.http.exposition import Exposition
from koord.component.metrics import FamilyRules
from koord.component.page.serving import Page
from koord.component.plugins.discovery import discover
from koord.component.supervisor import supervise
from koord.controlplane import serving
from koord.controlplane.cluster_access import ClusterAccess, connect
from koord.controlplane.clusterfeed import SERVED_KINDS
from koord.controlplane.daemon import (
    CommonParts,
    Process,
    run_connected,
    run_in_background,
    run_process,
)
from koord.controlplane.sections import ComponentInfo
from koord.controlplane.serving import HttpSources
from koord.controlplane.settings import (
    CommonSettings,
    ControlPlaneDefaults,
    ControlPlaneFlags,
    Discover,
    apply_command_line,
)
from koord.util.clock import Clock
from koord.util.logs import get_logger
from koord.util.stop import Stop
from koord_descheduler import NAME, PREFIX, __version__
from koord_descheduler.config import (
    DEFAULT_PORT,
    Configuration,
    KnownPlugins,
    ReadConfig,
    config_parser,
    default_configuration,
    to_document,
)
from koord_descheduler.daemon.live import LiveConfiguration
from koord_descheduler.framework.evictor import UNSUFFIXED_COUNTERS, Decisions, FrameworkMetrics
from koord_descheduler.framework.handle import Migrations, Services
from koord_descheduler.framework.profile import PluginRegistry, fields_read, known_plugins
from koord_descheduler.ledger.ledger import Ledger, LedgerMetrics, LedgerStore
from koord_descheduler.planning import explain_handler

# Source: Koordinator, pkg/features (koord-descheduler).
GATES: Mapping[str, FeatureSpec] = {"DisablePVCReservation": FeatureSpec()}


def feature_gates() -> FeatureGates:
    """Return the table with all gates at their defaults."""
    return FeatureGates(GATES, NAME)


DEFAULTS = ControlPlaneDefaults(
    name=NAME,
    namespace="koordinator-system",
    port=DEFAULT_PORT,
    secure_port=10258,
    file_has_addresses=True,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings(CommonSettings[PluginRegistry, Configuration]):
    """Everything that is decided before the first part is built."""

    known: KnownPlugins

    def document(self) -> object:
        """Return the effective configuration as JSON values that read back."""
        return to_document(self.configuration)


def new_flags(*, terminal: bool = False) -> tuple[FlagSet, ControlPlaneFlags]:
    """Return the flags of the command; terminal says whether stderr is one."""
    flags = FlagSet(NAME, underscores=True)
    return flags, ControlPlaneFlags(flags, DEFAULTS, terminal=terminal)


def load_settings(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    discover: Discover[PluginRegistry],
    terminal: bool = False,
) -> Settings:
    """Return the settings of a command line and environment.

    Raises:
        OptionError, InvalidConfig, InvalidObject: a flag or the file cannot be used; nothing has
            been started.
        HelpRequested: the user asked for help.
    """
    flags, options = new_flags(terminal=terminal)
    gates, registry = feature_gates(), PluginRegistry()
    path = apply_command_line(argv, flags, options, gates)
    problems = tuple(discover(registry))
    known = known_plugins(registry)
    read = (
        read_config(path, config_parser(known, options.leader_election()))
        if path
        else _without_file(options, known)
    )
    return Settings(
        flags=flags,
        options=options,
        gates=gates,
        registry=registry,
        known=known,
        plugin_problems=problems,
        read=read,
        config_path=path,
        environ=environ,
    )


def _without_file(options: ControlPlaneFlags, known: KnownPlugins) -> ReadConfig:
    read = default_configuration(known, options.leader_election())
    address = options.plain_address
    configuration = replace(
        read.configuration, healthz_bind_address=address, metrics_bind_address=address
    )
    return replace(read, configuration=configuration)


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
        """Return the page with its views, for clients that may read the configuration."""
        from koord_descheduler.page import VIEWS, DeschedulerPage, PageSources

        sources = PageSources(
            health=self._common.components.health,
            decisions=self._services.decisions,
            is_leader=self._common.is_leader,
            configuration=lambda: self._live.configuration,
            entries=lambda: ledger.entries,
            pauses=lambda: ledger.pauses,
        )
        views = {name: view.read_bytes() for name, view in VIEWS.items()}
        return Page(source=DeschedulerPage(sources, self._clock), views=views, path="/configz")

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


_COMMANDS = f"""
Commands beside the daemon, each with its own --help:
  {NAME} plan      what a cycle would do in a cluster, or in a dump of one
  {NAME} explain   what the last cycles of a running {NAME} decided
  {NAME} record    keeps what a cluster does in a file
  {NAME} replay    what another configuration would have done with that"""
FAMILIES = FamilyRules(prefix=PREFIX, unsuffixed_counters=UNSUFFIXED_COUNTERS)


def run(argv: Sequence[str]) -> int:
    """Run the daemon; see run_process for the exit status."""
    process = Process(
        program=PROGRAM, families=FAMILIES, load=_load, run=run_daemon, commands=_COMMANDS
    )
    return run_process(process, argv)


def _load(argv: Sequence[str], environ: Mapping[str, str], terminal: bool) -> Settings:
    return load_settings(argv, environ, discover=discover, terminal=terminal)
