"""The volumes of a pod: what PreFilter finds for its claims, and what follows from it for nodes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from koord.plugin.args import FieldError, Int32, invalid, required
from koord_scheduler.plugin import (
    MAX_NODE_SCORE,
    ClusterNode,
    ClusterPod,
    NodeTerm,
    Status,
    View,
    in_time,
    node_matches_terms,
)
from koord_scheduler.plugin.storage import (
    LOST,
    Claim,
    StorageCapacity,
    StorageClass,
    StorageObjects,
    Volume,
    is_ephemeral,
    missing,
)
from koord_scheduler.plugin.vector import Mask, Numbers, Scores, Verdicts, matches_terms
from koord_scheduler_plugins.volume_binding.tables import (
    AssumedVolumes,
    Candidates,
    CapacityTables,
    Places,
    VolumeTable,
    VolumeTables,
    candidates_for,
    match_on,
    reaches,
)

HIGHEST_UTILIZATION = 100  # percent
HIGHEST_SCORE = 10  # as people give it; 100 is the highest of a node


@dataclass(frozen=True, kw_only=True, slots=True)
class ShapePoint:
    """A score for a utilization; between two points it is a straight line."""

    utilization: Int32 = 0  # percent of the volumes' capacity that the claims request
    score: Int32 = 0  # 0 to 10


@dataclass(frozen=True, kw_only=True, slots=True)
class VolumeBindingArgs:
    """How long binding may take, and how volumes are scored."""

    bind_timeout_seconds: int = 600  # for all claims of a pod to be bound; 0: at once
    shape: tuple[ShapePoint, ...] | None = None  # None: volumes are not scored

    def validate(self) -> Iterator[FieldError]:
        if self.bind_timeout_seconds < 0:
            seconds = self.bind_timeout_seconds
            yield invalid(("bindTimeoutSeconds",), seconds, "wanted 0 or more seconds")
        if self.shape is None:
            return
        if not self.shape:
            yield required(("shape",), "at least one point must be specified")
        last = -1
        for at, point in enumerate(self.shape):
            if not 0 <= point.utilization <= HIGHEST_UTILIZATION:
                place = ("shape", at, "utilization")
                yield invalid(place, point.utilization, "not in valid range [0-100]")
            elif point.utilization <= last:
                place = ("shape", at, "utilization")
                yield invalid(place, point.utilization, "values must be sorted in increasing order")
            if not 0 <= point.score <= HIGHEST_SCORE:
                yield invalid(("shape", at, "score"), point.score, "not in valid range [0-10]")
            last = max(last, point.utilization)


Sizes = NDArray[np.int64]
"""Bytes; shape (nodes,)."""

MAX_BYTES = 2**50  # bytes; a larger size counts as this, and sums times 100 stay below 64 bits


class ShapeScorer:
    """Scores by a broken line over the utilization, the mean of all classes."""

    def __init__(self, shape: Sequence[ShapePoint]) -> None:
        """shape: by rising utilization, at least one point."""
        self._at = [point.utilization for point in shape]
        self._scores = [point.score * (MAX_NODE_SCORE // HIGHEST_SCORE) for point in shape]

    def line(self, utilization: int) -> int:
        """The score of a utilization; fractions are cut off as Go does it."""
        for at, above in enumerate(self._at):
            if utilization <= above:
                if at == 0:
                    return self._scores[0]
                rise = (self._scores[at] - self._scores[at - 1]) * (utilization - self._at[at - 1])
                run = above - self._at[at - 1]
                return self._scores[at - 1] + (rise // run if rise >= 0 else -(-rise // run))
        return self._scores[-1]

    def score(self, classes: Mapping[str, tuple[int, int]]) -> int:
        """The score of what is requested, and what it is of, in bytes, by class; of none, 0."""
        if not classes:
            return 0
        total = sum(self.line(_utilization(*sizes)) for sizes in classes.values())
        return (2 * total + len(classes)) // (2 * len(classes))  # rounded half up

    def score_all(self, classes: Mapping[str, tuple[Sizes, Sizes]], nodes: int) -> Sizes:
        """The same for all nodes; a class of which a node has no volume does not count there."""
        table = np.array([self.line(at) for at in range(HIGHEST_UTILIZATION + 1)], np.int64)
        total, count = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
        for requested, capacity in classes.values():
            there = capacity >= 0
            full = (capacity <= 0) | (requested > capacity)
            share = requested * HIGHEST_UTILIZATION // np.maximum(capacity, 1)
            total += np.where(there, table[np.where(full, HIGHEST_UTILIZATION, share)], 0)
            count += there
        return np.where(count == 0, 0, (2 * total + count) // np.maximum(2 * count, 1))


def _utilization(requested: int, capacity: int) -> int:
    if capacity == 0 or requested > capacity:
        return HIGHEST_UTILIZATION
    return requested * HIGHEST_UTILIZATION // capacity


_IMMEDIATE = Status.unresolvable("pod has unbound immediate PersistentVolumeClaims")


@dataclass(frozen=True, slots=True)
class PodVolumeClaims:
    """The claims of a pod that nothing but a node is missing for."""

    bound: tuple[tuple[Claim, Volume | None], ...] = ()  # None: the volume is not there
    unbound: tuple[Claim, ...] = ()  # that wait for their first pod


def claims_of(
    pod: ClusterPod, nodes: View, classes: Mapping[str, StorageClass], assumed: AssumedVolumes
) -> PodVolumeClaims | Status:
    """The claims of a pod, as they are assumed to be; or why it has to wait, or has failed."""
    bound: list[tuple[Claim, Volume | None]] = []
    unbound: list[Claim] = []
    immediate = False
    for name in in_time(dict.fromkeys(pod.claims)):
        live = nodes.claim(pod.namespace, name)
        wrong = _why_unusable(pod, name, live)
        if live is None or wrong:
            return Status.unresolvable(wrong)
        claim = assumed.claim(live)
        if claim.fully_bound:
            volume = nodes.volume(claim.volume)
            bound.append((claim, None if volume is None else assumed.volume(volume)))
            continue
        found = classes.get(claim.storage_class) if claim.storage_class else None
        if found is not None and found.waits_for_consumer is None:
            return Status.failed(f'VolumeBindingMode not set for StorageClass "{found.name}"')
        if found is not None and found.waits_for_consumer and not claim.volume:
            unbound.append(claim)
        else:
            immediate = True
    return _IMMEDIATE if immediate else PodVolumeClaims(tuple(bound), tuple(unbound))


def _why_unusable(pod: ClusterPod, name: str, claim: Claim | None) -> str:
    """Return why a claim cannot be used, in Kubernetes' words; "": it can."""
    ephemeral = is_ephemeral(pod, name)
    if claim is None and ephemeral:
        wanted = "waiting for ephemeral volume controller to create the persistentvolumeclaim"
        return f'{wanted} "{name}"'
    if claim is None:
        return missing("persistentvolumeclaim", name)
    if claim.phase == LOST:
        volume = f'bound to non-existent persistentvolume "{claim.volume}"'
        return f'persistentvolumeclaim "{name}" {volume}'
    if claim.deleting:
        return f'persistentvolumeclaim "{name}" is being deleted'
    if ephemeral and not claim.is_for(pod):
        return f"PVC {claim.key} was not created for pod {pod.key} (pod is not owner)"
    return ""


