"""Build what measures: the sampling pass, the metric cache, and the sources of states."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from koord.api.nodemetric import MemoryPolicy
from koord.component.http.exposition import Exposition
from koord.component.supervisor import Component, ComponentSet
from koord.util.clock import Clock
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.ownedfiles import OwnedDirectory
from koordlet.collectors.engine.reader import Reader
from koordlet.collectors.engine.rounds import CollectorMetrics
from koordlet.collectors.engine.sampler import Sampler, SamplingContext, SamplingPass
from koordlet.collectors.registry import CollectorOptions, build_collectors
from koordlet.daemon.settings import Settings
from koordlet.host.cgroups.tree import CgroupTree
from koordlet.host.files import Descriptors
from koordlet.host.host import Host
from koordlet.metriccache.cache import MetricCache, retentions
from koordlet.metriccache.kinds import Cadence
from koordlet.plugin.publishing import with_published
from koordlet.replay.recorder import Append, Recorder
from koordlet.statesinformer.file_sources import HostNodeSource, node_file, node_slo_file
from koordlet.statesinformer.informer import StatesInformer, StateType
from koordlet.statesinformer.pod_source import PodSource

if TYPE_CHECKING:
    from koordlet.daemon.cluster import Cluster


@dataclass(frozen=True, kw_only=True, slots=True)
class Measuring:
    """The collectors, what paces them, and what keeps their samples."""

    cache: MetricCache
    recorder: Recorder
    sampling: SamplingPass
    sampler: Sampler

    def add_to(self, components: ComponentSet) -> None:
        """Add the sampler, and register the health of collectors and metric cache."""
        components.add("sampling", self.sampler, live=True, ready=True)
        components.health.register_group("collector", self.sampling.health)
        components.health.register("metric cache", self._cache_health)

    def _cache_health(self) -> PartHealth:
        problems = self.cache.problems()
        return PartHealth(HealthStatus.DEGRADED, "; ".join(problems)) if problems else OK


def build_measuring(
    settings: Settings,
    states: StatesInformer,
    clock: Clock,
    run_dir: OwnedDirectory,
    boot_id: str,
    exposition: Exposition,
) -> Measuring:
    """Open the cache's files in run_dir and make the collectors; nothing runs yet."""
    cache = _cache(settings, states, clock, run_dir, boot_id)
    recorder = Recorder(clock)
    append = recorder.recording_append(cache.append)
    sampling, sampler = _sampling(settings, states, cache, append, clock, exposition)
    return Measuring(cache=cache, recorder=recorder, sampling=sampling, sampler=sampler)


def _cache(
    settings: Settings, states: StatesInformer, clock: Clock, run_dir: OwnedDirectory, boot_id: str
) -> MetricCache:
    """The metric cache, keeping as much as the reports of the present spec need."""
    cache = MetricCache(
        run_dir / "metrics",
        boot_id,
        clock,
        intervals=_periods(settings),
        retentions=retentions(states.node_metric_spec()),
        kinds=with_published(
            each for entry in settings.plugins.registry for each in entry.plugin.publishes
        ),
    )

    def follow_spec(*_: object) -> None:
        for keep, seconds in retentions(states.node_metric_spec()).items():
            cache.set_retention(keep, seconds)

    states.register_callbacks(
        StateType.NODE_METRIC_SPEC, "metric_cache", "keep what the new spec needs", follow_spec
    )
    return cache


def _periods(settings: Settings) -> dict[Cadence, float]:
    options = settings.options
    return {
        Cadence.USAGE: options.collect_res_used_interval.value,
        Cadence.PSI: options.psi_collector_interval.value,
        Cadence.NETWORK: options.network_collector_interval.value,
        Cadence.CPI: options.cpi_collector_interval.value,
        Cadence.COLD_PAGE: options.coldpage_collector_interval.value,
        Cadence.RESCTRL: options.resctrl_collector_interval.value,
        Cadence.NODE_INFO: options.collect_node_cpu_info_interval.value,
        Cadence.STORAGE: options.collect_node_storage_info_interval.value,
        Cadence.DEVICES: options.node_topology_sync_interval.value,
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
            cpi_window=options.collect_cpi_timewindow.value,
            cold_page_cpu=periods[Cadence.COLD_PAGE] * options.coldpage_cpu_percent.value / 100,
            xpu_files=Path(options.xpu_device_infos_dir.value),
            resctrl=options.enable_resctrl_collector.value,
        ),
        paths,
        cache.put,
        lambda: (
            options.enable_pagecache_collector.value
            or states.node_metric_spec().memory_policy is MemoryPolicy.WITH_PAGE_CACHE
        ),
        settings.gates.enabled,
        cache.get,
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


class Source(Component, Protocol):
    """A part that publishes states of one kind."""

    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StateSources:
    """The source of pods, and those of the other states."""

    pods: PodSource
    others: Sequence[Source]

    def add_to(self, components: ComponentSet) -> None:
        """Add every source of states, and register their health."""
        components.health.register_group("source", self._health)
        components.runs |= {f"source {source.name}": source.run for source in self._all()}

    def driver(self) -> str:
        """The cgroup driver, as pods' cgroups show it now."""
        return self.pods.layout.driver.value

    def _all(self) -> Iterator[Source]:
        yield self.pods
        yield from self.others

    def _health(self) -> dict[str, PartHealth]:
        return {source.name: source.health() for source in self._all()}


def build_sources(
    settings: Settings,
    states: StatesInformer,
    host: Host,
    clock: Clock,
    cluster: "Cluster | None",
) -> StateSources:
    """Make the sources that flags and mode ask for."""
    return StateSources(
        pods=_pod_source(settings, states, host, clock, cluster),
        others=_other_sources(settings, states, clock, cluster),
    )


def _pod_source(
    settings: Settings,
    states: StatesInformer,
    host: Host,
    clock: Clock,
    cluster: "Cluster | None",
) -> PodSource:
    """Return the source of pods: a file of the user's, else the cluster, else the cgroup tree."""
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
    """Return the other sources: files that the user names, else the cluster, else the host."""
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
    return HostNodeSource(settings.node_name, settings.paths.proc, states, clock)
