"""The decisions of plugins in the last cycles, with reasons: for plan, explain and the record."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain, islice

from koord.cluster.facts import ClusterPod

KEPT_CYCLES = 12
MAX_DECISIONS = 100_000  # of one kind in one cycle


class Action(StrEnum):
    """The decision about a pod."""

    EVICT = "evict"  # it was evicted, or a migration begun; in dry-run it would have been
    STAY = "stay"  # it may stay or has to
    REFUSED = "refused"  # it was chosen, but a limit, a filter or the evict plugin rejected it


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeDecision:
    """A plugin's decision about a node."""

    profile: str
    plugin: str
    node: str
    verdict: str  # a word or two of the plugin's: "high", "low"
    reason: str  # a sentence for people
    facts: Mapping[str, float] = field(default_factory=dict)  # figures behind it, unit in the name
    hint: str = ""  # what would change it, as a threshold; "": nothing simple


@dataclass(frozen=True, kw_only=True, slots=True)
class PodDecision:
    """A plugin's decision about a pod on a node that it examined closely."""

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


class Findings:
    """Collects the decisions of one round of a plugin, to be published at its end."""

    def __init__(self, profile: str, plugin: str) -> None:
        self._profile, self._plugin = profile, plugin
        self._found: list[Decision] = []

    def node(
        self,
        node: str,
        verdict: str,
        reason: str,
        *,
        facts: Mapping[str, float] | None = None,
        hint: str = "",
    ) -> None:
        """Add a NodeDecision."""
        self._found.append(
            NodeDecision(
                profile=self._profile,
                plugin=self._plugin,
                node=node,
                verdict=verdict,
                reason=reason,
                facts=facts or {},
                hint=hint,
            )
        )

    def pod(
        self,
        pod: ClusterPod,
        action: Action,
        reason: str,
        *,
        candidates: Iterable[str] = (),
        facts: Mapping[str, float] | None = None,
    ) -> None:
        """Add a PodDecision."""
        self._found.append(
            PodDecision(
                profile=self._profile,
                plugin=self._plugin,
                pod=pod.key,
                node=pod.node,
                action=action,
                reason=reason,
                candidates=tuple(candidates),
                facts=facts or {},
            )
        )

    def __call__(self) -> Iterable[Decision]:
        """Return the decisions so far; this makes Findings a DecisionSource."""
        return tuple(self._found)


@dataclass(slots=True)
class CycleDecisions:
    """The decisions of one cycle."""

    began: float  # Unix seconds
    sources: list[DecisionSource] = field(default_factory=list)
    outcomes: list[PodDecision] = field(default_factory=list)  # of all that was to be evicted

    def copy(self) -> "CycleDecisions":
        """The decisions so far, for another thread."""
        return CycleDecisions(self.began, list(self.sources), list(self.outcomes))

    def nodes(self) -> list[NodeDecision]:
        """Return at most MAX_DECISIONS about nodes, in the order of the plugins' rounds."""
        found = (one for one in self._all() if isinstance(one, NodeDecision))
        return list(islice(found, MAX_DECISIONS))

    def pods(self) -> list[PodDecision]:
        """Return at most MAX_DECISIONS about pods, in the order of the plugins' rounds.

        Evictions that no plugin published come last. The outcome of an eviction wins over what its
        plugin published.
        """
        found = (one for one in self._all() if isinstance(one, PodDecision))
        outcomes = {_what(one): one for one in self.outcomes}
        published = {_what(one): one for one in islice(found, MAX_DECISIONS)}
        settled = (_settled(one, outcomes.pop(what, one)) for what, one in published.items())
        return list(islice(chain(settled, outcomes.values()), MAX_DECISIONS))

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

    def settle(self, outcome: PodDecision) -> None:
        """Add what became of a pod that a plugin wanted to evict; before the first cycle nowhere.

        Called by the evictor proxy, once for each such pod.
        """
        if self.cycles and len(self.cycles[-1].outcomes) < MAX_DECISIONS:
            self.cycles[-1].outcomes.append(outcome)


def _what(one: PodDecision) -> tuple[str, str, str]:
    return one.profile, one.plugin, one.pod


def _settled(published: PodDecision, outcome: PodDecision) -> PodDecision:
    """Return a published decision, corrected by its outcome."""
    if outcome.action is published.action:
        return published
    reason = f"{published.reason}; {outcome.reason}" if published.reason else outcome.reason
    return replace(published, action=outcome.action, reason=reason)
