"""Counts the writer's writes and skips, for metrics."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from koordlet.host.resource import Resource, Root

CGROUP, OTHER = "cgroup", "default"  # Koordinator's names of kinds of files

Observe = Callable[[str, bool, float], None]  # kind, whether it was accepted, milliseconds


def _ignore(kind: str, accepted: bool, milliseconds: float) -> None:
    """Observe nothing."""


class WriterStats:
    """Counts since the start. Changed by the writer's thread, read by any."""

    def __init__(self, observe: Observe = _ignore) -> None:
        self.writes: Counter[tuple[str, bool]] = Counter()  # by resource and whether accepted
        self.skips = 0  # desired values that were in force already
        self._observe = observe

    @contextmanager
    def timing(self, resource: Resource[Any]) -> Iterator[None]:
        """Measure one write; count it as refused if it raises."""
        start, accepted = time.perf_counter(), False
        try:
            yield
            accepted = True
        finally:
            self.writes[resource.name, accepted] += 1
            root = next(iter(resource.files.values())).root
            kind = CGROUP if root is Root.CGROUP else OTHER
            self._observe(kind, accepted, 1000 * (time.perf_counter() - start))
