"""Builds the daemon: the one place where packages of the same layer meet."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from koord.api.nodemetric import MemoryPolicy
from koord.component.components import ComponentSet, Part
from koord.component.http.certificate import ServingCertificate
from koord.component.http.exposition import Exposition
from koord.component.http.looplag import LoopLag
from koord.component.tasks import Run
from koord.util.atomicfile import write_atomic
from koord.util.clock import Clock
from koord.util.health import OK, Health, PartHealth, Status
from koord.util.owneddir import OwnedDirectory
from koordlet.collectors.engine.metrics import CollectorMetrics
from koordlet.collectors.engine.reader import Reader
from koordlet.collectors.engine.sampler import Sampler
from koordlet.collectors.engine.sampling import SamplingContext, SamplingPass
from koordlet.collectors.registry import CollectorOptions, build_collectors
from koordlet.daemon.actions import Actions, build_actions
from koordlet.daemon.audit import Audit, build_audit
from koordlet.daemon.dryrun import DryRunSwitch
from koordlet.daemon.explain import Explainer
from koordlet.daemon.liveconfig import LiveConfig
from koordlet.daemon.otheragent import OtherAgent
from koordlet.daemon.settings import Settings
from koordlet.host.cgroups.cgrouptree import CgroupTree
from koordlet.host.descriptors import Descriptors
from koordlet.host.files import parse_file
from koordlet.host.host import Host
from koordlet.host.proc.otheragent import other_agent_process
from koordlet.host.proc.procfiles import parse_boot_id
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import Cadence, Keep
from koordlet.plugin.client import UnavailableClient
from koordlet.plugin.publishing import with_published
from koordlet.qosmanager.manager import QOSManager
from koordlet.replay.recorder import Append, Recorder
from koordlet.reporter.loop import NodeMetricReporter, ReportOptions, standalone_interval
from koordlet.reporter.report import AllSinks, FileSink
from koordlet.statesinformer.callbacks import StateType
from koordlet.statesinformer.filesources import node_file, node_slo_file
from koordlet.statesinformer.hostnode import HostNode
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.podsource import PodSource

if TYPE_CHECKING:
    from koordlet.daemon.cluster import Cluster


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The parts of one daemon, wired but not started."""

    settings: Settings
    clock: Clock
    health: Health
    exposition: Exposition
    cache: MetricCache
    host: Host  # to look at from worker threads; each sampling thread has one of its own
    states: StatesInformer
    driver: Callable[[], str]  # the cgroup driver, as pods' cgroups show it now
    actions: Actions
    audit: Audit
    recorder: Recorder
    explainer: Explainer
    dry_run: DryRunSwitch
    plugins: QOSManager
    other_agent: OtherAgent
    reporter: NodeMetricReporter | None  # None: --enable-node-metric-report=false
    live_config: LiveConfig | None  # None: no --config
    cluster: "Cluster | None"  # None: standalone
    certificate: ServingCertificate | None  # None: plain HTTP
    components: Mapping[str, Run]  # what runs supervised, from before the plugins until after


class Source(Part, Protocol):
    """Something that brings states in."""

    name: str


