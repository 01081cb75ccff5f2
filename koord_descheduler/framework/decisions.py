"""What plugins decided in the last cycles, and why: for plan, explain and the record."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, islice

KEPT_CYCLES = 12
MOST_DECISIONS = 100_000  # of one kind in one cycle


class Action(StrEnum):
    """What becomes of a pod."""

    EVICT = "evict"  # it was evicted, or a migration begun; in dry-run it would have been
    STAY = "stay"  # it may stay or has to
    REFUSED = "refused"  # it was chosen, but a limit, a filter or the evict plugin refused


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeDecision:
    """What a plugin makes of a node."""

    profile: str
    plugin: str
    node: str
    verdict: str  # a word or two of the plugin's: "high", "low"
    reason: str  # a sentence for people
    facts: Mapping[str, float] = field(default_factory=dict)  # figures behind it, unit in the name
    hint: str = ""  # what would change it, as a threshold; "": nothing simple


@dataclass(frozen=True, kw_only=True, slots=True)
class PodDecision:
    """What a plugin makes of a pod on a node that it looked at closely."""

    profile: str
    plugin: str
    pod: str  # namespace/name
    node: str
    action: Action
    reason: str  # a sentence for people
    candidates: tuple[str, ...] = ()  # nodes that it could go to, the best ones first
    facts: Mapping[str, float] = field(default_factory=dict)


Decision = NodeDecision | PodDecision
DecisionSource = Callable[[], Iterable[Decision]]
"""Makes the decisions of one round when they are asked for; from what never changes any more."""


@dataclass(slots=True)
class CycleDecisions:
    """The decisions of one cycle."""

    began: float  # Unix seconds
    sources: list[DecisionSource] = field(default_factory=list)

    def nodes(self) -> list[NodeDecision]:
        """At most MOST_DECISIONS, in the order of the plugins' rounds."""
        found = (one for one in self._all() if isinstance(one, NodeDecision))
        return list(islice(found, MOST_DECISIONS))

    def pods(self) -> list[PodDecision]:
        """At most MOST_DECISIONS, in the order of the plugins' rounds."""
        found = (one for one in self._all() if isinstance(one, PodDecision))
        return list(islice(found, MOST_DECISIONS))

    def _all(self) -> Iterator[Decision]:
        return chain.from_iterable(source() for source in self.sources)


class Decisions:
    """The decisions of the last cycles, the newest one last. Belongs to the event loop."""

    def __init__(self) -> None:
        self.cycles: deque[CycleDecisions] = deque(maxlen=KEPT_CYCLES)

    def begin(self, now: float) -> None:
        """Begin a cycle, at so many Unix seconds."""
        self.cycles.append(CycleDecisions(now))

    def publish(self, source: DecisionSource) -> None:
        """Add the decisions of a round to those of this cycle; before the first one to none."""
        if self.cycles:
            self.cycles[-1].sources.append(source)
