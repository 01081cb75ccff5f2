"""What PreFilter finds out for a pod, and what follows from it for nodes."""

from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from koord_scheduler.plugin import ClusterNode, Numbers, Scores, Status, Verdicts, View
from koord_scheduler.plugin.storage import Claim, StorageObjects, Volume, matches_terms
from koord_scheduler_plugins.volume_binding.matching import (
    Candidates,
    Places,
    match_all,
    match_on,
    reaches,
)
from koord_scheduler_plugins.volume_binding.podvolumes import PodClaims
from koord_scheduler_plugins.volume_binding.provisioning import (
    Obstacle,
    Obstacles,
    obstacle_on,
    obstacles,
)
from koord_scheduler_plugins.volume_binding.scores import LARGEST, ShapeScorer, Sizes

_FAR, _GONE = 1, 2  # of bound volumes: the node cannot reach one; one is not there
_WORDS = {
    _FAR: "node(s) had volume node affinity conflict",
    _GONE: "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
}
_UNBOUND_WORDS = {
    Obstacle.NO_VOLUME: "node(s) didn't find available persistent volumes to bind",
    Obstacle.NO_SPACE: "node(s) did not have enough free storage",
}


def _rejection(bound: int, unbound: Obstacle) -> Status:
    """In Kubernetes' order: far, no volume, no space, gone."""
    words = [_WORDS[_FAR]] if bound == _FAR else []
    words += [_UNBOUND_WORDS[unbound]] if unbound else []
    words += [_WORDS[_GONE]] if bound == _GONE else []
    return Status.unresolvable(*words)


_REJECTIONS = tuple(
    _rejection(number // len(Obstacle), Obstacle(number % len(Obstacle)))
    for number in range(1, 3 * len(Obstacle))
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done so that a pod can run on a node."""

    node: str = ""
    static: tuple[tuple[Claim, Volume], ...] = ()  # volumes that are there, for these claims
    made: tuple[Claim, ...] = ()  # claims for which volumes are to be made

    def __bool__(self) -> bool:
        return bool(self.static or self.made)


@dataclass(slots=True)
class PodVolumes:
    """A pod's volumes. Pods that come and go change nothing about them."""

    claims: PodClaims
    chosen: tuple[Claim, ...]  # unbound ones for which a node was chosen earlier
    candidates: Candidates  # for the other unbound ones
    storage: StorageObjects
    plan: Plan = Plan()  # of the node that was chosen; from Reserve on
    _matched: tuple[object, list[Places]] | None = field(default=None)  # for a view's traits

    def clone(self) -> Self:
        return self

    def number_on(self, node: ClusterNode) -> int:
        """What is wrong with a node, as verdicts has it; 0: nothing."""
        bound = 0
        for _, volume in self.claims.bound:
            if volume is None or not reaches(volume, node):
                bound = _GONE if volume is None else _FAR
                break
        return bound * len(Obstacle) + self._obstacle_on(node)

    def rejection_of(self, number: int) -> Status:
        return _REJECTIONS[number - 1]

    def verdicts(self, nodes: View) -> Verdicts:
        """The same for all nodes."""
        numbers: Numbers = np.zeros(len(nodes), np.int32)
        for _, volume in self.claims.bound:
            if volume is None:
                numbers[numbers == 0] = _GONE
                break
            if volume.node_terms is not None:
                numbers[(numbers == 0) & ~matches_terms(volume.node_terms, nodes)] = _FAR
        if self.claims.unbound:
            numbers = numbers * len(Obstacle) + self._obstacles(nodes)
        else:
            numbers *= len(Obstacle)
        return Verdicts(numbers, _REJECTIONS)

    def matched(self, nodes: View) -> list[Places]:
        """The places of the volumes for each claim that has candidates."""
        if self._matched is None or self._matched[0] is not nodes.traits:
            self._matched = nodes.traits, match_all(self.candidates, nodes)
        return self._matched[1]

    def plan_for(self, node: ClusterNode) -> Plan:
        """What is to be done for a node that nothing is wrong with."""
        static, made = [], list(self.chosen)
        volumes = self.candidates.volumes
        for (claim, _), at in zip(
            self.candidates.claims, match_on(self.candidates, node), strict=True
        ):
            if at < len(volumes):
                static.append((claim, volumes[at]))
            else:
                made.append(claim)
        return Plan(node.name, tuple(static), tuple(made))

    def score_on(self, node: ClusterNode, scorer: ShapeScorer) -> int:
        """The score of the volumes that are there for the claims."""
        classes: dict[str, tuple[int, int]] = {}
        for claim, volume in self.plan_for(node).static:
            requested, capacity = classes.get(claim.storage_class, (0, 0))
            classes[claim.storage_class] = (
                requested + min(claim.request or 0, LARGEST),
                capacity + min(volume.capacity, LARGEST),
            )
        return scorer.score(classes)

    def score_all(self, nodes: View, scorer: ShapeScorer) -> Scores:
        """The same for all nodes."""
        sizes = np.array(
            [*(min(one.capacity, LARGEST) for one in self.candidates.volumes), 0], np.int64
        )
        classes: dict[str, tuple[Sizes, Sizes]] = {}
        for (claim, _), places in zip(self.candidates.claims, self.matched(nodes), strict=True):
            there = places < len(self.candidates.volumes)
            nothing = np.zeros(len(nodes), np.int64), np.full(len(nodes), -1, np.int64)
            requested, capacity = classes.get(claim.storage_class, nothing)
            classes[claim.storage_class] = (
                requested + there * min(claim.request or 0, LARGEST),
                np.where(there, np.maximum(capacity, 0) + sizes[places], capacity),
            )
        return scorer.score_all(classes, len(nodes))

    def _obstacle_on(self, node: ClusterNode) -> Obstacle:
        if any(claim.selected_node != node.name for claim in self.chosen):
            return Obstacle.NO_VOLUME
        for claim in self.plan_for(node).made:
            obstacle = obstacle_on(claim, self.storage, node)
            if obstacle:
                return obstacle
        return Obstacle.NONE

    def _obstacles(self, nodes: View) -> Obstacles:
        found: Obstacles = np.zeros(len(nodes), np.int8)
        elsewhere = np.zeros(len(nodes), np.bool_)
        for claim in self.chosen:
            row = nodes.row(claim.selected_node)
            here: NDArray[np.bool_] = np.zeros(len(nodes), np.bool_)
            if row is not None:
                here[row] = True
            elsewhere |= ~here
            _note(found, found == 0, claim, self.storage, nodes)
        for (claim, _), places in zip(self.candidates.claims, self.matched(nodes), strict=True):
            wanted = (places == len(self.candidates.volumes)) & (found == 0)
            _note(found, wanted, claim, self.storage, nodes)
        found[elsewhere] = Obstacle.NO_VOLUME
        return found


def _note(
    found: Obstacles,
    wanted: NDArray[np.bool_],
    claim: Claim,
    storage: StorageObjects,
    nodes: View,
) -> None:
    """Write down on which of the wanted nodes no volume can be made for a claim."""
    if wanted.any():
        np.copyto(found, obstacles(claim, storage, nodes), where=wanted)
