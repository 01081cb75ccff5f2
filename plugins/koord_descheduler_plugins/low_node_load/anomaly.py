"""When a node that is above its thresholds counts as abnormal: after some rounds, not at once."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

from koord_descheduler.plugin import AnomalyCondition


@dataclass(frozen=True, slots=True)
class Counts:
    """What is known about a node. Times are Unix seconds."""

    condition: AnomalyCondition
    touched: float  # when it was last counted
    abnormal: int = 0  # marks in a row
    normal: int = 0
    anomaly: bool = False
    until: float = 0.0  # of an anomaly


class Detector(ABC):
    """Counts by node, for thresholds of one kind. A copy is one assignment per node."""

    def __init__(self, ttl: float, counts: Mapping[str, Counts] | None = None) -> None:
        """ttl: seconds after which a node that is not counted is forgotten."""
        self._ttl = ttl
        self.counts = dict(counts or {})

    def at(self, now: float) -> "Detector":
        """Return a copy without nodes that are to be forgotten."""
        kept = {name: one for name, one in self.counts.items() if now - one.touched <= self._ttl}
        return type(self)(self._ttl, kept)

    def mark(self, name: str, condition: AnomalyCondition, now: float) -> bool:
        """Count a round in which a node is above a threshold; return whether it is abnormal."""
        if condition.consecutive_abnormalities == 1:
            return True
        before = self.counts.get(name) or Counts(condition, now)
        after = replace(self._abnormal(before, now), touched=now)
        self.counts[name] = after
        return after.anomaly

    def mark_normal(self, name: str, now: float) -> None:
        """Count a round in which a node is as it should be."""
        before = self.counts.get(name)
        if before is not None:
            self.counts[name] = self._normal(before, now)

    @abstractmethod
    def reset(self, name: str, now: float) -> None:
        """A node is well, as far as one can see."""

    @abstractmethod
    def _abnormal(self, counts: Counts, now: float) -> Counts: ...

    @abstractmethod
    def _normal(self, counts: Counts, now: float) -> Counts: ...


class KoordinatorDetector(Detector):
    """Koordinator's: more marks than the number, in rounds that need not follow each other.

    Source: Koordinator, pkg/descheduler/utils/anomaly (BasicDetector).
    """

    def reset(self, name: str, now: float) -> None:
        before = self.counts.get(name)
        if before is not None and before.anomaly:
            self.counts[name] = _ok(before)

    def _abnormal(self, counts: Counts, now: float) -> Counts:
        now_is = replace(_current(counts, now), normal=0)
        now_is = replace(now_is, abnormal=now_is.abnormal + 1)
        condition = counts.condition
        if not now_is.anomaly and now_is.abnormal > condition.consecutive_abnormalities:
            until = now + condition.effective_timeout
            now_is = replace(now_is, anomaly=True, until=until, abnormal=0)
        return _current(now_is, now)

    def _normal(self, counts: Counts, now: float) -> Counts:
        now_is = replace(_current(counts, now), abnormal=0)
        return _current(replace(now_is, normal=now_is.normal + 1), now)


def _current(counts: Counts, now: float) -> Counts:
    """The state now: an anomaly ends with its time, or with enough normal marks."""
    many = counts.normal > counts.condition.consecutive_normalities
    return _ok(counts) if counts.anomaly and (counts.until < now or many) else counts


def _ok(counts: Counts) -> Counts:
    return Counts(counts.condition, counts.touched)


class ExactDetector(Detector):
    """As many rounds in a row as the number says; a round below starts the count anew.

    A node that is abnormal stays so while it is above. Below, it is normal again after as many
    rounds as the number of normalities, or after the timeout, whichever is first.
    """

    def reset(self, name: str, now: float) -> None:
        self.counts.pop(name, None)

    def _abnormal(self, counts: Counts, now: float) -> Counts:
        lapsed = counts.normal > 0 and now >= counts.until
        marks = counts.abnormal + 1
        anomaly = (
            counts.anomaly and not lapsed
        ) or marks >= counts.condition.consecutive_abnormalities
        until = now + counts.condition.effective_timeout
        return replace(counts, abnormal=marks, normal=0, anomaly=anomaly, until=until)

    def _normal(self, counts: Counts, now: float) -> Counts:
        marks = counts.normal + 1
        over = marks >= counts.condition.consecutive_normalities or now >= counts.until
        return replace(counts, abnormal=0, normal=marks, anomaly=counts.anomaly and not over)
