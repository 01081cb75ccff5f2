"""The life of the daemon: plugins, the cluster, stand by, lead, stop."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from aiohttp import web

from koord.cluster import kinds
from koord.component.http.endpoints import guarded
from koord.component.http.exposition import Exposition
from koord.component.http.sockets import Address
from koord.component.metrics import FamilyRules
from koord.component.page.serving import Page
from koord.component.plugins.discovery import discover
from koord.component.plugins.shared import ReadinessWaits, metered
from koord.component.supervisor import supervise
from koord.controlplane.cluster_access import ClusterAccess, LeaderClient, connect
from koord.controlplane.clusterfeed import SCHEDULER_KINDS
from koord.controlplane.daemon import (
    CommonParts,
    Process,
    run_connected,
    run_in_background,
    run_process,
)
from koord.controlplane.sections import ComponentInfo
from koord.controlplane.serving import HttpSources, create_app, oldest_tls
from koord.kube.events import EventLimits
from koord.util.clock import Clock
from koord.util.errors import KoordError
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import get_logger
from koord.util.stop import Stop
from koord_scheduler import NAME, PREFIX, __version__
from koord_scheduler.cache import SchedulerCache
from koord_scheduler.config.configuration import to_document, without_secrets
from koord_scheduler.daemon.endpoints import RestServices, add_debug_flags
from koord_scheduler.daemon.settings import Settings, load_settings
from koord_scheduler.extenders import Extenders, FollowedObjects
from koord_scheduler.extenderserver import Access, extender_server, served_profile, served_verbs
from koord_scheduler.framework.extension.auditor import WorkloadAuditor
from koord_scheduler.framework.extension.providers import OwnInformer, ProvidedServices
from koord_scheduler.framework.handle import new_services
from koord_scheduler.framework.nominator import Nominator
from koord_scheduler.framework.profile import (
    Additions,
    PluginRegistry,
    ProfileError,
    ProfilePlugins,
    build_profile,
    fields_read,
)
from koord_scheduler.planning.report import Running, explain_handler
from koord_scheduler.queue import BackoffOptions
from koord_scheduler.scheduling.metrics import SchedulingMetrics
from koord_scheduler.scheduling.scheduler import Scheduler

PROGRAM = ComponentInfo(NAME, PREFIX, __version__)
_UNUSED = (kinds.DEPLOYMENT, kinds.CLONE_SET, kinds.PRIORITY_CLASS)
FOLLOWED = {kind: place for kind, place in SCHEDULER_KINDS.items() if kind not in _UNUSED}
"""The kinds that a scheduler follows."""
MAX_WAITING_EVENTS = 8000
"""As many pods that are bound in a burst have their events; one takes about 1 kB until then."""

log = get_logger("koord_scheduler.daemon")


class ProfileErrors(KoordError):
    """Several profiles cannot be built."""


async def run_daemon(
    settings: Settings, exposition: Exposition, clock: Clock, *, stop: Stop | None = None
) -> None:
    """Run until stop is set, or until a signal when there is none; see run_connected."""
    await run_connected(settings, exposition, clock, connect_daemon, Daemon, stop)


def connect_daemon(
    settings: Settings, exposition: Exposition, clock: Clock, hostname: str
) -> ClusterAccess[SchedulerCache]:
    """Make what talks to the API server. Raises ConfigError; see connect."""
    client = settings.configuration.client_connection
    return connect(
        client,
        SchedulerCache(clock),
        FOLLOWED,
        PROGRAM,
        environ=settings.environ,
        hostname=hostname,
        clock=clock,
        registry=exposition.internal,
        events=EventLimits(
            waiting=MAX_WAITING_EVENTS,
            remembered=MAX_WAITING_EVENTS + 2000,
            rate=client.qps,
            burst=client.burst,
            writers=8,
        ),
        master=settings.own.master.value,
        kept=fields_read(settings.configuration.profiles, settings.registry),
    )


class Daemon:
    """One daemon, run once."""

    def __init__(
        self,
        settings: Settings,
        connection: ClusterAccess[SchedulerCache],
        exposition: Exposition,
        clock: Clock,
        hostname: str,
    ) -> None:
        """Build all parts but the plugins.

        Raises:
            KoordError: a certificate or the extender's token cannot be used.
        """
        self._settings = settings
        self._connection = connection
        self._clock = clock
        self._exposition = exposition
        self._common = CommonParts(PROGRAM, settings, connection, exposition, clock)
        self._serves = settings.own.extender_address is not None
        if not self._serves:  # as an extender each replica answers
            self._common.elect(self._lead, hostname=hostname, component=NAME)
        extenders = settings.configuration.extenders
        client = LeaderClient(connection.transport, clock, self._common.is_leader)
        objects = FollowedObjects(client, connection.informers, extenders)
        self._extenders = Extenders(extenders, objects, clock) if extenders else None
        self._services = new_services(
            client=client,
            events=connection.events,
            informers=connection.informers,
            cluster=connection.state,
            activate=self._activate,
            clock=clock,
            registry=exposition.internal,
            extenders=self._extenders,
            network=settings.own.network_topology.value,
            decoder=connection.feed.decoder,
            auditor=(
                WorkloadAuditor(exposition.internal, clock) if settings.own.auditor.value else None
            ),
            gates=settings.gates.enabled,
        )
        if settings.gates.enabled("CrossSchedulerNomination"):
            self._services.nominator.others = Nominator()
        self._services.nominator.suffices = settings.gates.enabled("SkipFilterWithNominatedPods")
        self._debugging = settings.own.debugging()
        self._metrics = SchedulingMetrics(exposition.internal)
        self._profiles: list[ProfilePlugins] = []
        self._informers: Mapping[str, OwnInformer] = {}
        self._waits = ReadinessWaits(clock)  # for the informers of plugins
        self._rest = RestServices(connection.state, self._common.is_leader, clock)
        self._scheduler: Scheduler | None = None  # until its plugins are made
        self._made = Stop(clock)  # they are
        plain = (settings.options.plain_address,)
        self._common.serve(plain, self._shown, self._app, self._page)
        components = self._common.components
        components.runs["cluster"] = self._follow
        if self._serves:
            oldest = oldest_tls(settings.options)
            self._access = Access(settings.own.extender_files, oldest)
            components.add("extender certificate", self._access.certificate)
            components.add("extender token", self._access.token)
        components.health.register("plugins", self._plugins_health)
        resources = self._services.custom_resources
        components.health.register("custom resources", resources.health)
        components.health.register("plugins' informers", self._waits.health, ready=True)
        components.health.register("start hooks", self._services.hooks.health, ready=True)
        components.health.register("scheduling", self._scheduling_health)

    async def run(self, stop: Stop | None) -> None:
        """Start, work until stop, and stop. Raises as run_connected."""
        await self._common.run(self._work, self._close, stop)

    async def _work(self, stop: Stop) -> None:
        """Make the plugins, follow the cluster, wait for the lead, schedule."""
        self._announce()
        began = self._clock.monotonic()
        await stop.bound(self._build())
        if stop.is_set():
            return
        self._made.set()
        await stop.bound(self._know_cluster())
        await stop.bound(self._services.hooks.run())
        if stop.is_set():
            return
        state = self._connection.state
        log.info(
            "scheduler.ready",
            nodes=len(state.snapshot),
            pods=state.snapshot.pod_count,
            seconds=round(self._clock.monotonic() - began, 3),
        )
        if self._serves:
            await self._serve(stop)
        else:
            await self._common.lead(self._lead, stop)

    async def _build(self) -> None:
        """Make all plugins of all profiles, and what schedules with them, or serves them.

        Raises:
            NotServable: kube-scheduler's protocol cannot do what a profile wants.
            ProfileError, ProfileErrors, ProvidedServicesError: everything that is wrong.
        """
        config, errors = self._settings.configuration, list[ProfileError]()
        profiles = tuple(map(served_profile, config.profiles)) if self._serves else config.profiles
        for profile in profiles:
            try:
                made = await build_profile(profile, self._settings.registry, self._services)
                self._profiles.append(made)
            except ProfileError as err:
                errors.append(err)
        if errors:
            raise ProfileErrors("; ".join(map(str, errors)))
        self._use(ProvidedServices(self._profiles))
        if self._serves:
            self._connection.state.observe(self._services.changes.notify)
            return
        own = self._settings.own
        backoff = BackoffOptions(initial=config.pod_initial_backoff, most=config.pod_max_backoff)
        self._scheduler = Scheduler(
            self._profiles,
            self._connection.state,
            self._services,
            self._metrics,
            backoff=backoff,
            resizes=self._settings.gates.enabled("ResizePod"),
            extenders=self._extenders,
            debugging=self._debugging,
            timeouts=own.timeouts(),
            max_in_unschedulable_pods=own.max_in_unschedulable_pods.value,
            diagnoses=own.diagnoses.value,
        )

    def _use(self, provided: ProvidedServices) -> None:
        """Start what plugins provide: endpoints, controllers, informers."""
        self._rest.provide(provided)
        provided.add_controllers(self._services.shared, self._settings.own.controller_plugins.value)
        self._informers = provided.informers
        for name, own in provided.informers.items():
            self._common.components.health.register(f"informer {name}", own.informer.health)
            self._waits.start(own.plugin, f'its informer "{own.name}"', own.informer.wait_synced)

    async def _know_cluster(self) -> None:
        """Return when everything has been listed and is watched, as far as it is waited for."""
        await self._connection.feed.wait_synced()
        await self._connection.informers.wait_synced()
        await self._waits.done()
        await self._connection.feed.wait_watching()

    async def _lead(self, stop: Stop) -> None:
        """Run what plugins have beside the cycles, and schedule once that is ready.

        After another replica, not before all that it has bound is known.
        """
        assert self._scheduler is not None  # noqa: S101 - plugins are made before
        async with run_in_background(self._clock) as start:
            start(self._run_shared)
            if self._common.follows():
                await stop.bound(self._connection.feed.catch_up(kinds.POD))
            await stop.bound(self._services.shared.wait_ready())
            if not stop.is_set():
                await self._scheduler.run(stop)

    async def _run_shared(self, stop: Stop) -> None:
        """Run what plugins have beside the cycles, until stop."""
        await self._services.shared.run(stop, self._clock, self._common.components.health)

    def _app(self, sources: HttpSources) -> web.Application:
        """The endpoints of every daemon, what the scheduler answers about pods, and debug flags."""
        app, handler = create_app(sources), explain_handler(self._running, self._common.is_leader)
        app.router.add_get("/explain", guarded(sources.guard, handler))
        add_debug_flags(app, self._debugging)
        self._rest.add_to(app, sources.guard)
        return app

    def _page(self) -> Page:
        from koord_scheduler.page import PageSources, scheduler_page

        sources = PageSources(
            health=self._common.components.health,
            is_leader=self._common.is_leader,
            serves=self._serves,
            running=self._running,
            permits=lambda: self._services.waiting,
        )
        return scheduler_page(sources, self._clock)

    def _running(self) -> Running | None:
        if self._scheduler is None:
            return None
        return Running(self._scheduler, self._connection.state)

    async def _serve(self, stop: Stop) -> None:
        """Answer a kube-scheduler until stop, once what plugins have beside that is ready.

        Raises:
            ListenError: the address cannot be listened on.
        """
        settings, registry = self._settings, self._exposition.internal
        address = settings.own.extender_address
        assert address is not None  # noqa: S101 - or this is not called
        server = extender_server(
            self._profiles,
            self._connection.state,
            address,
            self._access,
            timeout=settings.own.extender_timeout.value,
            fail_open=settings.own.extender_fail_open.value,
            kept=self._connection.feed.kept,
            registry=registry,
            clock=self._clock,
        )
        with self._services.limits:
            async with run_in_background(self._clock) as start:
                start(self._run_shared)
                try:
                    await stop.bound(self._services.shared.wait_ready())
                    if not stop.is_set():
                        await server.start()
                        listening = str(Address(address.host, server.port))
                        verbs = served_verbs(self._profiles)
                        log.info("extender.serving", address=listening, verbs=verbs)
                        await stop.wait()
                finally:
                    await server.stop()

    def _activate(self, uids: Iterable[str]) -> None:
        """Retry pods now; before the first list there are none."""
        if self._scheduler is not None:
            self._scheduler.activate(uids)

    async def _follow(self, stop: Stop) -> None:
        """Follow the cluster, from when the plugins are made: they learn of every object."""
        await stop.bound(self._made.wait())
        if stop.is_set():
            return
        async with asyncio.TaskGroup() as group:
            health = self._common.components.health
            for name, own in self._informers.items():
                run = metered(own.plugin, own.informer.run, self._clock)
                work = supervise(name, run, stop, self._clock, health)
                group.create_task(work, name=name)
            await self._connection.feed.run(stop)

    async def _close(self) -> None:
        await self._waits.close()
        while self._profiles:
            await self._profiles.pop().close()
        if self._extenders is not None:
            await self._extenders.close()

    def _plugins_health(self) -> PartHealth:
        """Degraded: a profile names plugins that this build does not have."""
        missing = self._settings.configuration.not_built
        if missing:
            return PartHealth(HealthStatus.DEGRADED, f"not built: {', '.join(missing)}")
        return OK

    def _scheduling_health(self) -> PartHealth:
        return OK if self._scheduler is None else self._scheduler.health()

    def _announce(self) -> None:
        profiles = self._settings.configuration.profiles
        named = {profile.scheduler_name: profile.names for profile in profiles}
        self._common.announce({"profiles": named}, self._shown())

    def _shown(self) -> object:
        """The configuration as all may see it."""
        return to_document(without_secrets(self._settings.configuration))


_COMMANDS = f"""
Commands beside the daemon, each with its own --help:
  {NAME} place     where a pod would go in a cluster, or in a dump of one, and why
  {NAME} simulate  where a list of pods would go, one after the other
  {NAME} explain   why a pod of a running {NAME} is where it is, or nowhere"""
FAMILIES = FamilyRules(prefix=PREFIX)


def run(argv: Sequence[str], additions: Additions = ()) -> int:
    """Run the daemon, with what else is added to its plugins; see run_process for the status."""

    def find(registry: PluginRegistry) -> Sequence[str]:
        problems = discover(registry)
        for add in additions:
            add(registry)
        return problems

    def load(argv: Sequence[str], environ: Mapping[str, str], terminal: bool) -> Settings:
        return load_settings(argv, environ, discover=find, terminal=terminal)

    process = Process(
        program=PROGRAM, families=FAMILIES, load=load, run=run_daemon, commands=_COMMANDS
    )
    return run_process(process, argv)
