"""The part of the daemon that learns peaks from what was measured, and predicts from them."""

import asyncio
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from prometheus_client import Metric

from koord.api.nodemetric import ProdPrediction
from koord.api.pods.pod import Pod
from koord.api.priority import PriorityClass
from koord.util.clock import Clock, stamp
from koord.util.health import PartHealth, Status
from koord.util.stop import Stop
from koordlet.metriccache.cache import MetricCache
from koordlet.prediction.checkpoints import CheckpointFiles
from koordlet.prediction.gauges import prediction_families
from koordlet.prediction.models import OF_THE_NODE, SYSTEM, HalfLives, Models, class_model
from koordlet.prediction.objects import allocatable_of, request_of
from koordlet.prediction.predictors import (
    Demand,
    most_careful,
    predict_by_classes,
    predict_by_pods,
)
from koordlet.prediction.training import samples
from koordlet.statesinformer.informer import StatesInformer

HOUSEKEEPING = 60.0  # seconds between looks at which models to save and to forget
_BY_PODS, _BY_CLASSES, _RESULT = (
    "podReclaimablePredictor",
    "priorityReclaimablePredictor",
    "minPredictor",
)
_PREDICTED = (PriorityClass.PROD, PriorityClass.NONE)


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionOptions:
    """How to learn and to predict. Times in seconds."""

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
        status = Status.DEGRADED if self._files.problem else Status.OK
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
        result = most_careful([by_pods, by_classes])
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
