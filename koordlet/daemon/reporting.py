"""Build the reporter of the NodeMetric, and the prediction in its reports."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from koord.component.http.exposition import Exposition
from koord.util.clock import Clock
from koord.util.ownedfiles import OwnedDirectory, write_atomic
from koordlet.daemon.settings import Settings
from koordlet.metriccache.cache import MetricCache
from koordlet.prediction.checkpoints import CheckpointFiles
from koordlet.prediction.models import HalfLives
from koordlet.prediction.prediction import PeakPrediction, PredictionOptions
from koordlet.reporter.loop import NodeMetricReporter, ReportOptions, standalone_interval
from koordlet.reporter.status import AllSinks, FileSink, Predict
from koordlet.statesinformer.informer import StatesInformer

if TYPE_CHECKING:
    from koordlet.daemon.cluster import Cluster


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
