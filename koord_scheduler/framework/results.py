"""What plugins return beside a status: verdicts and scores of nodes, choices, waits."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord_scheduler.framework.status import SUCCESS, Status

MIN_NODE_SCORE = 0
MAX_NODE_SCORE = 100
MOST_PERMIT_WAIT = 900.0  # seconds

Numbers = NDArray[np.int32]
"""For each node 0, or one more than the place of its rejection; shape (nodes,)."""
Scores = NDArray[np.int64]
"""One score for each node; shape (nodes,)."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Which nodes pass, and why the others are rejected: where a mask is not enough."""

    numbers: Numbers  # 0: the node passes; k: it is rejected as rejections[k - 1] says
    rejections: tuple[Status, ...]

    @classmethod
    def of(cls, passes: Mask, rejection: Status) -> "Verdicts":
        """All nodes that do not pass are rejected for the same reason."""
        return cls((~passes).astype(np.int32), (rejection,))


@dataclass(frozen=True, slots=True)
class PreFilterResult:
    """The only nodes that are worth a look."""

    node_names: frozenset[str]


@dataclass(frozen=True, slots=True)
class PostFilterResult:
    """What PostFilter has found for a pod that no node is feasible for."""

    nominated_node: str | None  # "": a nomination that there was is void; None: as it was
    status: Status = SUCCESS
    victims: tuple[ClusterPod, ...] = ()
    """Pods that leave the node for it; plans show them, and have them leave the plan's cluster."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Permit is given later, through the handle, or else refused after a time."""

    seconds: float  # at most MOST_PERMIT_WAIT


@dataclass(slots=True)
class NodeScore:
    """The score of a node, which the plain form of NormalizeScore changes."""

    name: str
    score: int


def default_normalize(scores: Scores, *, reverse: bool = False) -> Scores:
    """Scale scores, which are at least 0, so that the highest becomes MAX_NODE_SCORE.

    reverse: the highest becomes 0. When all are 0 they stay 0, or all become MAX_NODE_SCORE with
    reverse. Source: Kubernetes, plugins/helper DefaultNormalizeScore.
    """
    highest = int(scores.max(initial=0))
    if highest == 0:
        return np.full_like(scores, MAX_NODE_SCORE) if reverse else scores.copy()
    scaled: Scores = MAX_NODE_SCORE * scores // highest
    return MAX_NODE_SCORE - scaled if reverse else scaled
