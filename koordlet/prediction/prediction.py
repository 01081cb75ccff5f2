"""The part of the daemon that learns peaks and predicts from them: rules, part and families."""

import asyncio
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce

from prometheus_client import Metric

from koord.api.fields import Fields
from koord.api.gojson import parse_json
from koord.api.node import Node
from koord.api.nodemetric import Amounts, ProdPrediction, Usage
from koord.api.pod import Pod, amount, pod_request
from koord.api.qos import KoordPriorityClass
from koord.util.clock import Clock, stamp
from koord.util.errors import InvalidObject
from koord.util.health import HealthStatus, PartHealth
from koord.util.stop import Stop
from koordlet.collectors.engine.collector import FamilySpec, LabelledValue
from koordlet.metriccache.cache import MetricCache
from koordlet.metriccache.kinds import (
    NODE_CPU_USAGE,
    NODE_MEMORY_USAGE,
    POD_CPU_USAGE,
    POD_MEMORY_USAGE,
    AnyKind,
)
from koordlet.prediction.checkpoints import CheckpointFiles
from koordlet.prediction.models import NODE, OF_THE_NODE, SYSTEM, HalfLives, Models, class_model
from koordlet.statesinformer.informer import StatesInformer

RAW_ALLOCATABLE = "node.koordinator.sh/raw-allocatable"  # an annotation: before amplification


def request_of(pod: Pod) -> Amounts:
    """Return the CPU and memory that a pod asks for."""
    return Amounts(pod_request(pod, "cpu"), pod_request(pod, "memory"))


def allocatable_of(node: Node) -> Amounts | None:
    """Return CPU and memory for pods; None: not known.

    Those of the annotation if it can be read and has both, for allocatable may be amplified.
    """
    for resources in (_raw_allocatable(node), node.allocatable):
        if "cpu" in resources and "memory" in resources:
            return Amounts(amount("cpu", resources["cpu"]), amount("memory", resources["memory"]))
    return None


def _raw_allocatable(node: Node) -> Mapping[str, str]:
    text = node.annotations.get(RAW_ALLOCATABLE)
    if text is None:
        return {}
    try:
        return Fields({"raw": parse_json(text, RAW_ALLOCATABLE)}, "annotations").quantities("raw")
    except InvalidObject:
        return {}


PERCENT = 90  # of the samples of the interval; what is above is a spike that others can bear


def samples(
    cache: MetricCache, pods: Iterable[Pod], models: Models, seconds: float
) -> dict[str, Usage]:
    """Return a sample for each model that there are measurements for, by its id.

    A pod that runs and was not measured counts in its class with its peak, or with its request
    while none is known: counted as nothing, it would let others have what it uses. The system needs
    a measurement of the node. Without any measurement there are no samples at all.
    """
    measured = _usages(cache, POD_CPU_USAGE, POD_MEMORY_USAGE, seconds)
    node = _usages(cache, NODE_CPU_USAGE, NODE_MEMORY_USAGE, seconds).get(())
    if node is None and not measured:
        return {}
    found: dict[str, Usage] = {}
    by_class: dict[KoordPriorityClass, list[Usage]] = defaultdict(list)
    for pod in pods:
        usage = measured.get((pod.uid,))
        if usage is not None:
            found[pod.uid] = usage
        elif pod.active:
            usage = _assumed(pod, models)
        if usage is not None:
            by_class[pod.priority_class].append(usage)
    for priority in KoordPriorityClass:
        found[class_model(priority)] = _total(by_class[priority])
    if node is not None:
        pods_total = _total(measured.values())
        found[NODE] = node
        found[SYSTEM] = Usage(
            max(node.cores - pods_total.cores, 0.0),
            max(node.memory_bytes - pods_total.memory_bytes, 0.0),
        )
    return found


def _assumed(pod: Pod, models: Models) -> Usage:
    amounts = models.peak(pod.uid) or request_of(pod)
    return Usage(amounts.milli_cores / 1000, amounts.memory_bytes)


def _usages(
    cache: MetricCache, cpu: AnyKind, memory: AnyKind, seconds: float
) -> Mapping[tuple[str, ...], Usage]:
    """High usage in the window that ends now, by series; those with both CPU and memory."""
    cores = cache.aggregate_all(cpu, seconds)
    sizes = cache.aggregate_all(memory, seconds)
    return {
        key: Usage(series.percentile(PERCENT), sizes[key].percentile(PERCENT))
        for key, series in cores.items()
        if key in sizes
    }


def _total(usages: Iterable[Usage]) -> Usage:
    cores = size = 0.0
    for usage in usages:
        cores += usage.cores
        size += usage.memory_bytes
    return Usage(cores, size)


@dataclass(frozen=True, slots=True)
class Demand:
    """A prod pod, or one without a class, that is in the report."""

    request: Amounts
    peak: Amounts | None  # CPU at p95, memory at p98; None: too little is known of this pod
    ending: bool = False  # deleted or finished


