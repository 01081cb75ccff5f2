"""Where in the network a gang goes: slots of places, candidates, and how many pods a node gets.

Pure: what nodes offer is given. Source: Koordinator, pkg/scheduler/plugins/coscheduling/core
(NetworkTopologySolver).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from koord.api.podgroup import GangTopology
from koord_scheduler.plugin import ClusterPod, View
from koord_scheduler.plugin.koordinator import NetworkTree, TopologyNode
from koord_scheduler.plugin.vector import Mask

Counts = NDArray[np.int64]
Ordinals = NDArray[np.intp]

MAX_PLACES_IN_MESSAGE = 100
MAX_TRIES = 32  # places of a layer that are tried before those of the layers above

Distribution = Mapping[str, int]
"""Pods by node, in the order in which the tree has the nodes."""


class TreeColumns:
    """A network tree as columns: of each layer its places, from the cluster's to the nodes'.

    The places below one place are next to each other, ordered by name.
    """

    def __init__(self, tree: NetworkTree) -> None:
        self.layers = tree.layers
        self.places: list[list[TopologyNode]] = [[tree.root]]
        self.parents: list[Ordinals] = [np.zeros(1, np.intp)]  # place in the layer above
        self.begins: list[Ordinals] = []  # of the places below; one more than there are places
        for _ in tree.layers[1:]:
            above = self.places[-1]
            below = [[place.children[name] for name in sorted(place.children)] for place in above]
            sizes = np.array([len(one) for one in below], np.intp)
            self.places.append([one for places in below for one in places])
            self.parents.append(np.repeat(np.arange(len(above)), sizes))
            self.begins.append(np.concatenate(([0], np.cumsum(sizes))))
        self.ranks: list[Ordinals] = [_ranks([one.name for one in at]) for at in self.places]
        self.leaves: Mapping[str, int] = {
            place.name: number for number, place in enumerate(self.places[-1])
        }
        self._traits: object = None  # of the view of which the rows are
        self._rows: Ordinals = np.zeros(0, np.intp)

    def rows(self, nodes: View) -> Ordinals:
        """The row of each node of the tree; shape (nodes of the tree,). -1: it has gone."""
        if self._traits is not nodes.traits:
            known = nodes.traits.rows
            self._rows = np.array([known.get(name, -1) for name in self.leaves], np.intp)
            self._traits = nodes.traits
        return self._rows

    def node_names(self, depth: int, number: int) -> list[str]:
        """The nodes of a place, in the order of the tree."""
        begin, end = number, number + 1
        for begins in self.begins[depth:]:
            begin, end = int(begins[begin]), int(begins[end])
        return [place.name for place in self.places[-1][begin:end]]

    def sums(self, leaves: Counts) -> list[Counts]:
        """Sum what nodes have up the tree; for each layer shape (places,)."""
        found = [leaves]
        for depth in range(len(self.layers) - 1, 0, -1):
            found.append(self._sum_up(found[-1], depth))
        return found[::-1]

    def slots(self, leaves: Counts, multiples: Mapping[str, int]) -> list[Counts]:
        """Sum slots up the tree; each place offers a multiple of what its layer asks for."""
        found = [_floor(leaves, multiples.get(self.layers[-1], 1))]
        for depth in range(len(self.layers) - 1, 0, -1):
            multiple = multiples.get(self.layers[depth - 1], 1)
            found.append(_floor(self._sum_up(found[-1], depth), multiple))
        return found[::-1]

    def count(self, nodes: Sequence[str]) -> Counts:
        """How often each node of the tree is named; shape (nodes of the tree,)."""
        at = [self.leaves[name] for name in nodes if name in self.leaves]
        return np.bincount(np.array(at, np.intp), minlength=len(self.leaves)).astype(np.int64)

    def _sum_up(self, values: Counts, depth: int) -> Counts:
        above = len(self.places[depth - 1])
        return np.bincount(self.parents[depth], values, above).astype(np.int64)


def _ranks(names: Sequence[str]) -> Ordinals:
    order = sorted(range(len(names)), key=names.__getitem__)
    found = np.empty(len(names), np.intp)
    found[order] = np.arange(len(names))
    return found


def _floor(values: Counts, multiple: int) -> Counts:
    return values if multiple <= 1 else values // multiple * multiple


@dataclass(frozen=True, slots=True)
class Offer:
    """What places of the network have for a gang."""

    tree: TreeColumns
    topology: GangTopology
    desired: int  # members that are to be placed
    multiples: Mapping[str, int]  # by layer
    slots: Sequence[Counts]  # by layer, shape (places,)
    existing: Sequence[Counts]  # pods that attract these; by layer, shape (places,)
    bound: Sequence[Counts]  # members that are placed already; by layer, shape (places,)

    @classmethod
    def of(
        cls,
        tree: TreeColumns,
        topology: GangTopology,
        desired: int,
        free: Counts,
        existing: Counts,
        bound: Counts,
    ) -> "Offer":
        """free, existing, bound: of the nodes of the tree, shape (nodes of the tree,).

        Multiples are for a gang as a whole: those that follow placed members have none.
        """
        multiples = {} if bound.any() else topology.multiples
        slots = tree.slots(np.minimum(free, desired), multiples)
        return cls(tree, topology, desired, multiples, slots, tree.sums(existing), tree.sums(bound))

    @property
    def start(self) -> int | None:
        """The deepest layer in one place of which all must be; None: the tree lacks it."""
        must = self.topology.must_gather
        if not must:
            return 0
        found = [depth for depth, name in enumerate(self.tree.layers) if name in must]
        return max(found) if found else None

    def candidates(self) -> Iterator[tuple[int, int]]:
        """Places with enough slots as layer and number, the deepest first, the best fit first.

        Below that of which the gang must not leave a place, the layers above come after. Where a
        rule that slots do not know of fails in many places of a layer, as of devices of nodes, it
        mostly fails in all of them: after MAX_TRIES of each layer the others come last.
        """
        start = self.start
        if start is None:
            return
        enough = [self._may_begin(start) & (self.slots[start] >= self.desired)]
        for depth in range(start + 1, len(self.tree.layers)):
            above = enough[-1][self.tree.parents[depth]]
            enough.append(above & (self.slots[depth] >= self.desired))
        later = []
        for depth in range(len(self.tree.layers) - 1, start - 1, -1):
            numbers = self._best_first(depth, np.flatnonzero(enough[depth - start])).tolist()
            yield from ((depth, number) for number in numbers[:MAX_TRIES])
            later.append((depth, numbers[MAX_TRIES:]))
        for depth, numbers in later:
            yield from ((depth, number) for number in numbers)

    def nodes(self) -> Ordinals:
        """The nodes that have a slot, by their numbers in the tree, the best fit first."""
        leaves = len(self.tree.layers) - 1
        return self._best_first(leaves, np.flatnonzero(self.slots[leaves]))

    def distribution(self, depth: int, number: int) -> Distribution | None:
        """Distribute the pods over the nodes of a place; None: multiples do not allow it."""
        found: dict[str, int] = {}
        holding = self.tree.layers[: depth + 1]
        if any(self.desired % self.multiples.get(layer, 1) for layer in holding):
            return None
        placed = self._distribute(depth, number, self.desired, found)
        return found if placed >= self.desired else None

    def starts(self) -> list[tuple[int, int]]:
        """Places of the layer where the search begins, with their slots, the most slots first."""
        start = self.start
        if start is None:
            return []
        numbers = np.flatnonzero(self._may_begin(start))
        slots = self.slots[start][numbers]
        order = np.lexsort((self.tree.ranks[start][numbers], -slots))
        return list(zip(numbers[order].tolist(), slots[order].tolist(), strict=True))

    def message(self, reason: str) -> str:
        """Say that no place has room, in Koordinator's words. reason: why a member has no node."""
        start = self.start
        if start is None:
            wanted = ", ".join(sorted(self.topology.must_gather))
            places = f"no layer of the cluster network topology is {wanted}"
        else:
            layer, at, begun = self.tree.layers[start], self.tree.places[start], self.starts()
            shown = [
                f"topology topologyNode {layer}/{at[number].name}: {slots}"
                for number, slots in begun[:MAX_PLACES_IN_MESSAGE]
            ]
            if len(begun) > len(shown):
                shown.append(f"and {len(begun) - len(shown)} more topology nodes")
            places = ";".join(shown)
        text = (
            "no candidate topology nodes can accommodate job, "
            f"desiredOfferSlot: {self.desired}, {places}, {reason}"
        )
        if self.multiples:
            listed = ", ".join(f"{layer}={n}" for layer, n in sorted(self.multiples.items()))
            text += f"; podCountMultiple constraints: {listed}"
        return text

    def _may_begin(self, start: int) -> Mask:
        """Places in which members are already, if they must be in one; otherwise all."""
        bound = self.bound[start]
        return bound > 0 if bound.any() else np.ones(len(bound), np.bool_)

    def _best_first(self, depth: int, numbers: Ordinals) -> Ordinals:
        """By existing pods, most first, then slots, fewest first: own, then of each place above."""
        attracting, offered, at = [], [], numbers
        for layer in range(depth, -1, -1):
            attracting.append(-self.existing[layer][at])
            offered.append(self.slots[layer][at])
            at = self.tree.parents[layer][at]
        keys = [*attracting, *offered, self.tree.ranks[depth][numbers], numbers]
        return numbers[np.lexsort(tuple(reversed(keys)))]

    def _distribute(self, depth: int, number: int, share: int, found: dict[str, int]) -> int:
        if depth == len(self.tree.layers) - 1:
            if share:
                found[self.tree.places[depth][number].name] = share
            return share
        below, left = depth + 1, share
        begin, end = self.tree.begins[depth][number : number + 2].tolist()
        children = np.arange(begin, end)
        slots = self.slots[below][begin:end]
        attracting = self.existing[below][begin:end]
        multiple = self.multiples.get(self.tree.layers[below], 1)
        for at in np.lexsort((children, -slots, -attracting)).tolist():
            if left <= 0:
                break
            wanted = min(int(slots[at]), left) // multiple * multiple
            left -= self._distribute(below, begin + at, wanted, found)
        return share - left


def assign(members: Sequence[ClusterPod], distribution: Distribution) -> dict[str, str]:
    """Return nodes by namespace/name of the members, which are in the order of their index."""
    nodes = (name for name, count in distribution.items() for _ in range(count))
    return {pod.key: node for pod, node in zip(members, nodes, strict=False)}