class ConflictReason(IntEnum):
    """Why a node is not for a claim that is not bound."""

    NONE = 0
    NO_VOLUME = 1
    NO_SPACE = 2


ConflictReasons = NDArray[np.int8]
"""Values of Obstacle; shape (nodes,)."""


def conflict_on(claim: Claim, storage: StorageObjects, node: ClusterNode) -> ConflictReason:
    """Why no volume can be made for a claim on a node."""
    found = storage.classes.get(claim.storage_class)
    if found is None or not found.provisions:
        return ConflictReason.NO_VOLUME
    if found.topologies is not None and not node_matches_terms(found.topologies, node):
        return ConflictReason.NO_VOLUME
    if not _is_tracked(claim, storage) or any(
        node_matches_terms((NodeTerm(one.nodes or ()),), node)
        for one in _sufficient(claim, storage)
    ):
        return ConflictReason.NONE
    return ConflictReason.NO_SPACE


def conflicts(
    claim: Claim, storage: StorageObjects, capacities: CapacityTables, nodes: View
) -> ConflictReasons:
    """The same for all nodes."""
    found = storage.classes.get(claim.storage_class)
    if found is None or not found.provisions:
        return np.full(len(nodes), ConflictReason.NO_VOLUME, np.int8)
    codes = np.zeros(len(nodes), np.int8)
    if _is_tracked(claim, storage):
        name, size = claim.storage_class, claim.request or 0
        codes[~capacities.has_space(storage, name, size, nodes)] = ConflictReason.NO_SPACE
    if found.topologies is not None:
        codes[~matches_terms(found.topologies, nodes)] = ConflictReason.NO_VOLUME
    return codes


