"""Measuring: samples of the node and its pods, kept in the metric cache and recorded."""

from dataclasses import dataclass
from pathlib import Path

from koord.api.nodemetric import MemoryPolicy
from koord.component.components import ComponentSet
from koord.component.http.exposition import Exposition
from koord.util.clock import Clock
from koord.util.health import OK, PartHealth, Status
from koord.util.owneddir import OwnedDirectory
from koordlet.collectors.engine.metrics import CollectorMetrics
from koordlet.collectors.engine.reader import Reader
from koordlet.collectors.engine.sampler import Sampler
from koordlet.collectors.engine.sampling import SamplingContext, SamplingPass
from koordlet.collectors.registry import CollectorOptions, build_collectors
from koordlet.daemon.settings.settings import Settings
from koordlet.host.descriptors import Descriptors
from koordlet.host.host import Host
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import Cadence
from koordlet.metriccache.retention import retentions
from koordlet.plugin.publisher import with_published
from koordlet.replay.recorder import Append, Recorder
from koordlet.statesinformer.callbacks import StateType
from koordlet.statesinformer.informer import StatesInformer


@dataclass(frozen=True, kw_only=True, slots=True)
class Measuring:
    """The collectors, what paces them, and what keeps their samples."""

    cache: MetricCache
    recorder: Recorder
    sampling: SamplingPass
    sampler: Sampler

    def add_to(self, components: ComponentSet) -> None:
        """Have sampling run, and register the health of collectors and cache."""
        components.add("sampling", self.sampler, live=True, ready=True)
        components.health.register_group("collector", self.sampling.health)
        components.health.register("metric cache", self._cache_health)

    def _cache_health(self) -> PartHealth:
        problems = self.cache.problems()
        return PartHealth(Status.DEGRADED, "; ".join(problems)) if problems else OK


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
    append = recorder.beside(cache.append)
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
