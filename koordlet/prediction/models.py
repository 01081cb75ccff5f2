"""What was learnt: one model of CPU and memory usage per pod, priority class, system and node."""

import math
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from koord.api.amounts import Amounts
from koord.api.nodemetric import Usage
from koord.api.priority import PriorityClass
from koord.util.clock import Stamp
from koordlet.prediction.histogram import CPU_BUCKETS, MEMORY_BUCKETS, DecayingHistogram, Snapshot

NODE = "__node__"
SYSTEM = "__node-sys__"

CPU_SHARE, MEMORY_SHARE = 0.95, 0.98  # of the samples that a peak covers


def class_model(priority: PriorityClass) -> str:
    """Return the id of the model of all pods of a class."""
    return f"__node-{priority.value}__"


OF_THE_NODE = frozenset({NODE, SYSTEM, *(class_model(priority) for priority in PriorityClass)})
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
    cpu: Snapshot
    memory: Snapshot
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
