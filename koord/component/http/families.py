"""The rules for metric families, and a registry that leaves out collectors that fail."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector


@dataclass(frozen=True, kw_only=True, slots=True)
class FamilyRules:
    """Names, places and forms of one daemon's metric families.

    Families that its sources make on demand are for users, except those named in internal.
    unsuffixed_counters are counters whose name has no `_total`. Text 0.0.4 calls them counters all
    the same; OpenMetrics, which does not know such counters, calls them unknown.
    """

    prefix: str  # of the names of the daemon's own families, without the underscore
    internal: frozenset[str] = frozenset()
    unsuffixed_counters: frozenset[str] = frozenset()


Failed = Callable[[str, Exception], None]
"""Takes the name of a source or family that could not be exported, and why."""


class FamilySource(Protocol):
    """A part that makes metric families on demand, such as a collector. Asked on any thread."""

    name: str

    def families(self) -> Iterable[Metric]:
        """Prometheus families of the latest state; may be empty."""


class IsolatingRegistry(CollectorRegistry):
    """A registry that goes without a collector that fails, instead of failing as a whole."""

    def __init__(self, failed: Failed) -> None:
        super().__init__()
        self._failed = failed
        self._collectors: dict[Collector, None] = {}  # in order of registration

    def register(self, collector: Collector) -> None:
        super().register(collector)
        self._collectors[collector] = None

    def unregister(self, collector: Collector) -> None:
        super().unregister(collector)
        self._collectors.pop(collector, None)

    def collect(self) -> Iterator[Metric]:
        """Families of the collectors that work; all or nothing of each."""
        for collector in list(self._collectors):
            try:
                families = list(collector.collect())
            except Exception as err:
                self._failed(type(collector).__name__, err)
            else:
                yield from families
