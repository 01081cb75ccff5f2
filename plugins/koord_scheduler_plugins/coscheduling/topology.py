"""Where in the network a gang goes: slots, candidates, how many pods a node gets, and plans.

What nodes offer is counted by their free amounts; whether a gang fits there the group planner
decides, with affinity, spread, quota and devices.

Source: Koordinator, pkg/scheduler/plugins/coscheduling/core (NetworkTopologySolver, FindOneNode).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from koord.api.podgroup import NETWORK_TOPOLOGY_SELECTOR, TOPOLOGY_INDEX, GangTopology
from koord_scheduler.plugin import (
    MAX_NODE_SCORE,
    ClusterPod,
    Handle,
    Status,
    View,
    is_time_over,
)
from koord_scheduler.plugin.koordinator import (
    AccountKind,
    FeasibleNodes,
    GroupPlan,
    Holding,
    NetworkTree,
    NoGroupPlan,
    TopologyNode,
)
from koord_scheduler.plugin.vector import Mask, Scores, resource_requests_of

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
    """Room of the places of a network for a gang."""

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


NO_NETWORK = "no cluster network topology"
FEW_DEAD_ENDS = 8  # of a first look at a place
_HOSTNAME = "kubernetes.io/hostname"


def _selector(pod: ClusterPod) -> str:
    return dict(pod.annotations).get(NETWORK_TOPOLOGY_SELECTOR, "")


def is_attracted(pod: ClusterPod) -> bool:
    """Whether pods attract it in the network, those with the same value of the selector."""
    return bool(_selector(pod))


def _holdings(pod: ClusterPod) -> Sequence[Holding]:
    selector = _selector(pod)
    return (Holding(selector),) if selector else ()


ATTRACTED = AccountKind("network topology selector", _holdings, members=True, labels=frozenset())
"""Pods by the value that they share with those that they attract, those that have not finished."""


def without_index(pod: ClusterPod) -> ClusterPod:
    """Return a member as plans see it: with its index alone it would be unlike all others."""
    kept = tuple(one for one in pod.annotations if one[0] != TOPOLOGY_INDEX)
    return pod if len(kept) == len(pod.annotations) else replace(pod, annotations=kept)


class Gathering:
    """Plans gangs in the network of a cluster."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        handle.services.cluster.keep_account(ATTRACTED)
        self._tree: object = None
        self._columns: TreeColumns | None = None

    def tree(self) -> TreeColumns | None:
        """The network as it is now; None: there is none."""
        network = self._handle.services.network
        tree = None if network is None else network.tree()
        if tree is not self._tree:
            self._tree, self._columns = tree, None if tree is None else TreeColumns(tree)
        return self._columns

    def plan(
        self,
        members: Sequence[ClusterPod],
        nodes: View,
        topology: GangTopology,
        bound: Sequence[str],
    ) -> GroupPlan | Status:
        """Return nodes for members in the order of their index, or why there are none.

        bound: the nodes of members that are placed already.

        Raises:
            ExtensionPointError: a plugin has failed.
        """
        tree = self.tree()
        if tree is None:
            return Status.unresolvable(NO_NETWORK)
        shapes = _shapes_of(members)
        for shape in shapes:
            self._look_at(shape, nodes)
        free = np.append(node_slots(shapes, nodes), 0)  # the last one for nodes that have gone
        offer = Offer.of(
            tree,
            topology,
            len(members),
            free[tree.rows(nodes)],
            tree.count(self._attracting(members[0])),
            tree.count(bound),
        )
        independent = len(shapes) == 1 and shapes[0].independent
        failure = None
        for thorough in (False,) if independent else (False, True):
            found = self._try(members, nodes, offer, independent, thorough=thorough)
            if isinstance(found, GroupPlan):
                return found
            if found is not None and (failure is None or found.placed >= failure.placed):
                failure = found
        if failure is None:
            failure = self._nearest(members, nodes, offer, shapes)
        return _rejection(offer, failure, len(nodes))

    def _try(
        self,
        members: Sequence[ClusterPod],
        nodes: View,
        offer: Offer,
        independent: bool,
        *,
        thorough: bool,
    ) -> GroupPlan | NoGroupPlan | None:
        """Try one candidate after the other; None: there are none.

        thorough: all choices of nodes in each; otherwise one after another is taken that is
        feasible, which mostly is enough, and costs little where a whole place is in vain.
        """
        failure = None
        for depth, number in offer.candidates():
            distribution = offer.distribution(depth, number)
            if distribution is None:
                continue
            others = () if offer.multiples else offer.tree.node_names(depth, number)
            place = _Place(assign(members, distribution), others, greedy=not thorough)
            found = self._handle.groups().plan(
                members, nodes, place.order, dead_ends=None if thorough else FEW_DEAD_ENDS
            )
            if isinstance(found, GroupPlan):
                return found
            if failure is None or found.placed > failure.placed:
                failure = found
            if is_time_over() or (independent and found.statuses is None):
                break  # what PreFilter rejects, as for a quota, does not depend on the place
        return failure

    def nodes_of_gang(self, topology: GangTopology, bound: Sequence[str]) -> frozenset[str] | None:
        """The nodes of the places that hold a gang whose members are on some; None: any node."""
        tree = self.tree()
        if tree is None or not topology.must_gather:
            return None
        nothing = tree.count(())
        offer = Offer.of(tree, topology, 0, nothing, nothing, tree.count(bound))
        start = offer.start
        if start is None or not offer.bound[start].any():
            return None
        places = np.flatnonzero(offer.bound[start]).tolist()
        return frozenset(name for one in places for name in tree.node_names(start, one))

    def scores(self, pod: ClusterPod, nodes: View, feasible: Mask) -> Scores | None:
        """Prefer nodes near pods with the same selector, at most 100; shape (nodes,).

        None: the pod has no selector, or there is no network.
        """
        tree = self.tree() if _selector(pod) else None
        if tree is None:
            return None
        rows = tree.rows(nodes)
        free = np.append(feasible, False)[rows].astype(np.int64)
        nothing = tree.count(())
        offer = Offer.of(tree, GangTopology(), 1, free, tree.count(self._attracting(pod)), nothing)
        best = rows[offer.nodes()]
        last = int(np.count_nonzero(feasible)) - 1  # nodes outside of the network come last
        found = np.zeros(len(nodes), np.int64)
        found[best] = MAX_NODE_SCORE - MAX_NODE_SCORE * np.arange(len(best)) // max(last, 1)
        return found

    def _look_at(self, shape: "Shape", nodes: View) -> None:
        """Note which nodes are feasible for the first pod of a shape."""

        def look(pod: ClusterPod, found: FeasibleNodes) -> Sequence[str]:
            shape.feasible = found.mask
            return ()

        found = self._handle.groups().plan(shape.pods[:1], nodes, look)
        if isinstance(found, NoGroupPlan):
            shape.failure = found

    def _nearest(
        self,
        members: Sequence[ClusterPod],
        nodes: View,
        offer: Offer,
        shapes: Sequence["Shape"],
    ) -> NoGroupPlan | None:
        """Why members have no node in the place with the most slots; None: it is not known."""
        for shape in shapes:
            if shape.feasible is None:
                return shape.failure
        start, begun = offer.start, offer.starts()
        if start is None or not begun:
            return None
        place = _Place({}, offer.tree.node_names(start, begun[0][0]), greedy=True)
        found = self._handle.groups().plan(members, nodes, place.order)
        return found if isinstance(found, NoGroupPlan) else None

    def _attracting(self, pod: ClusterPod) -> list[str]:
        """The nodes of pods that attract a pod."""
        selector = _selector(pod)
        if not selector:
            return []
        pool = self._handle.services.cluster.account.pool(ATTRACTED, selector)
        return [node for key, node in pool.members.items() if node and key != pod.key]