def predict_by_pods(
    demands: Iterable[Demand], allocatable: Amounts | None, factor: float
) -> ProdPrediction:
    """Predict by each pod's own peak. factor: 1 plus the safety margin.

    A pod without one keeps its whole request, also while it ends.
    """
    free = unreclaimable = unpredicted = Amounts()
    for demand in demands:
        if demand.peak is None:
            unpredicted += demand.request
        elif not demand.ending:
            peak = demand.peak.scaled(factor)
            unreclaimable += peak
            free += demand.request.less(peak)
    return ProdPrediction(_within(allocatable, unreclaimable, free), unreclaimable + unpredicted)


def predict_by_classes(
    demands: Iterable[Demand],
    peaks: Iterable[Amounts],
    allocatable: Amounts | None,
    factor: float,
) -> ProdPrediction:
    """Predict by the peaks of the system and of the prod pods together."""
    unreclaimable = sum_of(peaks).scaled(factor)
    requested = sum_of(demand.request for demand in demands if not demand.ending)
    return ProdPrediction(
        _within(allocatable, unreclaimable, requested.less(unreclaimable)), unreclaimable
    )


def most_conservative(predictions: Iterable[ProdPrediction]) -> ProdPrediction:
    """Return the least that others may have by any of them, and the highest peak."""
    return reduce(_more_conservative, predictions)


def sum_of(amounts: Iterable[Amounts]) -> Amounts:
    """Return the sum."""
    return sum(amounts, start=Amounts())


def _more_conservative(one: ProdPrediction, other: ProdPrediction) -> ProdPrediction:
    if one.reclaimable is None or other.reclaimable is None:
        reclaimable = None
    else:
        reclaimable = one.reclaimable.lower(other.reclaimable)
    return ProdPrediction(reclaimable, one.peak.higher(other.peak))


def _within(allocatable: Amounts | None, unreclaimable: Amounts, free: Amounts) -> Amounts | None:
    return None if allocatable is None else allocatable.less(unreclaimable).lower(free)


_Rows = Iterable[tuple[str, Amounts | None]]


_NODE_RESOURCE_PRIORITY_RECLAIMABLE_STATUS = FamilySpec(
    "koordlet_node_resource_priority_reclaimable_status",
    "Whether the latest report had a prediction: 0 yes, 1 no.",
    ("node", "priority"),
    "0 or 1",
)


def prediction_families(
    node: str, predictions: Mapping[str, ProdPrediction], result: Amounts | None
) -> Iterator[Metric]:
    """Return the families of predictions by predictor, and of what prod pods leave to others."""
    prod = KoordPriorityClass.PROD.value
    yield _family(
        "koordlet_node_predicted_resource_reclaimable",
        "What prod pods asked for and others may have",
        "predictor",
        _values(node, ((name, one.reclaimable) for name, one in predictions.items())),
    )
    yield _family(
        "koordlet_node_predicted_resource_peak",
        "The most that the system and prod pods will use, margin included",
        "predictor",
        _values(node, ((name, one.peak) for name, one in predictions.items())),
    )
    yield _family(
        "koordlet_node_priority_resource_reclaimable",
        "What the class asked for and others may have; 0 without a prediction",
        "priority",
        _values(node, [(prod, result or Amounts())]),
    )
    yield _NODE_RESOURCE_PRIORITY_RECLAIMABLE_STATUS.metric(
        [((node, prod), 0 if result is not None else 1)]
    )


def _family(name: str, subject: str, label: str, rows: Iterable[LabelledValue]) -> Metric:
    text = f"{subject}: CPU in cores, memory in bytes."
    labels = ("node", label, "resource", "unit")
    return FamilySpec(name, text, labels, "cores, bytes").metric(rows)


def _values(node: str, rows: _Rows) -> Iterator[LabelledValue]:
    for name, amounts in rows:
        if amounts is not None:
            yield (node, name, "cpu", "core"), amounts.milli_cores / 1000
            yield (node, name, "memory", "byte"), amounts.memory_bytes


HOUSEKEEPING = 60.0  # seconds between looks at which models to save and to forget
_BY_PODS, _BY_CLASSES, _RESULT = (
    "podReclaimablePredictor",
    "priorityReclaimablePredictor",
    "minPredictor",
)
_PREDICTED = (KoordPriorityClass.PROD, KoordPriorityClass.NONE)


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionOptions:
    """Options of learning and prediction. Times in seconds."""

    node: str
    half_lives: HalfLives
    cold_start: float  # age of pod and model from which the model counts
    safety_margin: float  # percent above the peak
    training_interval: float
    expiration: float  # after its newest sample a model is forgotten
    checkpoint_interval: float
    checkpoints_per_step: int  # that are written in a minute, or more if the interval needs it


