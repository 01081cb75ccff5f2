"""Sorts the lines of a record by the time of what they record. Pure.

What a plugin watched is recorded when the watch ends, up to a second or two after it was read.
"""

import heapq
import math
from collections.abc import Iterable, Iterator
from typing import Any

from koordlet.replay.lines import Line

LATEST = 3.0  # seconds that a line may be behind the times
_MOMENT = {Line.TICK: 2, Line.READ: 0}  # the index of a line's monotonic seconds

_Content = tuple[Line, list[Any]]


def in_order(lines: Iterable[_Content]) -> Iterator[_Content]:
    """Yield the lines by their monotonic time; those without one, or with none, stay in between.

    Lines of one moment, and those that are later still than LATEST, keep their order.
    """
    waiting: list[tuple[float, int, _Content]] = []
    newest = -math.inf
    for number, line in enumerate(lines):
        at = _moment(*line)
        newest = newest if at is None else max(newest, at)
        heapq.heappush(waiting, (newest if at is None else at, number, line))
        while waiting[0][0] < newest - LATEST:
            yield heapq.heappop(waiting)[2]
    while waiting:
        yield heapq.heappop(waiting)[2]


def _moment(kind: Line, content: list[Any]) -> float | None:
    """The time of a line; None: it has none, or it makes no sense."""
    place = _MOMENT.get(kind, math.inf)
    at = content[int(place)] if place < len(content) else None
    return float(at) if isinstance(at, int | float) and math.isfinite(at) else None
