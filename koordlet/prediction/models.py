"""Learnt usage: decaying histograms of CPU and memory per pod, class, system and node."""

import math
import threading
from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from koord.api.nodemetric import Amounts, Usage
from koord.api.qos import KoordPriorityClass
from koord.util.clock import Stamp

RATIO = 1.05  # size of a bucket relative to the one before it
EMPTY_BELOW = 0.0001  # weight under which a bucket counts as empty

_GROWTH = RATIO - 1.0
_LOG_RATIO = math.log(RATIO)
_MAX_HALVINGS = 100  # of the first sample's weight relative to a new one; then the reference moves
_GO_ZERO = -62135596800.0  # Go's zero time in Unix seconds: reference times are multiples from here


@dataclass(frozen=True, slots=True)
class Buckets:
    """Buckets for values from 0 on; the last one takes all that is larger."""

    first: float  # where bucket 1 starts, in the unit of the values
    count: int

    def index(self, value: float) -> int:
        """Return the bucket of a value."""
        if value < self.first:
            return 0
        place = math.log(value * _GROWTH / self.first + 1) / _LOG_RATIO
        return int(min(place, self.count - 1))

    def start(self, index: int) -> float:
        """Return the lowest value of a bucket."""
        return 0.0 if index == 0 else self.first * (RATIO**index - 1) / _GROWTH


CPU_BUCKETS = Buckets(first=0.025, count=158)  # cores
MEMORY_BUCKETS = Buckets(first=5242880.0, count=205)  # bytes


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """The contents of a histogram, without the sizes of its buckets."""

    reference: float | None  # Unix seconds at which a sample weighs 1; None: it never had one
    weights: Mapping[int, float]  # by bucket, those that are not 0
    total: float


class DecayingHistogram:
    """Weights of samples by bucket; a sample counts half as much as one of a half-life later.

    Times are Unix seconds. Not safe for use by several threads at a time.
    """

    __slots__ = (
        "_buckets",
        "_half_life",
        "_highest",
        "_lowest",
        "_reference",
        "_total",
        "_weights",
    )

    def __init__(self, buckets: Buckets, half_life: float) -> None:
        """half_life: seconds, above 0."""
        self._buckets = buckets
        self._half_life = half_life
        self._reference: float | None = None  # Unix seconds at which a sample weighs 1
        self._weights = array("d", bytes(8 * buckets.count))
        self._total = 0.0
        self._lowest, self._highest = buckets.count, -1  # buckets that are not empty

    def add(self, value: float, at: float) -> None:
        """Add a sample of weight 1. One of long before the others starts the histogram anew."""
        reference = self._reference
        if reference is None or abs(at - reference) > _MAX_HALVINGS * self._half_life:
            reference = self._refer_to(at)
        weight = math.exp2((at - reference) / self._half_life)
        index = self._buckets.index(value)
        self._weights[index] += weight
        self._total += weight
        if self._weights[index] >= EMPTY_BELOW:
            self._lowest = min(self._lowest, index)
            self._highest = max(self._highest, index)

    def percentile(self, share: float) -> float:
        """Return a value that the given share of the weight does not exceed; 0.0 without samples.

        It is where the next bucket starts, so up to one bucket (5 %) too high.
        """
        if self.is_empty():
            return 0.0
        wanted, found = share * self._total, 0.0
        index = self._lowest
        for index in range(self._lowest, self._highest + 1):
            found += self._weights[index]
            if found >= wanted:
                break
        return self._buckets.start(min(index + 1, self._buckets.count - 1))

    def is_empty(self) -> bool:
        """Return whether no bucket has a weight that counts."""
        return self._highest < 0

    def snapshot(self) -> HistogramSnapshot:
        """Return the content; buckets that count as empty may be in it."""
        weights = {index: weight for index, weight in enumerate(self._weights) if weight > 0}
        return HistogramSnapshot(self._reference, weights, self._total)

    def restore(self, snapshot: HistogramSnapshot) -> None:
        """Take over the content of another one with the same buckets."""
        self._reference = snapshot.reference
        self._weights = array("d", bytes(8 * self._buckets.count))
        for index, weight in snapshot.weights.items():
            self._weights[index] = weight
        self._total = snapshot.total
        self._find_bounds()

    def _refer_to(self, at: float) -> float:
        """Move the reference to the multiple of the half-life nearest to the time; return it."""
        steps = math.floor((at - _GO_ZERO) / self._half_life + 0.5)
        reference = _GO_ZERO + steps * self._half_life
        before = self._reference
        if before is None or before > reference:  # no samples, or the clock was far ahead
            factor = 0.0
        else:
            factor = math.ldexp(1.0, round((before - reference) / self._half_life))
        self._weights = array("d", (weight * factor for weight in self._weights))
        self._total *= factor
        self._find_bounds()
        self._reference = reference
        return reference

    def _find_bounds(self) -> None:
        weights = enumerate(self._weights)
        counted = [index for index, weight in weights if weight >= EMPTY_BELOW]
        self._lowest = counted[0] if counted else self._buckets.count
        self._highest = counted[-1] if counted else -1