def build(
    settings: Settings, exposition: Exposition, clock: Clock, run_dir: OwnedDirectory
) -> Parts:
    """Make and connect all parts; files in run_dir are opened, nothing runs yet.

    Raises:
        KoordletError: the host's /proc cannot be read, it is not clear which API server to use, or
            the server's certificate cannot be used.
    """
    boot_id = parse_file(settings.paths.proc / "sys/kernel/random/boot_id", parse_boot_id)
    health, host, states = Health(), Host(settings.paths), StatesInformer(clock)
    cache = _cache(settings, states, clock, run_dir, boot_id)
    recorder = Recorder(clock)
    append = recorder.beside(cache.append)
    sampling, sampler = _sampling(settings, states, cache, append, clock, exposition)
    other_agent = _other_agent(settings, states, clock, exposition)
    cluster = _cluster(settings, states, cache, clock, exposition, other_agent)
    reporter = _reporter(settings, states, cache, clock, run_dir, exposition, cluster)
    api = cluster.evictions if cluster else None
    audit = build_audit(settings, clock, exposition.internal)
    pods = _pod_source(settings, states, host, clock, cluster)
    actions = build_actions(
        settings,
        clock,
        run_dir,
        boot_id,
        exposition.internal,
        api,
        other_agent,
        audit.log,
        [recorder.changed],
        layout=lambda: pods.layout,
    )
    plugins = QOSManager(
        settings.plugins,
        client=UnavailableClient() if cluster is None else cluster.plugin_client,
        metric_cache=cache,
        states_informer=states,
        evictor=actions.evictor,
        claims=actions.claims,
        kernel=recorder.kernel(actions.kernel),
        health=health,
        run_dir=run_dir,
        boot_id=boot_id,
        problems=settings.plugin_problems,
    )
    sources = [pods, *_other_sources(settings, states, clock, cluster)]
    live_config = LiveConfig(settings, settings.config_file) if settings.config_file else None
    certificate = _certificate(settings)

    components = ComponentSet(health)
    components.add("states", states, ready=True)
    components.add("sampling", sampler, live=True, ready=True)
    health.register_group("collector", sampling.health)
    health.register("metric cache", lambda: _cache_health(cache))
    health.register_group("source", lambda: {source.name: source.health() for source in sources})
    components.runs |= {f"source {source.name}": source.run for source in sources}
    components.runs["loop lag"] = LoopLag(exposition.internal).run
    components.add("other agent", other_agent)
    components.add("acting lock", actions.lock)
    components.add("evictions", actions.evictor)
    components.runs["claims"] = actions.claims.run
    components.add("executor", actions.restorer)
    audit.add_to(components)
    components.add("reporter", reporter)
    components.add("config", live_config)
    components.add("certificate", certificate)
    if cluster is not None:
        _add_cluster(components, health, cluster)
    exposition.add_sources(sampling.sources)
    return Parts(
        settings=settings,
        clock=clock,
        health=health,
        exposition=exposition,
        cache=cache,
        host=host,
        states=states,
        driver=lambda: pods.layout.driver.value,
        actions=actions,
        audit=audit,
        recorder=recorder,
        explainer=Explainer(
            settings=settings, states=states, actions=actions, host=host, clock=clock
        ),
        dry_run=DryRunSwitch(settings=settings, actions=actions),
        plugins=plugins,
        other_agent=other_agent,
        reporter=reporter,
        live_config=live_config,
        cluster=cluster,
        certificate=certificate,
        components=components.runs,
    )


def _add_cluster(components: ComponentSet, health: Health, cluster: "Cluster") -> None:
    health.register("tokens", cluster.guard.health)
    components.runs["events"] = cluster.events.run
    components.add("topology report", cluster.topology.report)
    if cluster.duties is not None:
        health.register_group(cluster.duties.name, cluster.duties.health)
        components.runs[cluster.duties.name] = cluster.duties.run


def _cache(
    settings: Settings, states: StatesInformer, clock: Clock, run_dir: OwnedDirectory, boot_id: str
) -> MetricCache:
    """The metric cache, keeping as much as the reports of the present spec need."""
    cache = MetricCache(
        run_dir / "metrics",
        boot_id,
        clock,
        intervals=_periods(settings),
        retentions=_retentions(states),
        kinds=with_published(
            each for entry in settings.plugins.registry for each in entry.plugin.publishes
        ),
    )

    def follow_spec(*_: object) -> None:
        for keep, seconds in _retentions(states).items():
            cache.set_retention(keep, seconds)

    states.register_callbacks(
        StateType.NODE_METRIC_SPEC, "metric_cache", "keep what the new spec needs", follow_spec
    )
    return cache


def _retentions(states: StatesInformer) -> dict[Keep, float]:
    spec = states.node_metric_spec()
    return {
        Keep.NODE: max(spec.aggregate_duration, *spec.durations),
        Keep.POD: spec.aggregate_duration,
    }


def _periods(settings: Settings) -> dict[Cadence, float]:
    options = settings.options
    return {
        Cadence.USAGE: options.collect_res_used_interval.value,
        Cadence.PSI: options.psi_collector_interval.value,
        Cadence.NETWORK: options.network_collector_interval.value,
        Cadence.NODE_INFO: options.collect_node_cpu_info_interval.value,
        Cadence.STORAGE: options.collect_node_storage_info_interval.value,
    }


def _sampling(
    settings: Settings,
    states: StatesInformer,
    cache: MetricCache,
    append: Append,
    clock: Clock,
    exposition: Exposition,
) -> tuple[SamplingPass, Sampler]:
    options, paths, periods = settings.options, settings.paths, _periods(settings)
    label = options.metrics_node_label.value
    collectors = build_collectors(
        CollectorOptions(
            node=settings.node_name,
            periods=periods,
            outdated=options.collect_sys_metric_outdated_interval.value,
            exporter_compat=options.exporter_compat.value.settle(settings.mode.standalone),
            constant_label=(label, settings.node_name) if label else None,
        ),
        paths,
        cache.put,
        lambda: (
            options.enable_pagecache_collector.value
            or states.node_metric_spec().memory_policy is MemoryPolicy.WITH_PAGE_CACHE
        ),
    )
    context = SamplingContext(
        enabled=settings.gates.enabled,
        pods=states.pods,
        slo=states.node_slo,
        append=append,
    )
    metrics = CollectorMetrics(exposition.internal)
    sampling = SamplingPass(collectors, periods, context, clock, metrics)
    budget = options.descriptor_budget.value
    sampler = Sampler(
        sampling,
        lambda lease, skips: Reader(Host(paths, Descriptors(budget)), lease, skips, clock),
        periods,
        clock,
        metrics,
    )
    return sampling, sampler


