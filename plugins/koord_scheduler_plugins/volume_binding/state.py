"""What PreFilter finds out for a pod, and what follows from it for nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from koord_scheduler.plugin import (
    ClusterNode,
    Mask,
    Numbers,
    Scores,
    Status,
    Verdicts,
    View,
    in_time,
)
from koord_scheduler.plugin.storage import Claim, StorageObjects, Volume, matches_terms
from koord_scheduler_plugins.volume_binding.capacitytable import CapacityTables
from koord_scheduler_plugins.volume_binding.matching import (
    Candidates,
    Places,
    candidates_for,
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
from koord_scheduler_plugins.volume_binding.volumetable import VolumeTable, VolumeTables

_FAR, _GONE = 1, 2  # of bound volumes: the node cannot reach one; one is not there
_WORDS = {
    _FAR: "node(s) didn't match PersistentVolume's node affinity",
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


@dataclass(frozen=True, slots=True)
class Match:
    """The volume that is there for a claim, on each node the smallest one."""

    claim: Claim
    there: Mask
    sizes: Sizes  # of the volumes; where there is none it means nothing
    table: VolumeTable | None = None
    places: Places | None = None
    kept: Volume | None = None  # of all nodes the only one

    @classmethod
    def of_kept(cls, claim: Claim, kept: Volume, nodes: View) -> Self:
        """The volume that is kept for the claim, where it can be reached."""
        there = np.ones(len(nodes), np.bool_)
        if kept.node_terms is not None:
            there = matches_terms(kept.node_terms, nodes)
        return cls(claim, there, np.full(len(nodes), kept.capacity, np.int64), kept=kept)

    def volume(self, row: int) -> Volume:
        """The volume of a node on which there is one."""
        if self.kept is not None:
            return self.kept
        assert self.table is not None  # noqa: S101 - it is the one or the other
        assert self.places is not None  # noqa: S101 - as above
        return self.table.volume(int(self.places[row]))


@dataclass(slots=True)
class PodVolumes:
    """A pod's volumes. Pods that come and go change nothing about them."""

    claims: PodClaims
    chosen: tuple[Claim, ...]  # unbound ones for which a node was chosen earlier
    wanted: tuple[Claim, ...]  # the other unbound ones; that which wants least is the first
    storage: StorageObjects
    tables: VolumeTables
    capacities: CapacityTables
    assumed: Mapping[str, Volume]  # volumes as they will be, by name
    plan: Plan = Plan()  # of the node that was chosen; from Reserve on
    _matched: tuple[object, list[Match]] | None = field(default=None)  # for a view's traits
    _candidates: Candidates | None = field(default=None)

    def clone(self) -> Self:
        return self

    def number_on(self, node: ClusterNode) -> int:
        """What is wrong with a node, as verdicts has it; 0: nothing."""
        bound = 0
        for _, volume in in_time(self.claims.bound):
            if volume is None or not reaches(volume, node):
                bound = _GONE if volume is None else _FAR
                break
        return bound * len(Obstacle) + self._obstacle_on(node)

    def rejection_of(self, number: int) -> Status:
        return _REJECTIONS[number - 1]

    def verdicts(self, nodes: View) -> Verdicts:
        """The same for all nodes."""
        numbers: Numbers = np.zeros(len(nodes), np.int32)
        for _, volume in in_time(self.claims.bound):
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

    def matched(self, nodes: View) -> list[Match]:
        """The volumes that are there for each claim that is wanted, on all nodes."""
        if self._matched is None or self._matched[0] is not nodes.traits:
            self.tables.follow(nodes)
            self._matched = nodes.traits, self._match(nodes)
        return self._matched[1]

    def plan_on(self, nodes: View, row: int) -> Plan:
        """What is to be done for a node that nothing is wrong with."""
        static, made = [], list(self.chosen)
        for match in self.matched(nodes):
            if match.there[row]:
                static.append((match.claim, match.volume(row)))
            else:
                made.append(match.claim)
        return Plan(nodes.node(row).name, tuple(static), tuple(made))

    def _match(self, nodes: View) -> list[Match]:
        found: list[Match] = []
        taken: dict[str, list[Places]] = {}
        reach: dict[Any, Mask] = {}
        for claim in in_time(self.wanted):
            table = self.tables.of(claim.storage_class)
            usable, kept = table.usable(claim, self.assumed)
            if kept is not None:
                found.append(Match.of_kept(claim, kept, nodes))
                continue
            before = taken.setdefault(claim.storage_class, [])
            places = table.smallest(usable, nodes, before, reach)
            before.append(places)
            sizes = np.append(table.capacities, 0)[places]
            found.append(Match(claim, places < len(table.order), sizes, table, places))
        return found

    def plan_for(self, node: ClusterNode) -> Plan:
        """The plain form of plan_on."""
        static, made = [], list(self.chosen)
        candidates = self.candidates
        for (claim, _), at in zip(candidates.claims, match_on(candidates, node), strict=True):
            if at < len(candidates.volumes):
                static.append((claim, candidates.volumes[at]))
            else:
                made.append(claim)
        return Plan(node.name, tuple(static), tuple(made))

    @property
    def candidates(self) -> Candidates:
        """What could be bound to the claims; for the plain form."""
        if self._candidates is None:
            volumes = {
                name: [self.assumed.get(one.name, one) for one in self.storage.volumes_of(name)]
                for name in {claim.storage_class for claim in self.wanted}
            }
            self._candidates = candidates_for(self.wanted, volumes)
        return self._candidates

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
        classes: dict[str, tuple[Sizes, Sizes]] = {}
        for match in self.matched(nodes):
            nothing = np.zeros(len(nodes), np.int64), np.full(len(nodes), -1, np.int64)
            name = match.claim.storage_class
            requested, capacity = classes.get(name, nothing)
            sizes = np.maximum(capacity, 0) + np.minimum(match.sizes, LARGEST)
            classes[name] = (
                requested + match.there * min(match.claim.request or 0, LARGEST),
                np.where(match.there, sizes, capacity),
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
            self._note(found, found == 0, claim, nodes)
        for match in self.matched(nodes):
            self._note(found, ~match.there & (found == 0), match.claim, nodes)
        found[elsewhere] = Obstacle.NO_VOLUME
        return found

    def _note(self, found: Obstacles, wanted: NDArray[np.bool_], claim: Claim, nodes: View) -> None:
        """Write down on which of the wanted nodes no volume can be made for a claim."""
        if wanted.any():
            codes = obstacles(claim, self.storage, self.capacities, nodes)
            np.copyto(found, codes, where=wanted)
