"""Usage that collectors hand to those that come later in the same tick."""

from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar, cast

from koordlet.collectors.engine.base import Tick

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


NOTHING = Usage(0.0, 0.0)


class HostAppsUsage(NamedTuple):
    """Sums over the host applications that could be measured, by where their groups are."""

    inside_kubepods: Usage
    outside: Usage


class Slot(Generic[T]):
    """A typed place in Tick.shared. Empty when its collector is off or had nothing this tick."""

    def __init__(self, name: str) -> None:
        self._name = name

    def put(self, tick: Tick, value: T) -> None:
        tick.shared[self._name] = value

    def get(self, tick: Tick) -> T | None:
        return cast(T | None, tick.shared.get(self._name))


NODE: Slot[Usage] = Slot("node")
NODE_NUMA_CPU: Slot[Mapping[int, float]] = Slot("node numa cpu")
NODE_NUMA_MEMORY: Slot[Mapping[int, int]] = Slot("node numa memory")
KUBEPODS: Slot[Usage] = Slot("kubepods")  # the group of all pods, read as a whole
PODS: Slot[Usage] = Slot("pods")  # sum over those that could be measured
PODS_NUMA_MEMORY: Slot[Mapping[int, int]] = Slot("pods numa memory")
HOST_APPS: Slot[HostAppsUsage] = Slot("host applications")
