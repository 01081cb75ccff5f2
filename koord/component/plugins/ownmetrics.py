"""Metrics that plugins add to their daemon's."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from prometheus_client import CollectorRegistry

M = TypeVar("M")


class OwnMetrics:
    """Metrics of a framework, to which plugins add theirs."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.exposition = registry
        """Where plugins add their own metrics; two of one name are a ValueError."""
        self._own: dict[object, Any] = {}

    def own(self, make: Callable[[CollectorRegistry], M]) -> M:
        """Return a plugin's metrics, which make adds to the registry, the first time.

        make is a class or function of the plugin's: its metrics exist once in a process, however
        many profiles name the plugin.
        """
        if make not in self._own:
            self._own[make] = make(self.exposition)
        return cast(M, self._own[make])