class PeakPrediction:
    """Learns in each training interval; predicts when a report is made.

    Work is done in worker threads: a pass over 150 pods takes some milliseconds.
    """

    name = "prediction"

    def __init__(
        self,
        options: PredictionOptions,
        *,
        cache: MetricCache,
        states: StatesInformer,
        files: CheckpointFiles,
        clock: Clock,
    ) -> None:
        self._options = options
        self._cache = cache
        self._states = states
        self._files = files
        self._clock = clock
        self.models = Models(options.half_lives)
        self._predictions: dict[str, ProdPrediction] = {}  # the latest, by predictor
        self._unpredicted = 0  # prod pods of the latest prediction

    async def run(self, stop: Stop) -> None:
        """Learn and keep what was learnt until stop; then save all of it."""
        await stop.bound(self._states.wait_synced())
        if stop.is_set():
            return
        await asyncio.to_thread(self.restore)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._train_until(stop))
            group.create_task(self._keep_until(stop))
        await asyncio.to_thread(self.save)

    def health(self) -> PartHealth:
        """Degraded while models cannot be kept over restarts."""
        detail: dict[str, object] = {
            "models": len(self.models),
            "unpredicted_pods": self._unpredicted,
        }
        status = HealthStatus.DEGRADED if self._files.problem else HealthStatus.OK
        return PartHealth(status, self._files.problem, detail)

    def families(self) -> Iterable[Metric]:
        """The latest prediction as gauges."""
        result = self._predictions.get(_RESULT)
        return prediction_families(
            self._options.node,
            dict(self._predictions),
            None if result is None else result.reclaimable,
        )

    def predict(self, pods: Collection[Pod]) -> ProdPrediction | None:
        """Predict for a report with these pods. Blocks: not for the event loop.

        None: nothing was learnt yet of the system or of prod pods as a whole. Without what the
        node has, only the peak is known.
        """
        peaks = [
            self.models.peak(name) for name in (SYSTEM, *(class_model(one) for one in _PREDICTED))
        ]
        known = [peak for peak in peaks if peak is not None]
        if len(known) < len(peaks):
            self._predictions = {}
            return None
        demands = [self._demand(pod) for pod in pods if pod.priority_class in _PREDICTED]
        node = self._states.node()
        allocatable = None if node is None else allocatable_of(node)
        factor = (100 + self._options.safety_margin) / 100
        by_pods = predict_by_pods(demands, allocatable, factor)
        by_classes = predict_by_classes(demands, known, allocatable, factor)
        result = most_conservative([by_pods, by_classes])
        self._unpredicted = sum(1 for demand in demands if demand.peak is None)
        self._predictions = {_BY_PODS: by_pods, _BY_CLASSES: by_classes, _RESULT: result}
        return result

    def restore(self) -> None:
        """Take over what an earlier process has learnt of the present pods."""
        pods = {meta.uid for meta in self._states.pods()}
        self.models.restore(self._files.load(pods | OF_THE_NODE), self._clock.boottime())

    def train(self) -> None:
        """Add a sample of the interval that ended to each model. Blocks, as restore and keep."""
        pods = [meta.pod for meta in self._states.pods()]
        found = samples(self._cache, pods, self.models, self._options.training_interval)
        self.models.add(found, stamp(self._clock))

    def keep(self) -> None:
        """Forget the models that get no samples any more, and save those whose turn it is."""
        for name in self.models.forget(self._clock.boottime() - self._options.expiration):
            self._files.remove(name)
        interval = self._options.checkpoint_interval
        needed = math.ceil(len(self.models) * HOUSEKEEPING / interval)
        self.save(interval, max(self._options.checkpoints_per_step, needed))

    def _demand(self, pod: Pod) -> Demand:
        """The pod as predictors see it: without a peak while it or its model is young."""
        grown = self._clock.wall() - self._options.cold_start
        peak = None
        if pod.start_time is not None and pod.start_time < grown:
            peak = self.models.peak(pod.uid, known_before=grown)
        ending = pod.finished or pod.gone_by is not None
        return Demand(request_of(pod), peak, ending)

    async def _train_until(self, stop: Stop) -> None:
        interval = self._options.training_interval
        while not await stop.sleep(interval):
            await asyncio.to_thread(self.train)

    async def _keep_until(self, stop: Stop) -> None:
        while not await stop.sleep(HOUSEKEEPING):
            await asyncio.to_thread(self.keep)

    def save(self, age: float = 0.0, most: int | None = None) -> None:
        """Save models whose files are that old, at most so many; stop at the first failure."""
        now = self._clock.boottime()
        for name in self.models.due(now - age)[:most]:
            checkpoint = self.models.checkpoint(name)
            if checkpoint is not None and not self._files.save(checkpoint):
                return
            self.models.mark_saved(name, now)
