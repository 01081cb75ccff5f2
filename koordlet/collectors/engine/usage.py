"""Rates from cumulative counters, and usage that collectors pass on within a tick."""

from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar, cast

from koordlet.collectors.engine.collector import Tick

V = TypeVar("V")

READING_TTL = 20  # intervals without a reading, after which the previous one no longer counts
ZERO_RATE_WINDOW = 3  # intervals for which "the group did not exist yet" is used as a zero reading


class PreviousReadings(Generic[V]):
    """The latest reading of each key, until it expires.

    Times are monotonic seconds. Not for several threads.
    """

    def __init__(self, interval: float) -> None:
        self._lifetime = READING_TTL * interval
        self._readings: dict[str, tuple[V, float]] = {}
        self._next_purge = 0.0

    def exchange(self, key: str, value: V, at: float) -> tuple[V, float] | None:
        """Remember a reading and return the one before it, or None if that is missing or old."""
        before = self._readings.get(key)
        self._readings[key] = (value, at)
        if before is None or at - before[1] > self._lifetime:
            return None
        return before

    def purge(self, now: float) -> None:
        """Forget what has expired. Cheap enough for every tick: it looks once per lifetime."""
        if now < self._next_purge:
            return
        self._next_purge = now + self._lifetime
        oldest = now - self._lifetime
        self._readings = {key: kept for key, kept in self._readings.items() if kept[1] >= oldest}

    def __len__(self) -> int:
        return len(self._readings)


class Rates(PreviousReadings[int]):
    """Increase per second of cumulative counters, by key."""

    def __init__(self, interval: float) -> None:
        super().__init__(interval)
        self._zero_lifetime = ZERO_RATE_WINDOW * interval

    def rate(self, key: str, value: int, at: float, absent_at: float | None = None) -> float | None:
        """Return the increase per second since the key's previous reading.

        None without a usable previous reading: there was none, it is too old, no time passed, or
        the counter went back (its group was created anew). absent_at is a time at which the
        counter did not exist yet, hence was zero; it replaces a missing previous reading.
        """
        before = self.exchange(key, value, at)
        if before is None:
            if absent_at is None or at - absent_at > self._zero_lifetime:
                return None
            before = (0, absent_at)
        increase, seconds = value - before[0], at - before[1]
        if increase < 0 or seconds <= 0:
            return None
        return increase / seconds


T = TypeVar("T")


class Usage(NamedTuple):
    """CPU in cores and memory in bytes, without page cache."""

    cpu: float
    memory: float

    def plus(self, other: "Usage") -> "Usage":
        return Usage(self.cpu + other.cpu, self.memory + other.memory)

    def minus(self, other: "Usage") -> "Usage":
        """The rest, never below zero: the parts are not read at the very same moment."""
        return Usage(max(self.cpu - other.cpu, 0.0), max(self.memory - other.memory, 0.0))


NO_USAGE = Usage(0.0, 0.0)


class HostAppsUsage(NamedTuple):
    """Sums over the host applications that could be measured, by where their groups are."""

    inside_kubepods: Usage
    outside: Usage


class TickSlot(Generic[T]):
    """A typed place in Tick.shared. Empty when its collector is off or had nothing this tick."""

    def __init__(self, name: str) -> None:
        self._name = name

    def put(self, tick: Tick, value: T) -> None:
        tick.shared[self._name] = value

    def get(self, tick: Tick) -> T | None:
        return cast(T | None, tick.shared.get(self._name))


NODE_SLOT: TickSlot[Usage] = TickSlot("node")
NODE_NUMA_CPU_SLOT: TickSlot[Mapping[int, float]] = TickSlot("node numa cpu")
NODE_NUMA_MEMORY_SLOT: TickSlot[Mapping[int, int]] = TickSlot("node numa memory")
KUBEPODS_SLOT: TickSlot[Usage] = TickSlot("kubepods")  # the group of all pods, read as a whole
PODS_SLOT: TickSlot[Usage] = TickSlot("pods")  # sum over those that could be measured
PODS_NUMA_MEMORY_SLOT: TickSlot[Mapping[int, int]] = TickSlot("pods numa memory")
HOST_APPS_SLOT: TickSlot[HostAppsUsage] = TickSlot("host applications")
