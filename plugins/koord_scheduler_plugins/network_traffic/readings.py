"""Traffic of nodes as numbers that can be scored, one for each node."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from koord_scheduler.plugin import KoordError, Scores, View
from koord_scheduler_plugins.network_traffic.args import Direction, Scoring

UNKNOWN = -1
_FIRST_ERROR = -2  # and below: errors, by number
_BEYOND = 2.0**62  # no byte counter gets there
_EXACT = (2**63 - 1) // 100  # up to which a hundred times a score is a number of 64 bits


class MeasureError(KoordError):
    """The traffic of a node cannot be scored: the tutorial's errors."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Traffic of a node, in bytes per second; None: unknown."""

    receive: float | None = None
    transmit: float | None = None
    speed: float | None = None  # of its links together, in each direction

    def amount(self, direction: Direction) -> float | None:
        """Bytes per second that count."""
        known = [one for one in (self.receive, self.transmit) if one is not None]
        match direction:
            case Direction.RECEIVE:
                return self.receive
            case Direction.TRANSMIT:
                return self.transmit
            case Direction.SUM:
                return sum(known) if known else None
            case Direction.MAX:
                return max(known, default=None)

    def used_percent(self, direction: Direction, usual_speed: float | None) -> int | None:
        """Percent of the link that is used, rounded up, at most 100; None: unknown.

        Links are full duplex, so the busier direction counts where both do.
        """
        speed = usual_speed if self.speed is None else self.speed
        both = direction is Direction.SUM
        amount = self.amount(Direction.MAX if both else direction)
        if amount is None or not speed:
            return None
        return min(math.ceil(amount * 100 / speed), 100)


def usable(value: float) -> float | None:
    """A figure from outside; None: it is no amount."""
    return value if math.isfinite(value) and 0 <= value < _BEYOND else None


@dataclass(frozen=True, slots=True)
class Reading:
    """What was found out about a node: its traffic, or why there is none."""

    at: float  # monotonic seconds
    traffic: Traffic = Traffic()
    error: str = ""


class Measure:
    """Scores of nodes before NormalizeScore, of one time. It does not change.

    A score is bytes per second (sums of counters with sum_over_time), or percent of the link that
    is used; UNKNOWN, or below that an error.
    """

    def __init__(
        self,
        raw: Mapping[str, int],
        *,
        by_capacity: bool = False,
        idle_below: int = 0,
        errors: tuple[str, ...] = (),
        without_capacity: int = 0,
        version: int = 0,
    ) -> None:
        self.raw = raw
        self.without_capacity = without_capacity
        """Number of nodes whose traffic is known, and the speed of their links is not."""
        self.by_capacity = by_capacity
        self.idle_below = idle_below
        self.version = version
        """Another one is another measure."""
        self._errors = errors
        self._column: tuple[object, Scores] | None = None  # and the names that it is for

    @classmethod
    def of(
        cls,
        readings: Mapping[str, Reading],
        *,
        direction: Direction,
        scoring: Scoring,
        usual_speed: float | None = None,
        idle_below: int = 0,
        version: int = 0,
    ) -> "Measure":
        """Make it of readings, all of which count."""
        raw: dict[str, int] = {}
        errors: dict[str, int] = {}
        percents: dict[str, int] = {}
        for name, one in readings.items():
            amount = None if one.error else one.traffic.amount(direction)
            if one.error:
                raw[name] = _FIRST_ERROR - errors.setdefault(one.error, len(errors))
            elif amount is not None:
                raw[name] = int(amount)
                percent = one.traffic.used_percent(direction, usual_speed)
                if percent is not None:
                    percents[name] = percent
        known = sum(score >= 0 for score in raw.values())
        whole = bool(percents) and len(percents) == len(raw)
        by_capacity = scoring is Scoring.CAPACITY or (scoring is Scoring.AUTO and whole)
        return cls(
            percents if by_capacity else raw,
            by_capacity=by_capacity,
            idle_below=0 if by_capacity else idle_below,
            errors=tuple(errors),
            without_capacity=known - len(percents),
            version=version,
        )

    def score(self, name: str) -> int:
        """The score of one node.

        Raises:
            MeasureError: it has an error.
        """
        found = self.raw.get(name, UNKNOWN)
        self._refuse(found)
        return found

    def column(self, nodes: View) -> Scores:
        """The scores of all nodes; shape (nodes,). Kept while no node has changed."""
        traits = nodes.traits
        if self._column is None or self._column[0] is not traits:
            known = (self.raw.get(name, UNKNOWN) for name in traits.rows)
            column = np.fromiter(known, np.int64, len(nodes))
            column.flags.writeable = False
            self._column = traits, column
        return self._column[1]

    def normalize(self, score: int, highest: int) -> int:
        """Return the score of a node from 0 to 100; highest is that of the busiest node.

        Raises:
            MeasureError: it has an error.
        """
        self._refuse(score)
        if score == UNKNOWN:
            return 0
        if self.by_capacity:
            return 100 - score
        return 100 if highest <= self.idle_below else 100 - score * 100 // highest

    def normalize_all(self, scores: Scores) -> Scores:
        """Return the scores of nodes from 0 to 100.

        Raises:
            MeasureError: one of them has an error.
        """
        if not len(scores):
            return scores
        self._refuse(int(scores.min()))
        highest = int(scores.max())
        if self.by_capacity:
            found = 100 - scores
        elif highest <= self.idle_below:
            found = np.full_like(scores, 100)
        elif highest <= _EXACT:
            found = 100 - scores * 100 // highest
        else:  # readings of counters can be as large; slow, and exact
            found = (100 - scores.astype(object) * 100 // highest).astype(np.int64)
        return np.where(scores == UNKNOWN, 0, found)

    def _refuse(self, score: int) -> None:
        if score <= _FIRST_ERROR:
            text = self._errors[_FIRST_ERROR - score]
            raise MeasureError(f"error getting node bandwidth measure: {text}")
