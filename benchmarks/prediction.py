"""The cost of prediction at 150 pods, and how often usage exceeded its reserve for prod pods."""

import math
import random
import statistics
import tempfile
import time
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks import history
from benchmarks.table import Row
from koord.api.node import Node
from koord.api.nodemetric import Amounts, Usage
from koord.api.qos import KoordPriorityClass
from koord.util.clock import Stamp
from koord.util.ownedfiles import OwnedDirectory
from koordlet.plugin.testing import SimulatedClock, make_pod
from koordlet.prediction.checkpoints import CheckpointFiles
from koordlet.prediction.models import SYSTEM, HalfLives, Models, class_model
from koordlet.prediction.prediction import (
    Demand,
    PeakPrediction,
    PredictionOptions,
    most_conservative,
    predict_by_classes,
    predict_by_pods,
)
from koordlet.statesinformer.informer import StatesInformer

PODS = 150
HALF_LIVES = HalfLives(12 * 3600.0, 24 * 3600.0)
DAY = 24 * 60  # minutes
GIB = 1 << 30
FACTOR = 1.1  # with Koordinator's margin
PROD = class_model(KoordPriorityClass.PROD)
_Shape = Callable[[random.Random, int], float]


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield the cost of a minute and of a report, the memory, and the minutes that went over."""
    yield from _costs(rounds=3 if smoke else 20)
    days = 1 if smoke else 7
    for name, shape in _SHAPES.items():
        over, left = _over(shape, days)
        yield Row(f"minutes over what was left, {name}", over, "%")
        yield Row(f"requests given to others, {name}", left, "%")


def _costs(rounds: int) -> Iterator[Row]:
    clock = SimulatedClock(boottime=10_000.0)
    cache = history.open_cache(None, "benchmark", clock)
    pods = tuple(make_pod(f"pod-{n}", uid=str(uuid.UUID(int=n))) for n in range(PODS))
    history.fill(cache, clock, pods)
    states = StatesInformer(clock)
    states.set_node(Node("node", allocatable={"cpu": "64", "memory": "256Gi"}))
    states.set_pods(pods)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        tracemalloc.start()
        prediction = PeakPrediction(
            PredictionOptions(
                node="node",
                half_lives=HALF_LIVES,
                cold_start=0.0,
                safety_margin=10,
                training_interval=60.0,
                expiration=1800.0,
                checkpoint_interval=600.0,
                checkpoints_per_step=12,
            ),
            cache=cache,
            states=states,
            files=CheckpointFiles(partial(OwnedDirectory.open, Path(directory) / "models")),
            clock=clock,
        )
        prediction.train()
        prediction.keep()
        kept = tracemalloc.get_traced_memory()[0] / 2**20
        tracemalloc.stop()

        def learn() -> None:
            prediction.train()
            prediction.keep()

        minute = _cpu(learn, rounds)
        report = _cpu(lambda: prediction.predict([pod.pod for pod in pods]), rounds)
    cores = (minute + report) / 60_000
    yield Row(f"training and saving a minute, {PODS} pods", minute, "ms")
    yield Row(f"prediction for a report, {PODS} pods", report, "ms", None, minute, "the training")
    yield Row("both, once a minute", cores, "cores", 0.001)
    yield Row(f"models of {PODS} pods", kept, "MiB", 3.0)
    cache.close()


def _cpu(work: Callable[[], object], rounds: int) -> float:
    """Median milliseconds of CPU time."""
    took = []
    for _ in range(rounds):
        start = time.thread_time()
        work()
        took.append((time.thread_time() - start) * 1e3)
    return statistics.median(took)


def _steady(draw: random.Random, _minute: int) -> float:
    return draw.gauss(1.0, 0.05)


def _daily(draw: random.Random, minute: int) -> float:
    return draw.gauss(1.0, 0.05) * (1.0 - 0.8 * math.cos(2 * math.pi * minute / DAY))


def _bursts(draw: random.Random, minute: int) -> float:
    """Five minutes of four times the load, about every two hours, at the same time in all pods."""
    burst = random.Random(minute // 5).random() < 5 / 120
    return draw.gauss(1.0, 0.1) * (4.0 if burst else 1.0)


_SHAPES: dict[str, _Shape] = {"steady": _steady, "daily": _daily, "bursts": _bursts}


def _over(shape: _Shape, days: int) -> tuple[float, float]:
    """Percent of minutes, after a day of learning, in which prod pods used more than was left.

    And the mean percent of their requests that others got. 20 pods ask for 4 cores each.
    """
    pods = [str(uuid.UUID(int=number)) for number in range(20)]
    request, node = Amounts(4000, GIB), Amounts(100_000, 256 * GIB)
    draw, models = random.Random(1), Models(HALF_LIVES)
    over, given = 0, []
    for minute in range((1 + days) * DAY):
        usage = {pod: max(shape(draw, minute), 0.0) for pod in pods}
        total = sum(usage.values())
        if minute >= DAY:
            if minute % 5 == 0:
                demands = [Demand(request, models.peak(pod)) for pod in pods]
                peaks = [peak for peak in map(models.peak, (SYSTEM, PROD)) if peak is not None]
                found = most_conservative(
                    [
                        predict_by_pods(demands, node, FACTOR),
                        predict_by_classes(demands, peaks, node, FACTOR),
                    ]
                ).reclaimable
                reclaimed = 0.0 if found is None else found.milli_cores / 1000
            given.append(reclaimed)
            over += total > 4.0 * len(pods) - reclaimed
        samples = {pod: Usage(cores, GIB / 2) for pod, cores in usage.items()}
        samples |= {PROD: Usage(total, GIB), SYSTEM: Usage(0.5, GIB)}
        models.add(samples, Stamp(minute * 60.0, minute * 60.0))
    return 100 * over / (days * DAY), 100 * statistics.mean(given) / (4.0 * len(pods))
