"""The life of the daemon: start in order, stand by, lead, stop in order."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter

from koord.component.config.follower import AppliedConfig, ConfigFollower
from koord.component.http.certificate import ServingCertificate
from koord.component.http.endpoints import guarded
from koord.component.http.exposition import Exposition
from koord.component.http.sockets import Address
from koord.component.metrics import FamilyRules
from koord.component.page.serving import Page
from koord.component.plugins.discovery import discover
from koord.component.supervisor import Run, supervise
from koord.controlplane import serving
from koord.controlplane.cluster_access import ClusterAccess, LeaderClient, connect
from koord.controlplane.daemon import (
    CommonParts,
    Process,
    run_connected,
    run_in_background,
    run_process,
)
from koord.controlplane.sections import ComponentInfo
from koord.controlplane.serving import HttpSources, oldest_tls
from koord.kube.client import CONFIG_MAPS
from koord.kube.events import Event, EventType, ObjectRef
from koord.kube.managedobjects import NODE_METRIC, NODE_SLO, StoredObject
from koord.kube.sloconfig import ConfigSource
from koord.util.clock import Clock
from koord.util.errors import OptionError
from koord.util.logs import get_logger
from koord.util.stop import Stop
from koord_manager import NAME, PREFIX, __version__
from koord_manager.cluster import FOLLOWED, METRIC, ManagerCluster, NodeChange, NodeObjects
from koord_manager.config import FORMAT, ReadConfig, to_document
from koord_manager.controllers.noderesource import NodeResources
from koord_manager.controllers.specs import ManagedSpecs
from koord_manager.controllers.worker import NodeResourceMetrics, NodeWorker, SpecMetrics
from koord_manager.daemon.settings import Settings, load_settings
from koord_manager.explanation import explain_handler
from koord_manager.framework.calculator import Calculator
from koord_manager.framework.facts import ClusterConfig, load_cluster_config
from koord_manager.framework.interfaces import Services
from koord_manager.framework.loading import Plugins, fields_read, known_plugins
from koord_manager.webhook import PodWebhook

if TYPE_CHECKING:
    from koord_manager.certificates import ManagedCertificate

PROGRAM = ComponentInfo(NAME, PREFIX, __version__)

_NEEDS_RESTART = {
    "leaderElection": "leader_election",
    "clientConnection": "client_connection",
    "dryRun": "dry_run",
    "pluginConfig": "args",
}

log = get_logger("koord_manager.daemon")


async def run_daemon(
    settings: Settings, exposition: Exposition, clock: Clock, *, stop: Stop | None = None
) -> None:
    """Run until stop is set, or until a signal when there is none; see run_connected."""
    await run_connected(settings, exposition, clock, connect_daemon, Daemon, stop)


def connect_daemon(
    settings: Settings, exposition: Exposition, clock: Clock, hostname: str
) -> ClusterAccess[ManagerCluster]:
    """Make what talks to the API server. Raises ConfigError; see connect."""
    cluster = ManagerCluster(fields_read(settings.registry, settings.enabled))
    cluster.now = clock.wall
    return connect(
        settings.configuration.client_connection,
        cluster,
        FOLLOWED,
        PROGRAM,
        environ=settings.environ,
        hostname=hostname,
        clock=clock,
        registry=exposition.internal,
        kept=cluster.kept,
    )


class Daemon:
    """One daemon, run once."""

    def __init__(
        self,
        settings: Settings,
        connection: ClusterAccess[ManagerCluster],
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
        client = LeaderClient(connection.transport, clock, self._common.is_leader)
        self._client = client
        registry, cluster = exposition.internal, connection.state
        configuration, own = settings.configuration, settings.own
        self._in_force = configuration
        self._follower = self._new_follower(registry)
        self._metrics = metrics = NodeResourceMetrics(registry)
        self._plugins = Plugins(
            settings.registry,
            settings.enabled,
            configuration.args,
            settings.gates,
            clock,
            lambda name: metrics.plugin_runs.inc(name, "failed", "ResourceCalculate"),
            Services(
                client=client,
                informer=connection.informers.informer,
                emit=connection.events.emit,
                dry_run=configuration.dry_run,
                webhook=own.webhook is not None,
                profiles_interval=own.profiles_interval.value,
                all_profiles=own.all_profiles.value,
            ),
        )
        self._kept: ManagedCertificate | None = None  # of the webhook; None: it is in files
        self._webhook = self._new_webhook(registry)
        self._config: ConfigSource[ClusterConfig] = ConfigSource(
            connection.client,
            own.config_namespace.value,
            own.config_name.value,
            clock,
            self._look_at_all,
            self._report_config,
            load=load_cluster_config,
            unset=ClusterConfig(),
        )
        self._objects = NodeObjects(connection.client, clock, self._changed)
        self._calculator = Calculator(
            self._plugins.node_resource,
            declared=cluster.kept.node_annotations,
            max_decrease_percent=configuration.max_decrease_percent,
            call=self._plugins.calculate,
            limits=self._plugins.limits,
            failed=self._plugins.failed,
        )
        self._resources = NodeResources(
            cluster,
            self._objects,
            self._calculator,
            lambda: self._config.current,
            client,
            clock,
            metrics,
            connection.events.emit,
            dry_run=configuration.dry_run,
        )
        self._workers: list[NodeWorker] = [
            self._resources,
            *self._specs(cluster, client, SpecMetrics(registry)),
        ]
        cluster.listen(self._changed)
        self._common.elect(self._lead, hostname=hostname, component=NAME)
        self._common.serve(
            (settings.options.plain_address, *own.addresses),
            lambda: to_document(self._in_force),
            self._create_app,
            self._page,
        )
        self._add_components()

    def _new_follower(self, registry: CollectorRegistry) -> ConfigFollower[ReadConfig] | None:
        """Return the follower that reads the file again when it changes; None: there is no file."""
        settings = self._settings
        if settings.config_path is None:
            return None
        readings = Counter(
            f"{PREFIX}_config_readings_total",
            "Readings of the configuration file by outcome: applied or refused.",
            ["outcome"],
            registry=registry,
        )
        election = settings.own.leader_election(settings.options.leader_election())
        return ConfigFollower(
            settings.config_path,
            FORMAT.parser(known_plugins(settings.registry), election),
            self._apply,
            count=lambda outcome: readings.labels(outcome).inc(),
        )

    def _apply(self, read: ReadConfig) -> AppliedConfig:
        """Put into force what can be without a restart."""
        before, after = self._in_force, read.configuration
        waiting = [name for name, attribute in _NEEDS_RESTART.items()
                   if getattr(before, attribute) != getattr(after, attribute)]  # fmt: skip
        percent = after.max_decrease_percent
        changed = ("maxDecreasePercent",) if percent != before.max_decrease_percent else ()
        self._calculator.max_decrease_percent = percent
        self._in_force = replace(before, max_decrease_percent=percent)
        return AppliedConfig(changed=changed, needs_restart=tuple(waiting))

    def _new_webhook(self, registry: CollectorRegistry) -> PodWebhook | None:
        options, address = self._settings.options, self._settings.own.webhook
        if address is None:
            return None
        certificate, key = options.tls_cert_file.value, options.tls_private_key_file.value
        make = partial(PodWebhook, self._plugins.mutate_pod, address)
        if certificate:
            serving = ServingCertificate(Path(certificate), Path(key))
            serving.context.minimum_version = oldest_tls(options)
            self._common.components.add("webhook certificate", serving)
            return make(serving.context, self._clock, registry)
        self._kept = kept = self._keep_certificate(address, registry)
        kept.context.minimum_version = oldest_tls(options)
        self._common.components.add(kept.name, kept, ready=True)
        return make(kept.context, self._clock, registry, wait_usable=kept.wait_usable)

    def _keep_certificate(
        self, address: Address, registry: CollectorRegistry
    ) -> "ManagedCertificate":
        try:
            from koord_manager.certificates import ManagedCertificate
        except ImportError as err:  # the extra manager has what signs
            hint = (
                "install the package cryptography, as koordlet[manager] does, or give "
                "--tls-cert-file and --tls-private-key-file"
            )
            raise OptionError("--webhook-bind-address", str(address), hint) from err
        settings, connection = self._settings, self._connection
        return ManagedCertificate(
            connection.client,
            self._client,
            settings.environ.get("POD_NAMESPACE") or settings.own.config_namespace.value,
            self._clock,
            connection.events.emit,
            registry,
            dry_run=settings.configuration.dry_run,
        )

    def _specs(
        self, cluster: ManagerCluster, client: LeaderClient, metrics: SpecMetrics
    ) -> list[ManagedSpecs]:
        snapshot, slos = cluster.snapshot, self._objects.slos

        def metric_objects() -> Mapping[str, StoredObject]:
            return _StoredMetrics(cluster)

        make = partial(
            ManagedSpecs,
            nodes=snapshot.node,
            node_names=lambda: tuple(snapshot.node_names()),
            config=lambda: self._config.current,
            client=client,
            clock=self._clock,
            metrics=metrics,
            dry_run=self._settings.configuration.dry_run,
        )
        is_listed = self._connection.feed.is_listed
        return [
            make(
                NODE_METRIC,
                NodeChange.METRIC_SPEC,
                metric_objects,
                is_synced=lambda: is_listed(METRIC),
            ),
            make(NODE_SLO, NodeChange.SLO, lambda: slos.objects, is_synced=lambda: slos.synced),
        ]

    def _add_components(self) -> None:
        components = self._common.components
        components.add("config", self._follower)
        health, runs = components.health, components.runs
        for name, informer in self._objects.all.items():
            health.register(name, informer.health)
            runs[name] = informer.run
        health.register(self._config.name, self._config.health)
        runs[self._config.name] = self._config.run
        health.register("plugins", self._plugins.health)
        for worker in self._workers:
            health.register(worker.name, worker.health)
        if self._webhook is not None:
            runs[self._webhook.name] = self._webhook.run
        for plugin in self._plugins.controllers:
            health.register(plugin.name, plugin.health)

    def _create_app(self, sources: HttpSources) -> web.Application:
        app = serving.create_app(sources)
        handler = explain_handler(self._resources, self._common.is_leader)
        app.router.add_get("/explain", guarded(sources.guard, handler))
        return app

    def _page(self) -> Page:
        from koord_manager.page import PageSources, manager_page

        sources = PageSources(
            health=self._common.components.health,
            is_leader=self._common.is_leader,
            configuration=lambda: self._in_force,
            plugins=[
                one.name for one in (*self._plugins.node_resource, *self._plugins.controllers)
            ],
            webhook=self._webhook is not None,
            cluster=self._connection.state,
            metrics=self._metrics,
            resources=self._resources,
        )
        return manager_page(sources, self._clock)

    async def run(self, stop: Stop | None) -> None:
        """Start, work until stop, and stop. Raises as run_connected."""
        self._config.need(True)
        reread = self._follower.ask if self._follower else None
        await self._common.run(self._work, self._plugins.close, stop, reread)

    async def _work(self, stop: Stop) -> None:
        settings = self._settings
        facts = {
            "plugins": [
                one.name for one in (*self._plugins.node_resource, *self._plugins.controllers)
            ],
            "dry_run": settings.configuration.dry_run,
        }
        self._common.announce(facts, settings.document())
        await self._common.lead(self._lead, stop)

    async def _lead(self, stop: Stop) -> None:
        """Keep all nodes in line, once the cluster is known, until stop."""
        began = self._clock.monotonic()
        async with run_in_background(self._clock) as start:
            if self._kept is not None:  # pods need no report of a node
                start(partial(self._run_supervised, self._kept.name, self._kept.keep))
            await stop.bound(self._know_cluster())
            if stop.is_set():
                return
            seconds = round(self._clock.monotonic() - began, 3)
            log.info("cluster.synced", nodes=len(self._connection.state.snapshot), seconds=seconds)
            for worker in self._workers:
                start(partial(self._run_supervised, worker.name, worker.run))
            for plugin in self._plugins.controllers:
                start(partial(self._run_supervised, plugin.name, plugin.run))
            await stop.wait()

    async def _run_supervised(self, name: str, run: Run, stop: Stop) -> None:
        await supervise(name, run, stop, self._clock, self._common.components.health)

    async def _know_cluster(self) -> None:
        await self._connection.feed.wait_synced()
        for informer in self._objects.all.values():
            await informer.wait_answered()

    def _changed(self, name: str, change: NodeChange, delay: float) -> None:
        for worker in self._workers:
            worker.changed(name, change, delay)

    def _look_at_all(self) -> None:
        for worker in self._workers:
            for name in worker.everything():
                worker.queue.add(name)

    def _report_config(self, text: str) -> None:
        own = self._settings.own
        about = ObjectRef(
            CONFIG_MAPS.api_version, "ConfigMap", own.config_name.value, own.config_namespace.value
        )
        log.warning("config_map.rejected", message=text)
        self._metrics.rejections.inc()
        if self._common.is_leader():
            self._connection.events.emit(
                Event(about, EventType.WARNING, "SLOCfgUnmarshalFailed", text, NAME)
            )


class _StoredMetrics(Mapping[str, StoredObject]):
    """The NodeMetrics of a cluster, as they are stored; a live view."""

    def __init__(self, cluster: ManagerCluster) -> None:
        self._metrics = cluster.metrics

    def __getitem__(self, name: str) -> StoredObject:
        return self._metrics[name].stored

    def __iter__(self) -> Iterator[str]:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)


_COMMANDS = f"""
Commands beside the daemon, each with its own --help:
  {NAME} plan      what the nodes of a dump offer, and would by another strategy
  {NAME} explain   what a node offers, and why, by a running {NAME}"""
UNSUFFIXED_COUNTERS = frozenset(
    f"{PREFIX}_{name}"
    for name in (
        "node_resource_reconcile_count",
        "node_resource_run_plugin_status",
        "nodemetric_reconcile_count",
        "nodeslo_reconcile_count",
    )
)
FAMILIES = FamilyRules(prefix=PREFIX, unsuffixed_counters=UNSUFFIXED_COUNTERS)


def run(argv: Sequence[str]) -> int:
    """Run the daemon; see run_process for the exit status."""
    process = Process(
        program=PROGRAM, families=FAMILIES, load=_load, run=run_daemon, commands=_COMMANDS
    )
    return run_process(process, argv)


def _load(argv: Sequence[str], environ: Mapping[str, str], terminal: bool) -> Settings:
    return load_settings(argv, environ, discover=discover, terminal=terminal)