def _is_tracked(claim: Claim, storage: StorageObjects) -> bool:
    """Whether a driver reports what it has left for such a claim."""
    if claim.request is None:
        return False
    driver = storage.drivers.get(storage.classes[claim.storage_class].provisioner)
    return driver is not None and driver.tracks_capacity


def _sufficient(claim: Claim, storage: StorageObjects) -> Iterator[StorageCapacity]:
    """Yield capacities that are large enough and that some nodes can reach."""
    for one in storage.capacities_of(claim.storage_class):
        limit = one.limit
        if one.nodes is not None and limit is not None and limit >= (claim.request or 0):
            yield one


_FAR, _GONE = 1, 2  # of bound volumes: the node cannot reach one; one is not there
_WORDS = {
    _FAR: "node(s) didn't match PersistentVolume's node affinity",
    _GONE: "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
}
_UNBOUND_WORDS = {
    ConflictReason.NO_VOLUME: "node(s) didn't find available persistent volumes to bind",
    ConflictReason.NO_SPACE: "node(s) did not have enough free storage",
}


def _rejection(bound: int, unbound: ConflictReason) -> Status:
    """In Kubernetes' order: far, no volume, no space, gone."""
    words = [_WORDS[_FAR]] if bound == _FAR else []
    words += [_UNBOUND_WORDS[unbound]] if unbound else []
    words += [_WORDS[_GONE]] if bound == _GONE else []
    return Status.unresolvable(*words)


