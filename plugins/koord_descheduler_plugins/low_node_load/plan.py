"""The plan of a round: the class of each node, its anomaly state, and the pods that leave."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum, auto
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from koord_descheduler.plugin import Action, ClusterPod, Relief
from koord_descheduler_plugins.low_node_load.args import (
    Amounts,
    AnomalyCondition,
    Excess,
    NodePool,
    NodeThresholds,
)
from koord_descheduler_plugins.low_node_load.usage import CPU, NodeUsage, UsageCache


@dataclass(frozen=True, slots=True)
class Counts:
    """The anomaly counters of a node. Times are Unix seconds."""

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
    """A detector that counts abnormal rounds in a row; a round below starts the count anew.

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


class NodeClass(StrEnum):
    """The classification of a node."""

    OVERUTILIZED = "high"
    PROD_OVERUTILIZED = "prod high"
    UNDERUTILIZED = "low"
    PROD_UNDERUTILIZED = "prod low"
    BOTH_UNDERUTILIZED = "low and prod low"
    NORMAL = "normal"


NODE_CLASSES = tuple(NodeClass)
"""By code, as in PoolPlan.classes."""
PODS_PER_TURN = 4  # pods that are looked at before others have their turn: below a millisecond


class PodNote(NamedTuple):
    """The decision about pods of an examined node, for people."""

    pods: tuple[ClusterPod, ...]
    action: Action
    reason: str
    candidates: tuple[str, ...] = ()  # nodes, the best one first


@dataclass(frozen=True, slots=True)
class Side:
    """One kind of thresholds: those of whole nodes, or those of prod pods."""

    prod: bool
    sources: NDArray[np.intp]  # indexes into NodeUsage, the most loaded node first
    targets: NDArray[np.intp]


@dataclass(slots=True)
class PoolPlan:
    """A node pool with the classes of its nodes. Notes are added while the plan is carried out."""

    pool: NodePool
    node_usage: NodeUsage
    limits: NodeThresholds
    classes: NDArray[np.int8]  # (nodes,), codes of NODE_CLASSES
    sides: tuple[Side, ...] = ()  # in the order in which they are carried out; (): nothing is done
    outcome: str = ""  # why nothing is done, a sentence for people
    node_notes: dict[str, str] = field(default_factory=dict)  # by node
    pod_notes: list[PodNote] = field(default_factory=list)
    usage: Amounts = field(init=False)  # before any pod has left
    prod_usage: Amounts = field(init=False)

    def __post_init__(self) -> None:
        self.usage = self.node_usage.usage.copy()
        self.prod_usage = self.node_usage.prod_usage.copy()

    def note(
        self, pod: ClusterPod, action: Action, reason: str, candidates: tuple[str, ...] = ()
    ) -> None:
        self.pod_notes.append(PodNote((pod,), action, reason, candidates))

    def keep(self, pods: Iterable[ClusterPod], reason: str) -> None:
        """Note that pods stay, all for one reason."""
        self.pod_notes.append(PodNote(tuple(pods), Action.STAY, reason))

    def count(self, *verdicts: NodeClass) -> int:
        """How many nodes are one of these."""
        return int(np.isin(self.classes, [NODE_CLASSES.index(one) for one in verdicts]).sum())


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A pod that should leave its node now."""

    pod: ClusterPod
    reason: str
    relief: Relief | None  # None: its usage is not known
    target: str = ""  # the node that it is counted on; "": none in particular


class MoveResult(Enum):
    """The result of a move."""

    DONE = auto()
    REFUSED = auto()
    NODE_LIMIT = auto()  # and no further pod of the node may go in this cycle


class YieldTurn(Enum):
    """A step in which nothing moves."""

    TURN = auto()  # others may have their turn
    WORK = auto()  # what comes next takes long and calls no filter, so it may run in another thread


Step = PlannedMove | YieldTurn
Steps = Generator[Step, MoveResult | None, None]
"""A plan being carried out; wants the result of each move."""


def resume(steps: Steps, result: MoveResult | None) -> Step | None:
    """Return the next step, with the result of the last one; None: there is none."""
    try:
        return steps.send(result)
    except StopIteration:
        return None


RejectReason = Callable[[ClusterPod], str]
"""Why a pod may not be evicted, a sentence for people; "": it may."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundState:
    """The state that a round leaves for the next one."""

    usage_cache: UsageCache = field(default_factory=dict)
    node_detector: Detector
    prod_detector: Detector
    acted: dict[str, float] = field(
        default_factory=dict
    )  # node -> updateTime up to which pods count that left


class Round(Protocol):
    """One round over all pools."""

    memory: RoundState
    """For the next round; complete when this one has ended."""

    @property
    def unusable(self) -> Mapping[str, str]:
        """Nodes that are left out, and why."""

    def plans(self) -> Iterator[PoolPlan]:
        """Judge one pool after the other; each has to be carried out before the next is taken."""

    def steps(self, plan: PoolPlan) -> Steps:
        """Carry out a plan: moves, one after the other, each seeing what became of the last."""


def overutilization(plan: PoolPlan, place: int, *, prod: bool) -> Excess:
    """Return the amounts by which a node is above its thresholds now."""
    limits = plan.limits
    usage = plan.node_usage.prod_usage if prod else plan.node_usage.usage
    high = limits.prod_high if prod else limits.high
    judged = limits.prod_judged if prod else limits.judged
    excess = usage[place] - high[place]
    return {int(at): int(excess[at]) for at in np.flatnonzero(judged & (excess > 0))}


def reason_for(plan: PoolPlan, place: int, excess: Excess, *, prod: bool) -> str:
    """Why pods leave a node, as Koordinator words it."""
    node_usage, limits = plan.node_usage, plan.limits
    high = limits.prod_high if prod else limits.high
    printed = limits.prod_printed if prod else limits.printed
    whose = "prod" if prod else "node"
    parts = []
    for name, over, at in sorted(
        (node_usage.resources[at], over, at) for at, over in excess.items()
    ):
        capacity, bound = int(node_usage.capacity[place, at]), int(high[place, at])
        unit = 1 if at == CPU else 1000
        used = _percent((bound + over) * unit, capacity * unit)
        limit = printed[name] if printed else _percent(bound * unit, capacity * unit)
        parts.append(f"{whose} {name} usage({used:.2f}%)>threshold({limit:.2f}%)")
    return "node is overutilized, " + ", ".join(parts)


def _percent(part: int, capacity: int) -> float:
    """Return a percentage of thousandths, in Koordinator's order, so that both round alike."""
    return 100 * float(part) / float(capacity) if capacity else 0.0