@dataclass(slots=True)
class Shape:
    """Members that any rule treats alike."""

    pods: list[ClusterPod] = field(default_factory=list)
    feasible: Mask | None = None  # nodes for the first of them; None: there are none
    failure: NoGroupPlan | None = None

    @property
    def independent(self) -> bool:
        """Whether other pods matter to them only by what they take."""
        spec = self.pods[0].spec
        depends = spec.has_affinity_terms or spec.spread or spec.soft_spread or spec.host_ports
        return not (depends or self.pods[0].claims)


def _shapes_of(members: Sequence[ClusterPod]) -> list[Shape]:
    shapes: dict[object, Shape] = {}
    for pod in members:
        owners = tuple(one.uid for one in pod.owners)
        key = pod.spec, pod.label_set, pod.priority, pod.claims, pod.annotations, owners
        shapes.setdefault(key, Shape()).pods.append(pod)
    return list(shapes.values())


def node_slots(shapes: Sequence[Shape], nodes: View) -> Counts:
    """How many members each node has room for, at most; shape (nodes,).

    By free amounts. A feasible node has room for one, whatever these say: a plugin may know of
    more, as of what is reserved for the pods. Members that are not alike are counted by the
    smallest requests of each resource.
    """
    found = np.zeros(len(nodes), np.int64)
    for shape in shapes:
        if shape.feasible is not None:
            found += np.where(shape.feasible, _slots_of(shape, nodes), 0)
    if len(shapes) > 1:
        found = np.minimum(found, np.maximum(_mixed(shapes, nodes), found > 0))
    return found