NODE = "__node__"
SYSTEM = "__node-sys__"

CPU_SHARE, MEMORY_SHARE = 0.95, 0.98  # of the samples that a peak covers


def class_model(priority: KoordPriorityClass) -> str:
    """Return the id of the model of all pods of a class."""
    return f"__node-{priority.value}__"


OF_THE_NODE = frozenset({NODE, SYSTEM, *(class_model(priority) for priority in KoordPriorityClass)})
"""Ids of all models that are not of a pod; those are the pod's UID."""


@dataclass(frozen=True, slots=True)
class HalfLives:
    """Seconds after which a sample counts half."""

    cpu: float
    memory: float


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model as it is kept. Times are Unix seconds."""

    id: str
    cpu: HistogramSnapshot
    memory: HistogramSnapshot
    updated: float
    since: float | None  # the first sample; None: not known, before anything that matters


class _Model:
    __slots__ = ("cpu", "memory", "saved", "seen", "since", "updated")

    def __init__(self, half_lives: HalfLives, since: float | None, seen: Stamp) -> None:
        self.cpu = DecayingHistogram(CPU_BUCKETS, half_lives.cpu)
        self.memory = DecayingHistogram(MEMORY_BUCKETS, half_lives.memory)
        self.since = since
        self.updated = seen.wall  # its newest sample
        self.seen = seen.boot  # that, or when it was restored
        self.saved = -math.inf  # seconds since boot


class Models:
    """The models by id. Any thread may call anything.

    Samples have Unix times; ages are those since boot, which do not jump.
    """

    def __init__(self, half_lives: HalfLives) -> None:
        self._half_lives = half_lives
        self._lock = threading.Lock()
        self._models: dict[str, _Model] = {}

    def __len__(self) -> int:
        return len(self._models)

    def __contains__(self, name: str) -> bool:
        return name in self._models

    def add(self, samples: Mapping[str, Usage], at: Stamp) -> None:
        """Add a sample to each of these models; those that are missing are made."""
        with self._lock:
            for name, usage in samples.items():
                model = self._models.get(name)
                if model is None:
                    model = self._models[name] = _Model(self._half_lives, at.wall, at)
                model.cpu.add(usage.cores, at.wall)
                model.memory.add(usage.memory_bytes, at.wall)
                model.updated, model.seen = at.wall, at.boot

    def peak(self, name: str, *, known_before: float = math.inf) -> Amounts | None:
        """Return the peak of a model, without a margin.

        None: there is no such model, or it had its first sample at that Unix time or later.
        """
        with self._lock:
            model = self._models.get(name)
            if model is None or model.cpu.is_empty():
                return None
            since = -math.inf if model.since is None else model.since
            if since >= known_before:
                return None
            cores = model.cpu.percentile(CPU_SHARE)
            size = model.memory.percentile(MEMORY_SHARE)
            return Amounts(int(cores * 1000), int(size))

    def forget(self, before: float) -> list[str]:
        """Drop the models without a sample since then (since boot); return their ids."""
        with self._lock:
            old = [name for name, model in self._models.items() if model.seen < before]
            for name in old:
                del self._models[name]
            return old

    def due(self, before: float) -> list[str]:
        """Return the ids of the models with news that were saved last by then, oldest first."""
        with self._lock:
            waiting = [
                (model.saved, name)
                for name, model in self._models.items()
                if model.saved <= before and model.seen > model.saved
            ]
            return [name for _, name in sorted(waiting)]

    def checkpoint(self, name: str) -> Checkpoint | None:
        """Return a model as it is to be kept; None: there is none any more."""
        with self._lock:
            model = self._models.get(name)
            if model is None:
                return None
            cpu, memory = model.cpu.snapshot(), model.memory.snapshot()
            return Checkpoint(name, cpu, memory, model.updated, model.since)

    def mark_saved(self, name: str, at: float) -> None:
        """Record that the model was saved at that time since boot."""
        with self._lock:
            if model := self._models.get(name):
                model.saved = at

    def restore(self, checkpoints: Collection[Checkpoint], now: float) -> None:
        """Take over what an earlier process has learnt. now: seconds since boot."""
        with self._lock:
            for checkpoint in checkpoints:
                model = _Model(self._half_lives, checkpoint.since, Stamp(checkpoint.updated, now))
                model.cpu.restore(checkpoint.cpu)
                model.memory.restore(checkpoint.memory)
                model.saved = now
                self._models[checkpoint.id] = model
