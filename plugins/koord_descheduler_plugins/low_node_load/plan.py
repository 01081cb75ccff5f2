"""The plan of a round: what each node is, which pods leave, and why the others stay."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from koord_descheduler.plugin import Action, ClusterPod, NodePool, Relief
from koord_descheduler_plugins.low_node_load.anomaly import Detector
from koord_descheduler_plugins.low_node_load.census import CPU, Census
from koord_descheduler_plugins.low_node_load.figures import Book
from koord_descheduler_plugins.low_node_load.limits import Amounts, Limits
from koord_descheduler_plugins.low_node_load.scores import Excess


class Verdict(StrEnum):
    """What a node is."""

    HIGH = "high"
    PROD_HIGH = "prod high"
    LOW = "low"
    PROD_LOW = "prod low"
    BOTH_LOW = "low and prod low"
    NORMAL = "normal"


VERDICTS = tuple(Verdict)
"""By code, as in PoolPlan.classes."""
PODS_A_TURN = 4  # pods that are looked at before others have their turn: below a millisecond


@dataclass(frozen=True, slots=True)
class PodNote:
    """What becomes of a pod of a node that was looked at, for people."""

    pod: ClusterPod
    action: Action
    reason: str
    candidates: tuple[str, ...] = ()  # nodes, the best one first


@dataclass(frozen=True, slots=True)
class Side:
    """One kind of thresholds: those of whole nodes, or those of prod pods."""

    prod: bool
    sources: NDArray[np.intp]  # places in the census, the most loaded one first
    targets: NDArray[np.intp]


@dataclass(slots=True)
class PoolPlan:
    """A pool of nodes, judged. Notes are added while it is carried out."""

    pool: NodePool
    census: Census
    limits: Limits
    classes: NDArray[np.int8]  # (nodes,), codes of VERDICTS
    sides: tuple[Side, ...] = ()  # in the order in which they are carried out; (): nothing is done
    outcome: str = ""  # why nothing is done, a sentence for people
    node_notes: dict[str, str] = field(default_factory=dict)  # by node
    pod_notes: list[PodNote] = field(default_factory=list)
    usage: Amounts = field(init=False)  # before any pod has left
    prod_usage: Amounts = field(init=False)

    def __post_init__(self) -> None:
        self.usage = self.census.usage.copy()
        self.prod_usage = self.census.prod_usage.copy()

    def note(
        self, pod: ClusterPod, action: Action, reason: str, candidates: tuple[str, ...] = ()
    ) -> None:
        self.pod_notes.append(PodNote(pod, action, reason, candidates))

    def keep(self, pods: Iterable[ClusterPod], reason: str) -> None:
        """Note that pods stay, all for one reason."""
        self.pod_notes += [PodNote(pod, Action.STAY, reason) for pod in pods]

    def count(self, *verdicts: Verdict) -> int:
        """How many nodes are one of these."""
        return int(np.isin(self.classes, [VERDICTS.index(one) for one in verdicts]).sum())


@dataclass(frozen=True, slots=True)
class Move:
    """A pod that should leave its node now."""

    pod: ClusterPod
    reason: str
    relief: Relief | None  # None: its usage is not known
    target: str = ""  # the node that it is counted on; "": none in particular


class Answer(Enum):
    """What became of a move."""

    DONE = auto()
    REFUSED = auto()
    NODE_LIMIT = auto()  # and no further pod of the node may go in this cycle


class Pause(Enum):
    """A step in which nothing moves."""

    TURN = auto()  # others may have their turn
    WORK = auto()  # what comes next takes long and calls no filter, so it may run in another thread


Step = Move | Pause
Steps = Generator[Step, Answer | None, None]
"""A plan being carried out; wants the answer to each move."""


def resume(steps: Steps, answer: Answer | None) -> Step | None:
    """Return the next step, with the answer to the last one; None: there is none."""
    try:
        return steps.send(answer)
    except StopIteration:
        return None


Refusal = Callable[[ClusterPod], str]
"""Why a pod may not be evicted, a sentence for people; "": it may."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """What a round leaves for the next one."""

    book: Book = field(default_factory=dict)
    node_detector: Detector
    prod_detector: Detector
    acted: dict[str, float] = field(
        default_factory=dict
    )  # node -> updateTime up to which pods count that left


class Round(Protocol):
    """One round over all pools."""

    memory: Memory
    """For the next round; complete when this one has ended."""

    @property
    def unusable(self) -> Mapping[str, str]:
        """Nodes that are left out, and why."""

    def plans(self) -> Iterator[PoolPlan]:
        """Judge one pool after the other; each has to be carried out before the next is taken."""

    def steps(self, plan: PoolPlan) -> Steps:
        """Carry out a plan: moves, one after the other, each seeing what became of the last."""


def overload(plan: PoolPlan, place: int, *, prod: bool) -> Excess:
    """By how much a node is above its thresholds now."""
    limits = plan.limits
    usage = plan.census.prod_usage if prod else plan.census.usage
    high = limits.prod_high if prod else limits.high
    judged = limits.prod_judged if prod else limits.judged
    excess = usage[place] - high[place]
    return {int(at): int(excess[at]) for at in np.flatnonzero(judged & (excess > 0))}


def reason_for(plan: PoolPlan, place: int, excess: Excess, *, prod: bool) -> str:
    """Why pods leave a node, as Koordinator words it."""
    census, limits = plan.census, plan.limits
    high = limits.prod_high if prod else limits.high
    printed = limits.prod_printed if prod else limits.printed
    whose = "prod" if prod else "node"
    parts = []
    for name, over, at in sorted((census.resources[at], over, at) for at, over in excess.items()):
        capacity, bound = int(census.capacity[place, at]), int(high[place, at])
        unit = 1 if at == CPU else 1000
        used = _percent((bound + over) * unit, capacity * unit)
        limit = printed[name] if printed else _percent(bound * unit, capacity * unit)
        parts.append(f"{whose} {name} usage({used:.2f}%)>threshold({limit:.2f}%)")
    return "node is overutilized, " + ", ".join(parts)


def _percent(part: int, capacity: int) -> float:
    """As Koordinator has it, of thousandths and in this order, so that both round alike."""
    return 100 * float(part) / float(capacity) if capacity else 0.0