_REJECTIONS = tuple(
    _rejection(number // len(ConflictReason), ConflictReason(number % len(ConflictReason)))
    for number in range(1, 3 * len(ConflictReason))
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The volumes to bind and to make so that a pod can run on a node."""

    node: str = ""
    static: tuple[tuple[Claim, Volume], ...] = ()  # volumes that are there, for these claims
    made: tuple[Claim, ...] = ()  # claims for which volumes are to be made

    def __bool__(self) -> bool:
        return bool(self.static or self.made)


@dataclass(frozen=True, slots=True)
class VolumeMatch:
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

    claims: PodVolumeClaims
    chosen: tuple[Claim, ...]  # unbound ones for which a node was chosen earlier
    wanted: tuple[Claim, ...]  # the other unbound ones; that which wants least is the first
    storage: StorageObjects
    tables: VolumeTables
    capacities: CapacityTables
    assumed: Mapping[str, Volume]  # volumes as they will be, by name
    plan: Plan = Plan()  # of the node that was chosen; from Reserve on
    _matched: tuple[object, list[VolumeMatch]] | None = field(default=None)  # for a view's traits
    _candidates: Candidates | None = field(default=None)

    def clone(self) -> Self:
        return self

    def number_on(self, node: ClusterNode) -> int:
        """Return the number of the reason why a node is rejected, as verdicts has it; 0: none."""
        bound = 0
        for _, volume in in_time(self.claims.bound):
            if volume is None or not reaches(volume, node):
                bound = _GONE if volume is None else _FAR
                break
        return bound * len(ConflictReason) + self._obstacle_on(node)

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
            numbers = numbers * len(ConflictReason) + self._obstacles(nodes)
        else:
            numbers *= len(ConflictReason)
        return Verdicts(numbers, _REJECTIONS)

    def matched(self, nodes: View) -> list[VolumeMatch]:
        """The volumes that are there for each claim that is wanted, on all nodes."""
        if self._matched is None or self._matched[0] is not nodes.traits:
            self.tables.follow(nodes)
            self._matched = nodes.traits, self._match(nodes)
        return self._matched[1]

    def plan_on(self, nodes: View, row: int) -> Plan:
        """Return the plan for a node that is not rejected."""
        static, made = [], list(self.chosen)
        for match in self.matched(nodes):
            if match.there[row]:
                static.append((match.claim, match.volume(row)))
            else:
                made.append(match.claim)
        return Plan(nodes.node(row).name, tuple(static), tuple(made))

    def _match(self, nodes: View) -> list[VolumeMatch]:
        found: list[VolumeMatch] = []
        taken: dict[str, list[Places]] = {}
        reach: dict[Any, Mask] = {}
        for claim in in_time(self.wanted):
            table = self.tables.of(claim.storage_class)
            usable, kept = table.usable(claim, self.assumed)
            if kept is not None:
                found.append(VolumeMatch.of_kept(claim, kept, nodes))
                continue
            before = taken.setdefault(claim.storage_class, [])
            places = table.smallest(usable, nodes, before, reach)
            before.append(places)
            sizes = np.append(table.capacities, 0)[places]
            found.append(VolumeMatch(claim, places < len(table.order), sizes, table, places))
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
        """The volumes that could be bound to the claims; for the plain form."""
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
                requested + min(claim.request or 0, MAX_BYTES),
                capacity + min(volume.capacity, MAX_BYTES),
            )
        return scorer.score(classes)

    def score_all(self, nodes: View, scorer: ShapeScorer) -> Scores:
        """The same for all nodes."""
        classes: dict[str, tuple[Sizes, Sizes]] = {}
        for match in self.matched(nodes):
            nothing = np.zeros(len(nodes), np.int64), np.full(len(nodes), -1, np.int64)
            name = match.claim.storage_class
            requested, capacity = classes.get(name, nothing)
            sizes = np.maximum(capacity, 0) + np.minimum(match.sizes, MAX_BYTES)
            classes[name] = (
                requested + match.there * min(match.claim.request or 0, MAX_BYTES),
                np.where(match.there, sizes, capacity),
            )
        return scorer.score_all(classes, len(nodes))

    def _obstacle_on(self, node: ClusterNode) -> ConflictReason:
        if any(claim.selected_node != node.name for claim in self.chosen):
            return ConflictReason.NO_VOLUME
        for claim in self.plan_for(node).made:
            obstacle = conflict_on(claim, self.storage, node)
            if obstacle:
                return obstacle
        return ConflictReason.NONE

    def _obstacles(self, nodes: View) -> ConflictReasons:
        found: ConflictReasons = np.zeros(len(nodes), np.int8)
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
        found[elsewhere] = ConflictReason.NO_VOLUME
        return found

    def _note(
        self, found: ConflictReasons, wanted: NDArray[np.bool_], claim: Claim, nodes: View
    ) -> None:
        """Write down on which of the wanted nodes no volume can be made for a claim."""
        if wanted.any():
            codes = conflicts(claim, self.storage, self.capacities, nodes)
            np.copyto(found, codes, where=wanted)
