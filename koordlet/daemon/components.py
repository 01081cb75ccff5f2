"""The components of the daemon, built and connected: measure, report, act, serve."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from koord.component.eventloops import LoopLag
from koord.component.http.certificate import ServingCertificate
from koord.component.http.exposition import Exposition
from koord.component.supervisor import Component, ComponentSet, GatedComponent, LazyComponent, Run
from koord.util.clock import Clock
from koord.util.health import Health
from koord.util.ownedfiles import OwnedDirectory, write_atomic
from koordlet.daemon.measuring import Measuring, StateSources, build_measuring, build_sources
from koordlet.daemon.other_agents import OtherAgent
from koordlet.daemon.qos import QosParts, build_other_agent, build_qos
from koordlet.daemon.settings import LiveConfig, Settings, follow_config
from koordlet.host.errors import KernelFileError
from koordlet.host.files import parse_file
from koordlet.host.host import Host
from koordlet.host.procfiles import parse_boot_id
from koordlet.metriccache.cache import MetricCache
from koordlet.prediction.checkpoints import CheckpointFiles
from koordlet.prediction.models import HalfLives
from koordlet.prediction.prediction import PeakPrediction, PredictionOptions
from koordlet.reporter.loop import NodeMetricReporter, ReportOptions, standalone_interval
from koordlet.reporter.status import AllSinks, FileSink, Predict
from koordlet.statesinformer.informer import StatesInformer

if TYPE_CHECKING:
    from koordlet.daemon.cluster import Cluster


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """The exposition, the followed config file and the certificate of the daemon."""

    exposition: Exposition
    live_config: LiveConfig | None  # None: no --config
    certificate: ServingCertificate | None  # None: plain HTTP

    def add_to(self, components: ComponentSet) -> None:
        """Add the config file and the certificate, and register their health."""
        components.add("config", self.live_config)
        components.add("certificate", self.certificate)


def build_serving(settings: Settings, exposition: Exposition) -> Serving:
    """Make the parts.

    Raises:
        KoordError: the certificate cannot be used.
    """
    return Serving(
        exposition=exposition,
        live_config=follow_config(settings, settings.config) if settings.config else None,
        certificate=_certificate(settings),
    )


def _certificate(settings: Settings) -> ServingCertificate | None:
    certificate = settings.options.tls_cert_file.value
    key = settings.options.tls_private_key_file.value
    return ServingCertificate(Path(certificate), Path(key)) if certificate else None


@dataclass(frozen=True, kw_only=True, slots=True)
class DaemonComponents:
    """The components of one daemon, wired but not started."""

    settings: Settings
    clock: Clock
    health: Health
    host: Host  # to look at from worker threads; each sampling thread has one of its own
    states: StatesInformer
    sources: StateSources
    measuring: Measuring
    reporter: NodeMetricReporter | None  # None: --enable-node-metric-report=false
    qos: QosParts
    serving: Serving
    cluster: "Cluster | None"  # None: standalone
    runs: Mapping[str, Run]  # what runs supervised, from before the plugins until after

    async def close(self) -> None:
        """Close connections, files and the lock; for the end, when nothing runs any more."""
        if self.cluster is not None:
            await self.cluster.close()
        self.measuring.cache.close()
        self.qos.audit.log.close()
        self.qos.executors.lock.close()


def build(
    settings: Settings, exposition: Exposition, clock: Clock, run_dir: OwnedDirectory
) -> DaemonComponents:
    """Make and connect all components; files in run_dir are opened, nothing runs yet.

    Raises:
        KoordError: the host's /proc or cgroups cannot be read, it is not clear which API server
            to use, or the server's certificate cannot be used.
    """
    host, components = Host(settings.paths), ComponentSet(Health())
    _check_roots(host)
    boot_id = parse_file(settings.paths.proc / "sys/kernel/random/boot_id", parse_boot_id)
    trust = settings.options.trust_allocations
    states = StatesInformer(clock, trusts_allocations=lambda: trust.value)
    measuring = build_measuring(settings, states, clock, run_dir, boot_id, exposition)
    other_agent = build_other_agent(settings, states, clock)
    cluster = _cluster(settings, states, measuring.cache, clock, exposition, other_agent)
    prediction = build_prediction(settings, states, measuring.cache, clock)
    reporter = build_reporter(
        settings, states, measuring.cache, clock, run_dir, exposition, cluster, prediction.predict
    )
    sources = build_sources(settings, states, host, clock, cluster)
    qos = build_qos(
        settings,
        states,
        host,
        clock,
        run_dir,
        boot_id,
        exposition,
        components,
        measuring=measuring,
        sources=sources,
        cluster=cluster,
        other_agent=other_agent,
    )
    serving = build_serving(settings, exposition)

    components.add("states", states, ready=True)
    measuring.add_to(components)
    components.add("GPUs", _gpus(settings, measuring.cache, clock, exposition))
    components.add("pod resources", _pod_resources(settings, states, measuring.cache, clock))
    sources.add_to(components)
    components.runs["loop lag"] = LoopLag(exposition.internal, exposition.rules.prefix).run
    qos.add_to(components)
    components.add("prediction", prediction)
    components.add("reporter", reporter)
    serving.add_to(components)
    if cluster is not None:
        cluster.add_to(components)
    exposition.add_sources(lambda: [prediction])
    exposition.add_sources(measuring.sampling.sources)
    return DaemonComponents(
        settings=settings,
        clock=clock,
        health=components.health,
        host=host,
        states=states,
        sources=sources,
        measuring=measuring,
        reporter=reporter,
        qos=qos,
        serving=serving,
        cluster=cluster,
        runs=components.runs,
    )


def _check_roots(host: Host) -> None:
    """See that the directories without which nothing can be measured are there.

    Raises:
        KernelFileError: one is missing, or has no cgroup hierarchy in it.
    """
    paths = host.paths
    cgroups, hint = "the host's cgroup file systems", "mount them there or give --cgroup-root-dir"
    for path, wanted, advice in (
        (paths.proc, "the host's /proc", "mount it there or give --proc-root-dir"),
        (paths.cgroup, cgroups, hint),
    ):
        try:
            os.listdir(path)
        except OSError as err:
            found = err.strerror or repr(err)
            raise KernelFileError(path, wanted=wanted, found=found, hint=advice) from err
    if not host.cgroups.hierarchies():
        raise KernelFileError(paths.cgroup, wanted=cgroups, found="none", hint=hint)


def _gpus(
    settings: Settings, cache: MetricCache, clock: Clock, exposition: Exposition
) -> GatedComponent:
    def make() -> Component:
        from koordlet.daemon.devices import build_gpus

        return build_gpus(settings, cache, clock, exposition.internal)

    late = LazyComponent(make)
    return GatedComponent(settings.gates, "Accelerators", clock, late.run, late.health)


def _pod_resources(
    settings: Settings, states: StatesInformer, cache: MetricCache, clock: Clock
) -> GatedComponent:
    def make() -> Component:
        from koordlet.daemon.devices import build_pod_resources

        return build_pod_resources(settings, states, cache, clock)

    late = LazyComponent(make)
    return GatedComponent(settings.gates, "PodResourcesProxy", clock, late.run, late.health)


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
    # Costs memory that standalone does not need.
    from koordlet.daemon.cluster import connect

    return connect(settings, states, cache, clock, exposition.internal, other_agent)


def build_reporter(
    settings: Settings,
    states: StatesInformer,
    cache: MetricCache,
    clock: Clock,
    run_dir: OwnedDirectory,
    exposition: Exposition,
    cluster: "Cluster | None",
    predict: Predict,
) -> NodeMetricReporter | None:
    """Make the reporter of the NodeMetric; None: --enable-node-metric-report=false."""
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
            hot_page_interval=options.coldpage_collector_interval.value,
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
        predict=predict,
    )
    exposition.add_sources(lambda: [reporter])
    return reporter


def build_prediction(
    settings: Settings,
    states: StatesInformer,
    cache: MetricCache,
    clock: Clock,
) -> PeakPrediction:
    """Make the prediction; its directory is opened when it runs."""
    flags = settings.options.prediction
    return PeakPrediction(
        PredictionOptions(
            node=settings.node_name,
            half_lives=HalfLives(flags.cpu_half_life.value, flags.memory_half_life.value),
            cold_start=flags.cold_start.value,
            safety_margin=flags.safety_margin.value,
            training_interval=flags.training_interval.value,
            expiration=flags.expiration.value,
            checkpoint_interval=flags.checkpoint_interval.value,
            checkpoints_per_step=flags.checkpoints_per_step.value,
        ),
        cache=cache,
        states=states,
        files=CheckpointFiles(partial(OwnedDirectory.open, Path(flags.checkpoints.value))),
        clock=clock,
    )