def _slots_of(shape: Shape, nodes: View) -> Counts:
    pod, most = shape.pods[0], len(shape.pods)
    if pod.spec.host_ports or _keeps_apart(pod, nodes):
        most = 1
    found = np.full(len(nodes), most, np.int64)
    for name, amount in resource_requests_of(pod.spec, lambda _: False):
        column = nodes.resources.get(name)
        if column is not None and amount > 0:
            free = nodes.allocatable[:, column] - nodes.requested[:, column]
            np.minimum(found, free // amount, out=found)
    return np.maximum(found, 1)


def _keeps_apart(pod: ClusterPod, nodes: View) -> bool:
    """Whether a node with one such pod is infeasible for the next one."""
    return any(
        term.topology_key == _HOSTNAME and nodes.term_matches(term, pod.label_set)
        for term in pod.spec.anti_affinity
    )


def _mixed(shapes: Sequence[Shape], nodes: View) -> Counts:
    """How many of the members with the smallest requests fit on each node at once."""
    amounts: dict[str, list[int]] = {}
    members = sum(len(shape.pods) for shape in shapes)
    for shape in shapes:
        for name, amount in resource_requests_of(shape.pods[0].spec, lambda _: False):
            amounts.setdefault(name, []).extend([amount] * len(shape.pods))
    found = np.full(len(nodes), members, np.int64)
    for name, asked in amounts.items():
        column = nodes.resources.get(name)
        if column is not None:
            amounts_of_all = asked + [0] * (members - len(asked))
            free = nodes.allocatable[:, column] - nodes.requested[:, column]
            sums = np.cumsum(np.sort(np.array(amounts_of_all, np.float64)))
            np.minimum(found, np.searchsorted(sums, free.astype(np.float64), "right"), out=found)
    return found


@dataclass(frozen=True, slots=True)
class _Place:
    """A place that is tried for a gang."""

    nodes: Mapping[str, str]  # by namespace/name of the member; the first one to try
    others: Sequence[str]  # further nodes that may be taken
    greedy: bool  # the first node that is feasible is as good as any other one

    def order(self, pod: ClusterPod, feasible: FeasibleNodes) -> Iterator[str]:
        """Return the nodes to try for a member; see NodeOrder."""
        wanted = self.nodes.get(pod.key)
        names = self.others if wanted is None else (wanted, *self.others)
        for place, name in enumerate(names):
            row = feasible.nodes.row(name)
            again = place > 0 and name == wanted
            if row is not None and feasible.mask[row] and not again:
                yield name
                if self.greedy:
                    return


def _rejection(offer: Offer, failure: NoGroupPlan | None, nodes: int) -> Status:
    reason = f"0/{nodes} nodes are available" if failure is None else failure.status.message
    text, also = offer.message(reason), frozenset[str]()
    if failure is not None:
        diagnosis = failure.diagnosis
        also = frozenset(diagnosis.unschedulable_plugins | diagnosis.pending_plugins)
        if is_time_over():
            text += "; the search was ended for time"
    # Unresolvable: what preempts for single pods would evict for one member of many.
    return Status(Status.unresolvable().code, (text,), also_rejected_by=also)