def _other_agent(
    settings: Settings, states: StatesInformer, clock: Clock, exposition: Exposition
) -> OtherAgent:
    other_agent = OtherAgent(
        clock,
        exposition.internal,
        synced=states.has_synced,
        force=settings.options.force.value,
    )

    def process() -> str:
        pid = other_agent_process(settings.paths.proc)
        return "" if pid is None else f"Koordinator's koordlet runs here (process {pid})"

    other_agent.look_for(process)
    return other_agent


def _cluster(
    settings: Settings,
    states: StatesInformer,
    cache: MetricCache,
    clock: Clock,
    exposition: Exposition,
    other_agent: OtherAgent,
) -> "Cluster | None":
    if settings.mode.standalone:
        return None
    from koordlet.daemon.cluster import connect  # costs memory that standalone does not need

    return connect(settings, states, cache, clock, exposition.internal, other_agent)


def _reporter(
    settings: Settings,
    states: StatesInformer,
    cache: MetricCache,
    clock: Clock,
    run_dir: OwnedDirectory,
    exposition: Exposition,
    cluster: "Cluster | None",
) -> NodeMetricReporter | None:
    options = settings.options
    if not options.enable_node_metric_report.value:
        return None
    file = options.node_metric_file.value
    sinks = [FileSink(partial(write_atomic, Path(file)))] if file else []
    if cluster is None:
        sinks = sinks or [FileSink((run_dir / "nodemetric.json").write)]
        interval, sharp = standalone_interval(options.report_interval.value), 0.0
    else:
        interval, sharp = None, options.report_change_threshold.value / 100
    reporter = NodeMetricReporter(
        ReportOptions(
            node=settings.node_name,
            collect_interval=options.collect_res_used_interval.value,
            interval=interval,
            sharp=sharp,
        ),
        cache=cache,
        states=states,
        sink=AllSinks(*sinks, *([cluster.sink] if cluster else [])),
        pace=cluster.pace if cluster else None,
        clock=clock,
        registry=exposition.internal,
        expose=lambda: settings.gates.enabled("NodeMetricPromMetrics"),
    )
    exposition.add_sources(lambda: [reporter])
    return reporter


def _pod_source(
    settings: Settings,
    states: StatesInformer,
    host: Host,
    clock: Clock,
    cluster: "Cluster | None",
) -> PodSource:
    """Where pods come from: a file that the user names, else the cluster, else the cgroup tree."""
    tree = CgroupTree(host.cgroups.hierarchy("cpu", host.cgroups.version("cpu")), clock)
    file, live = settings.options.pods_file.value, cluster.pods if cluster else None
    return PodSource(
        tree,
        states,
        clock,
        pods_file=Path(file) if file else None,
        listing=live.listing if live else None,
        default_layout=host.layout,
        alarms=live.alarms if live else None,
        events=live.cgroup_events if live else None,
    )


def _other_sources(
    settings: Settings, states: StatesInformer, clock: Clock, cluster: "Cluster | None"
) -> Sequence[Source]:
    """Where the rest comes from: files that the user names, else the cluster, else the host."""
    sources = [_node_source(settings, states, clock, cluster)]
    if cluster is not None:
        sources += [cluster.node_metric, cluster.topology.source]
        if not settings.options.pods_file.value:
            sources.append(cluster.pods.listing)
    if settings.options.nodeslo_file.value:
        sources.append(node_slo_file(Path(settings.options.nodeslo_file.value), states, clock))
    elif cluster is not None:
        sources.append(cluster.node_slo)
    else:
        states.set_node_slo(None)
    return sources


def _node_source(
    settings: Settings, states: StatesInformer, clock: Clock, cluster: "Cluster | None"
) -> Source:
    if settings.options.node_file.value:
        return node_file(Path(settings.options.node_file.value), states, clock)
    if cluster is not None:
        return cluster.node
    return HostNode(settings.node_name, settings.paths.proc, states, clock)


def _certificate(settings: Settings) -> ServingCertificate | None:
    certificate = settings.options.tls_cert_file.value
    key = settings.options.tls_private_key_file.value
    return ServingCertificate(Path(certificate), Path(key)) if certificate else None


def _cache_health(cache: MetricCache) -> PartHealth:
    problems = cache.problems()
    return PartHealth(Status.DEGRADED, "; ".join(problems)) if problems else OK
