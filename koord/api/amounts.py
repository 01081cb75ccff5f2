"""CPU and memory in whole units, and what can be computed with them."""

from dataclasses import dataclass
from typing import Self

from koord.api.decoding.jsonrules import Json
from koord.api.quantity import Quantity


@dataclass(frozen=True, slots=True)
class Amounts:
    """An amount of CPU and one of memory; each operation is done on both."""

    milli_cores: int = 0
    memory_bytes: int = 0

    def __add__(self, other: Self) -> Self:
        return type(self)(
            self.milli_cores + other.milli_cores, self.memory_bytes + other.memory_bytes
        )

    def less(self, other: Self) -> Self:
        """Return what is left without the other; 0 where that is more."""
        return type(self)(
            max(self.milli_cores - other.milli_cores, 0),
            max(self.memory_bytes - other.memory_bytes, 0),
        )

    def scaled(self, factor: float) -> Self:
        """Return the product, cut to whole units."""
        return type(self)(int(self.milli_cores * factor), int(self.memory_bytes * factor))

    def lower(self, other: Self) -> Self:
        """Return the lower CPU and the lower memory of the two."""
        return type(self)(
            min(self.milli_cores, other.milli_cores), min(self.memory_bytes, other.memory_bytes)
        )

    def higher(self, other: Self) -> Self:
        """Return the higher CPU and the higher memory of the two."""
        return type(self)(
            max(self.milli_cores, other.milli_cores), max(self.memory_bytes, other.memory_bytes)
        )

    def to_json(self) -> Json:
        """Return them as a ResourceMap of the NodeMetric."""
        cpu, memory = Quantity.of_milli(self.milli_cores), Quantity.of_bytes(self.memory_bytes)
        return {"resources": {"cpu": str(cpu), "memory": str(memory)}}
