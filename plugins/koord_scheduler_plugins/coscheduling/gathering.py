"""Plans of gangs where the network wants them: close together, or in one place of a layer.

What nodes offer is counted by their free amounts; whether a gang fits there the group planner
decides, with affinity, spread, quota and devices. Source: Koordinator, FindOneNode of Coscheduling.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

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
    NoGroupPlan,
)
from koord_scheduler.plugin.vector import Mask, Scores, resource_requests_of
from koord_scheduler_plugins.coscheduling.topology import (
    Counts,
    Offer,
    TreeColumns,
    assign,
)

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


ATTRACTED = AccountKind("network topology selector", _holdings, members=True)
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

    def beside(self, topology: GangTopology, bound: Sequence[str]) -> frozenset[str] | None:
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
