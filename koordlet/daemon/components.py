"""The components of the daemon, built and connected: measure, report, act, serve."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koord.component.components import ComponentSet, Part
from koord.component.gated import Gated, Late
from koord.component.http.exposition import Exposition
from koord.component.http.looplag import LoopLag
from koord.component.tasks import Run
from koord.util.clock import Clock
from koord.util.health import Health
from koord.util.owneddir import OwnedDirectory
from koordlet.daemon.act.acting import Acting, build_acting, build_other_agent
from koordlet.daemon.agents.otheragent import OtherAgent
from koordlet.daemon.measure.measuring import Measuring, build_measuring
from koordlet.daemon.measure.statesources import StateSources, build_sources
from koordlet.daemon.report.predicting import build_prediction
from koordlet.daemon.report.reporting import build_reporter
from koordlet.daemon.serve.serving import Serving, build_serving
from koordlet.daemon.settings.settings import Settings
from koordlet.host.files import parse_file
from koordlet.host.host import Host
from koordlet.host.proc.procfiles import parse_boot_id
from koordlet.metriccache.cache import MetricCache
from koordlet.reporter.loop import NodeMetricReporter
from koordlet.statesinformer.informer import StatesInformer

if TYPE_CHECKING:
    from koordlet.daemon.cluster.cluster import Cluster


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
    acting: Acting
    serving: Serving
    cluster: "Cluster | None"  # None: standalone
    runs: Mapping[str, Run]  # what runs supervised, from before the plugins until after

    async def close(self) -> None:
        """Close connections, files and the lock; for the end, when nothing runs any more."""
        if self.cluster is not None:
            await self.cluster.close()
        self.measuring.cache.close()
        self.acting.audit.log.close()
        self.acting.actions.lock.close()


def build(
    settings: Settings, exposition: Exposition, clock: Clock, run_dir: OwnedDirectory
) -> DaemonComponents:
    """Make and connect all components; files in run_dir are opened, nothing runs yet.

    Raises:
        KoordError: the host's /proc cannot be read, it is not clear which API server to use, or
            the server's certificate cannot be used.
    """
    boot_id = parse_file(settings.paths.proc / "sys/kernel/random/boot_id", parse_boot_id)
    host, components = Host(settings.paths), ComponentSet(Health())
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
    acting = build_acting(
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
    acting.add_to(components)
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
        acting=acting,
        serving=serving,
        cluster=cluster,
        runs=components.runs,
    )


def _gpus(settings: Settings, cache: MetricCache, clock: Clock, exposition: Exposition) -> Gated:
    def make() -> Part:
        from koordlet.daemon.measure.gpus import build_gpus

        return build_gpus(settings, cache, clock, exposition.internal)

    late = Late(make)
    return Gated(settings.gates, "Accelerators", clock, late.run, late.health)


def _pod_resources(
    settings: Settings, states: StatesInformer, cache: MetricCache, clock: Clock
) -> Gated:
    def make() -> Part:
        from koordlet.daemon.serve.podresources import build_pod_resources

        return build_pod_resources(settings, states, cache, clock)

    late = Late(make)
    return Gated(settings.gates, "PodResourcesProxy", clock, late.run, late.health)


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
    from koordlet.daemon.cluster.cluster import connect

    return connect(settings, states, cache, clock, exposition.internal, other_agent)
