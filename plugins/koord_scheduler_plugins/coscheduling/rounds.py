"""Rounds of gangs: one member represents its group, all are planned, and wait for each other.

A group has one pod in the queue. In its cycle the whole group is planned; then one member after
the other is tried on its planned node and waits for its permit, until the last one lets all go.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum

from prometheus_client import CollectorRegistry, Gauge, Histogram

from koord.api.podgroup import GangTopology, MatchPolicy
from koord_scheduler.plugin import (
    ClusterPod,
    Handle,
    Status,
    View,
    Wait,
)
from koord_scheduler.plugin.koordinator import FeasibleNodes, GroupPlan, NodeOrder, NoGroupPlan
from koord_scheduler_plugins.coscheduling.gangs import (
    Gang,
    Gangs,
    basic_check,
    gang_id,
    in_order,
)
from koord_scheduler_plugins.coscheduling.topology import NO_NETWORK, Gathering, without_index

_BUCKETS = (0.1, 0.5, 1, 2, 3, 5, 7.5, 10, 12.5, 15, 20, 25, 30, 45, 60, 120)  # seconds


class Ending(StrEnum):
    """Why a gang group is not being placed any more; the first two are Koordinator's words."""

    PLACED = "gang is already succeed"
    EXHAUSTED = "all pending pods is already been attempted"
    NO_PLAN = "not all members have a node"
    FAILED = "a member cannot be placed as planned"
    UNDONE = "a member has given up its node"
    DISPLACED = "another gang group is placed"


class GangMetrics:
    """Metrics of the gangs of all profiles of a process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._waiting: dict[str, Callable[[], int]] = {}  # by profile
        Gauge(
            "scheduler_waiting_gang_group_number",
            "Number of gang groups of which members wait for the others, on their nodes.",
            registry=registry,
        ).set_function(self._count_waiting)
        self.rounds = Histogram(
            "scheduler_gang_schedule_cycle_duration_seconds",
            "Duration of placing a gang group, from its plan to its end, by the reason of the end "
            "and the number of its members: 0, 1-100, 101-200 and so on, 1000+.",
            ["reason", "job_size"],
            buckets=_BUCKETS,
            registry=registry,
        )

    def count_waiting_by(self, profile: str, count: Callable[[], int]) -> None:
        """Count the waiting gang groups of a profile by a function from now on."""
        self._waiting[profile] = count

    def _count_waiting(self) -> int:
        return sum(count() for count in tuple(self._waiting.values()))


def job_size(members: int) -> str:
    """Return the range of a number of members, as Koordinator labels it."""
    if members <= 0:
        return "0"
    if members > 1000:
        return "1000+"
    first = (members - 1) // 100 * 100
    return f"{first + 1}-{first + 100}"


PLUGIN = "Coscheduling"  # the name in which pods wait


@dataclass(slots=True)
class Round:
    """A gang group that is being placed by its plan."""

    group: tuple[str, ...]
    group_id: str
    nodes: Mapping[str, str]  # by namespace/name of the member
    left: list[ClusterPod]  # members that have not been asked for, in order
    began: float  # monotonic seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Members:
    """The pods of a gang group that have no nodes; for an ordinary pod, that one."""

    alone: bool  # it is an ordinary pod
    gangs: Sequence[Gang]
    needed: Sequence[ClusterPod]  # without which the group is not satisfied
    pending: Sequence[ClusterPod]  # all that can be placed
    waiting: int  # members that wait on their nodes
    own: frozenset[str]  # namespace/name of all members
    failure: NoGroupPlan | None  # of the last plan for all of these; None: it is not known


class Rounds:
    """Which members are tried, by which plan, and who waits for whom. Belongs to one thread."""

    def __init__(
        self,
        handle: Handle,
        gangs: Gangs,
        gathering: Gathering | None,
        metrics: GangMetrics,
    ) -> None:
        """gathering: None: networks are not looked at."""
        self.planning = False
        """Whether a plan is being made, in which members are ordinary pods."""
        self._handle = handle
        self._cluster = handle.services.cluster
        self._only: Mapping[str, str] = {}  # nodes by namespace/name of members, in a replay
        self._failure: tuple[str, NoGroupPlan] | None = None  # uid of a pod, why it has no plan
        self._gangs = gangs
        self._gathering = gathering
        self._metrics = metrics
        self.current: Round | None = None
        """The group that is being placed."""
        self._representatives: dict[str, str] = {}  # namespace/name of a pod by gang group
        self._lacking: set[str] = set()  # groups whose representative waits for further pods
        self._waiting: dict[str, dict[str, str]] = {}  # uid by namespace/name, by gang
        self._rejected: dict[str, dict[str, str]] = {}
        """Those that wait no more and are to give up their nodes: the API server may take long."""
        self._admitted_members: dict[str, frozenset[str]] = {}  # uids by gang group
        self._ended = 0  # gangs that have gone since what is kept of groups was looked through

    # The queue.

    def gate(self, pod: ClusterPod) -> Status | None:
        """Why a pod is not to be tried now; None: it is."""
        gang = self.gang(pod)
        if gang is None:
            return None
        if gang.spec is None:
            return _not_initialised(gang, pod)
        group = self._gangs.group(gang)
        if self.once_satisfied(gang, group):
            return None
        group_id = gang.spec.group_id
        lacking = _incomplete(gang, group, pod)
        if lacking is not None:
            self._representatives.pop(group_id, None)
            return lacking
        if self.current is not None and gang.id in self.current.group:
            if pod.key in self.current.nodes:
                return None
            return Status.unresolvable(
                f"gangGroup {group_id} is scheduling and this pod has not been attempted"
            )
        return self._represents(pod, group_id)

    def next_pod(self) -> str | None:
        """The member, by uid, that is tried next by the plan; None: there is none."""
        current = self.current
        while current is not None and current.left:
            pod = current.left.pop(0)
            found = self._cluster.pod(pod.key)
            if found is not None and found.uid == pod.uid and not found.node:
                return pod.uid
        if current is not None:
            self._give_up(current, Ending.EXHAUSTED, Ending.EXHAUSTED)
        return None

    # A cycle.

    def check(self, pod: ClusterPod, *, dry_run: bool) -> Status | None:
        """Why the cycle of a pod is in vain; None: it may go on."""
        gang = self.gang(pod)
        if gang is None or self.planning:
            return None
        if gang.spec is None:
            return _not_initialised(gang, pod)
        group = self._gangs.group(gang)
        if self.once_satisfied(gang, group):
            return None
        lacking = _incomplete(gang, group, pod)
        if lacking is not None:
            return lacking
        if self.current is not None and pod.key in self.current.nodes:
            return None
        rejection = None if dry_run else self._represents(pod, gang.spec.group_id)
        return rejection or self._without_network(group)

    def node_for(self, pod: ClusterPod, nodes: View, *, dry_run: bool) -> str | Status:
        """The node of a member by the plan of its group, which is made with its first member.

        Skip: the pod is an ordinary one.
        """
        if self.planning:
            return self._only.get(pod.key) or Status.skip()
        gang = self.gang(pod)
        if gang is None or gang.spec is None:
            return Status.skip()
        group = self._gangs.group(gang)
        if self.once_satisfied(gang, group):
            return Status.skip()
        current, gangs = self.current, [one for one in group.values() if one is not None]
        if current is not None and pod.key in current.nodes:
            return current.nodes[pod.key]
        if dry_run:
            return self._node_in_plan(pod, gangs, nodes)
        if current is not None:
            text = f"gang group {gang.spec.group_id} is placed meanwhile"
            self._give_up(current, text, Ending.DISPLACED)
        began = self._handle.services.clock.monotonic()
        pending = self._pending(gangs)
        found = self._plan(pod, gangs, pending, nodes)
        if isinstance(found, Status):
            self._note_end(began, len(pending), Ending.NO_PLAN)
            return found
        self._nominate(pending, found.nodes)
        by_key = {one.key: one for one in pending}
        left = [by_key[key] for key in found.nodes if key != pod.key]
        self.current = Round(gang.group, gang.spec.group_id, found.nodes, left, began)
        self._handle.services.activate([one.uid for one in left])
        return found.nodes[pod.key]

    def _node_in_plan(self, pod: ClusterPod, gangs: list[Gang], nodes: View) -> str | Status:
        """The node that a pending member would get; nothing comes of it."""
        pending = self._pending(gangs)
        if all(one.key != pod.key for one in pending):
            return Status.skip()
        found = self._plan(pod, gangs, pending, nodes)
        return found if isinstance(found, Status) else found.nodes[pod.key]

    def failed(self, pod: ClusterPod, reason: str) -> None:
        """No node is feasible for a pod: if it has one by the plan, the others give up theirs."""
        current = self.current
        if current is not None and pod.key in current.nodes:
            self._fail(current, pod, reason or "its planned node is not feasible any more")

    def is_gathered(self, pod: ClusterPod) -> bool:
        """Whether the gang of a pod is to be gathered in the network."""
        gang = self.gang(pod)
        return gang is not None and self.topology(self._gangs.group(gang).values()) is not None

    def nodes_of_bound_members(self, pod: ClusterPod) -> frozenset[str] | None:
        """The only nodes for a member that follows others in the network; None: any node."""
        gang = None if self._gathering is None or self.planning else self.gang(pod)
        if self._gathering is None or gang is None:
            return None
        group = self._gangs.group(gang)
        topology = self.topology(group.values())
        if topology is None or not self.once_satisfied(gang, group):
            return None
        members = [one.members for one in group.values() if one is not None]
        bound = [node for of_gang in members for node in of_gang.values() if node]
        return self._gathering.nodes_of_gang(topology, bound)

    def unreserve(self, pod: ClusterPod) -> None:
        """A member gives up its node: in mode Strict those that wait do so, too."""
        gang, name = self.gang(pod), gang_id(pod)
        if gang is None:
            self._stop_waiting(name, pod)
            return
        there = self._cluster.pod(pod.key)
        gone = there is None or there.uid != pod.uid
        known = self._waiting.get(name, {}), self._rejected.get(name, {})  # not placed already
        if not gone and not any(pod.key in members for members in known):
            gang = replace(gang, placed=max(gang.placed - 1, 0))  # it is on its node still
        others_bound = self.once_satisfied(gang, self._gangs.group(gang))
        self._stop_waiting(name, pod)
        if gang.strict and not others_bound:
            text = f'Gang "{gang.id}" gets rejected due to Pod "{pod.name}" in Unreserve'
            others = [uid for one in gang.group for uid in self.waiting(one).values()]
            self._reject_waiting(gang.group, text)
            self._close(gang.group, Ending.UNDONE)
            if gang.spec is not None and not gone:
                self._representatives[gang.spec.group_id] = pod.key
            elif gang.spec is not None:  # it is never tried again: one of the others has to be
                self._representatives.pop(gang.spec.group_id, None)
                pending = self._pending(
                    one for one in self._gangs.group(gang).values() if one is not None
                )
                self._handle.services.activate([*others, *(one.uid for one in pending)])

    def permit(self, pod: ClusterPod) -> Wait | None:
        """Let a member wait on its node for the others; None: all of them may be bound."""
        gang = self.gang(pod)
        if gang is None:
            return None
        group = self._gangs.group(gang)
        self._waiting.setdefault(gang.id, {})[pod.key] = pod.uid
        if not all(one is not None and self._satisfied(one) for one in group.values()):
            return Wait(gang.wait if gang.spec is not None else 0.0)
        uids = [uid for one in group for uid in self._waiting.pop(one, {}).values()]
        if gang.spec is not None and len(uids) > 1:
            self._admitted_members[gang.spec.group_id] = frozenset(uids)
        for uid in uids:
            waiting = self._handle.services.waiting.get(uid)
            if waiting is not None:
                waiting.allow(PLUGIN)
        self._close(gang.group, Ending.PLACED)
        if gang.spec is not None:
            self._representatives.pop(gang.spec.group_id, None)
        self._activate(group)
        return None

    def admitted_members(self, group_id: str) -> frozenset[str]:
        """The members, by uid, of a group that were let through at once."""
        return self._admitted_members.get(group_id, frozenset())

    def waiting(self, gang: str) -> Mapping[str, str]:
        """The members of a gang that wait on their nodes: uids by namespace/name."""
        return self._waiting.get(gang, {})

    def count_waiting(self) -> int:
        """How many gang groups have members that wait for the others."""
        gangs = [self._gangs.gang(one) for one in tuple(self._waiting)]
        return len({one.group for one in gangs if one is not None})

    # Plans.

    def _pending(self, gangs: Iterable[Gang]) -> list[ClusterPod]:
        """The members that are to be placed, in their order."""
        return in_order(one for one in self._gangs.pods(gangs) if self._can_be_placed(one))

    def _plan(
        self, pod: ClusterPod, gangs: list[Gang], pending: list[ClusterPod], nodes: View
    ) -> GroupPlan | Status:
        """Plan all members that are pending, or, if that fails, only as many as are needed."""
        assert gangs[0].spec is not None  # noqa: S101 - the basic check was passed
        needed = self._needed(pod, gangs, pending)
        if isinstance(needed, Status):
            return needed
        self._failure = None
        with self._planning(pending):
            plan = self._nodes_for(pending, gangs, nodes)
            if not isinstance(plan, GroupPlan) and len(needed) < len(pending):
                plan = self._nodes_for(needed, gangs, nodes)
        if isinstance(plan, NoGroupPlan):
            self._failure = pod.uid, plan
            return _no_plan(gangs[0].spec.group_id, plan, len(needed))
        return plan

    def members_of(self, pod: ClusterPod) -> Members | Status:
        """The members that are placed with a pod; a rejection: they are too few."""
        gang = self.gang(pod)
        group = {} if gang is None else self._gangs.group(gang)
        gangs = [one for one in group.values() if one is not None]
        own = frozenset(key for one in gangs for key in one.members)
        failure = self._failure
        why = failure[1] if failure is not None and failure[0] == pod.uid else None
        if gang is None or gang.spec is None or self.once_satisfied(gang, group):
            return Members(
                alone=True,
                gangs=gangs,
                needed=(pod,),
                pending=(pod,),
                waiting=0,
                own=own | {pod.key},
                failure=None,
            )
        pending = self._pending(gangs)
        needed = self._needed(pod, gangs, pending)
        if isinstance(needed, Status):
            return needed
        waiting = sum(len(self.waiting(one)) for one in group)
        return Members(
            alone=False,
            gangs=gangs,
            needed=needed,
            pending=pending,
            waiting=waiting,
            own=own,
            failure=why,
        )

    def try_plan(
        self, members: Members, nodes: View, order: NodeOrder | None
    ) -> GroupPlan | NoGroupPlan | Status:
        """Plan the members that are needed on a what-if."""
        with self._planning(members.pending):
            return self._nodes_for(members.needed, members.gangs, nodes, order)

    def holds(self, pods: Sequence[ClusterPod], nodes: View, planned: Mapping[str, str]) -> bool:
        """Whether members fit one after the other on the nodes that they are planned on."""

        def there(pod: ClusterPod, feasible: FeasibleNodes) -> Iterable[str]:
            row = nodes.row(planned[pod.key])
            return (planned[pod.key],) if row is not None and feasible.mask[row] else ()

        with self._planning(pods):
            self._only = planned
            try:
                found = self._handle.groups().plan(pods, nodes, there)
            finally:
                self._only = {}
        return isinstance(found, GroupPlan)

    def untried(self, pod: ClusterPod) -> list[ClusterPod]:
        """The members that wait for nodes of a group that is complete, but for one that failed."""
        gang = self.gang(pod)
        group = {} if gang is None else self._gangs.group(gang)
        if gang is None or basic_check(group) or self.once_satisfied(gang, group):
            return []
        found = self._pending(one for one in group.values() if one is not None)
        return [one for one in found if one.uid != pod.uid]

    @contextmanager
    def _planning(self, members: Iterable[ClusterPod]) -> Iterator[None]:
        """Treat members as ordinary pods, which their own nominations do not keep from nodes."""
        nominator = self._handle.services.nominator
        nominated = [
            (pod, node) for pod in members if (node := nominator.node_of(pod.key)) is not None
        ]
        for pod, _ in nominated:
            nominator.forget(pod.key)
        self.planning = True
        try:
            yield
        finally:
            self.planning = False
            for pod, node in nominated:
                nominator.nominate(pod, node)

    def _nominate(self, members: Iterable[ClusterPod], planned: Mapping[str, str]) -> None:
        """Move nominations of members to their planned nodes: on others they would hinder."""
        nominator = self._handle.services.nominator
        for pod in members:
            if nominator.node_of(pod.key) is not None:
                nominator.forget(pod.key)
                if pod.key in planned:
                    nominator.nominate(pod, planned[pod.key])

    def _nodes_for(
        self,
        members: Sequence[ClusterPod],
        gangs: Sequence[Gang],
        nodes: View,
        order: NodeOrder | None = None,
    ) -> GroupPlan | NoGroupPlan | Status:
        members = [without_index(one) for one in members]
        topology = self.topology(gangs)
        if topology is None or self._gathering is None:
            return self._handle.groups().plan(members, nodes, order)
        placed = [one for one in gangs if one.policy is not MatchPolicy.ONLY_WAITING]
        bound = [node for one in placed for node in one.members.values() if node]
        return self._gathering.plan(members, nodes, topology, bound)

    def topology(self, gangs: Iterable[Gang | None]) -> GangTopology | None:
        """The topology spec of a group: of its first gang that has one; None: of none."""
        if self._gathering is None:
            return None
        specs = (one.spec for one in gangs if one is not None and one.spec is not None)
        return next((one.topology for one in specs if one.topology is not None), None)

    def _without_network(self, group: Mapping[str, Gang | None]) -> Status | None:
        """Reject a gang that is to be gathered in a network of which nothing is known."""
        if self._gathering is None or self.topology(group.values()) is None:
            return None
        return Status.unresolvable(NO_NETWORK) if self._gathering.tree() is None else None

    def _needed(
        self, first: ClusterPod, gangs: list[Gang], pending: list[ClusterPod]
    ) -> list[ClusterPod] | Status:
        """The members without which a gang is not satisfied; the pod of the cycle among them."""
        found = []
        for gang in gangs:
            assert gang.spec is not None  # noqa: S101 - the basic check was passed
            own = [one for one in pending if gang_id(one) == gang.id]
            own.sort(key=lambda one: one.key != first.key)
            waiting = len(self._waiting.get(gang.id, ()))
            placed = waiting if gang.policy is MatchPolicy.ONLY_WAITING else self._placed(gang)
            wanted = max(gang.spec.min_members - placed, 0)
            if len(own) < wanted:
                self._lacking.add(gang.spec.group_id)
                text = f"{len(own)} of its pods can be scheduled now, {wanted} are needed"
                return Status.unresolvable(f"gang {gang.id}: {text}")
            found += own[: max(wanted, gang_id(first) == gang.id)]
        return in_order(found)

    def _can_be_placed(self, pod: ClusterPod) -> bool:
        return not (
            pod.node
            or pod.finished
            or pod.deleting
            or pod.scheduling_gates
            or pod.scheduler_name != self._handle.profile
        )

    # The state of groups.

    def gang(self, pod: ClusterPod) -> Gang | None:
        """The gang of a pod; None: it has none."""
        gang = gang_id(pod)
        return self._gangs.gang(gang) if gang else None

    def _satisfied(self, gang: Gang) -> bool:
        if gang.spec is None:
            return False
        waiting = len(self._waiting.get(gang.id, ()))
        if gang.policy is MatchPolicy.ONLY_WAITING:
            return waiting >= gang.spec.min_members
        placed = self._placed(gang)
        if gang.policy is MatchPolicy.ONCE_SATISFIED and placed > waiting:
            return True
        return placed >= gang.spec.min_members

    def _placed(self, gang: Gang) -> int:
        """How many members are on nodes, those that wait too, without those that leave them."""
        leaving = self._rejected.get(gang.id)
        if leaving is None:
            return gang.placed
        is_assumed = self._handle.scheduler().is_assumed  # one may be bound none the less
        return gang.placed - sum(map(is_assumed, leaving.values()))

    def once_satisfied(self, gang: Gang, group: Mapping[str, Gang | None]) -> bool:
        """Whether members are ordinary pods, as one of the group has been let through already."""
        if gang.policy is not MatchPolicy.ONCE_SATISFIED:
            return False
        return any(
            one is not None and self._placed(one) > len(self._waiting.get(one.id, ()))
            for one in group.values()
        )

    def _represents(self, pod: ClusterPod, group_id: str) -> Status | None:
        """Let one pod of a group be tried at a time."""
        other = self._representatives.get(group_id)
        if other is not None and other != pod.key:
            found = self._cluster.pod(other)
            if found is not None and self._can_be_placed(found):
                return Status.unresolvable(
                    f"representative pod {other} of gangGroupID {group_id} already exists"
                )
        self._representatives[group_id] = pod.key
        return None

    def _fail(self, current: Round, pod: ClusterPod, reason: str) -> None:
        """A member could not be placed as planned: the others give up their nodes."""
        waiting = sum(len(self._waiting.get(one, ())) for one in current.group)
        text = (
            f'GangGroup "{current.group_id}" gets rejected due to member Pod "{pod.key}" is '
            f'unschedulable with reason "{reason}", alreadyWaitForBound: {waiting}'
        )
        gang = self.gang(pod)
        if gang is None or gang.strict:
            self._reject_waiting(current.group, text)
        self._representatives[current.group_id] = pod.key
        self._close(current.group, Ending.FAILED)

    def _give_up(self, current: Round, text: str, ending: Ending) -> None:
        """Nothing is left to be tried: what waits in vain gives up its node."""
        gangs = [self._gangs.gang(one) for one in current.group]
        if not all(one is not None and self._satisfied(one) for one in gangs):
            self._reject_waiting(current.group, text)
        self._close(current.group, ending)
        self._activate({one.id: one for one in gangs if one is not None})

    def _close(self, group: Iterable[str], ending: Ending) -> None:
        current = self.current
        if current is not None and set(current.group) & set(group):
            self.current = None
            self._note_end(current.began, len(current.nodes), ending)

    def _note_end(self, began: float, members: int, ending: Ending) -> None:
        seconds = self._handle.services.clock.monotonic() - began
        self._metrics.rounds.labels(ending, job_size(members)).observe(seconds)

    def reject_waiting(self, gangs: Iterable[Gang], text: str, plugin: str) -> None:
        """Reject the members that wait on their nodes, in the name of a plugin."""
        self._reject_waiting([one.id for one in gangs], text, plugin)

    def _reject_waiting(self, group: Iterable[str], text: str, plugin: str = PLUGIN) -> None:
        for gang in group:
            for key, uid in self._waiting.pop(gang, {}).items():
                waiting = self._handle.services.waiting.get(uid)
                if waiting is not None:
                    self._rejected.setdefault(gang, {})[key] = uid
                    waiting.reject(plugin, text)

    def _stop_waiting(self, gang: str, pod: ClusterPod) -> None:
        for members in (self._waiting, self._rejected):
            found = members.get(gang)
            if found is not None and found.get(pod.key) == pod.uid:
                del found[pod.key]
                if not found:
                    del members[gang]

    def _activate(self, group: Mapping[str, Gang | None]) -> None:
        """Activate the members that are pending: one of them, or all of them."""
        pending = self._pending(one for one in group.values() if one is not None)
        if pending:
            self._handle.services.activate([one.uid for one in pending])

    # What changes.

    def network_changed(self) -> None:
        """Try gangs again: there may be a place for them in the network."""
        found = [self._cluster.pod(one) for one in self._representatives.values()]
        if found:
            self._handle.services.activate([one.uid for one in found if one is not None])

    def pod_changed(self, name: str, old: ClusterPod | None, new: ClusterPod | None) -> None:
        """A gang whose representative has gone gets another one; new members may help it.

        name: of the gang.
        """
        pod = old if new is None else new
        assert pod is not None  # noqa: S101 - one of them is there
        if old is not None and (new is None or new.uid != old.uid):
            self._stop_waiting(name, old)
        gang = self._gangs.gang(name)
        if gang is None:
            self._forget_groups()
        if gang is None or gang.spec is None:
            return
        group_id = gang.spec.group_id
        representative = self._representatives.get(group_id)
        comes = old is None or (  # or its scheduling gates have gone
            new is not None and self._can_be_placed(new) and not self._can_be_placed(old)
        )
        if comes and group_id in self._lacking:
            self._lacking.discard(group_id)
            found = None if representative is None else self._cluster.pod(representative)
            if found is not None:
                self._handle.services.activate([found.uid])
        elif old is None and pod.node and self._completes(gang):
            self._activate(self._gangs.group(gang))
        elif representative == pod.key and (new is None or new.node or new.finished):
            del self._representatives[group_id]
            self._activate(self._gangs.group(gang))

    def _completes(self, gang: Gang) -> bool:
        """Whether a member that comes with its node is the one for which the others have waited."""
        assert gang.spec is not None  # noqa: S101 - the caller has looked
        return len(gang.members) == gang.spec.min_members or gang.placed == 1

    def gang_changed(self, name: str) -> None:
        """The parameters of a gang have come, changed or gone."""
        gang = self._gangs.gang(name)
        if gang is None:
            self._forget_groups()
        elif gang.complete:
            self._activate(self._gangs.group(gang))

    def _forget_groups(self) -> None:
        """Forget groups that have no gang any more, once in half as many ends as groups are kept.

        So each end costs little, and no more is kept than a few times the groups that there are.
        """
        self._ended += 1
        kept = len(self._representatives) + len(self._admitted_members) + len(self._lacking)
        if self._ended <= kept // 2:
            return
        self._ended = 0
        for group in {*self._representatives, *self._admitted_members, *self._lacking}:
            if all(self._gangs.gang(one) is None for one in group.split(",")):
                self._representatives.pop(group, None)
                self._admitted_members.pop(group, None)
                self._lacking.discard(group)


def _not_initialised(gang: Gang, pod: ClusterPod) -> Status:
    return Status.unresolvable(f"gang has not init, gangName: {gang.id}, podName: {pod.key}")


def _incomplete(gang: Gang, group: Mapping[str, Gang | None], pod: ClusterPod) -> Status | None:
    """The reason for which a gang group cannot be tried; None: it can."""
    lacking = basic_check(group)
    if not lacking:
        return None
    return Status.unresolvable(f"{lacking}, current gang: {gang.id}, podName: {pod.key}")


def _no_plan(group_id: str, plan: NoGroupPlan, needed: int) -> Status:
    """The reason for the pod of the cycle; what may help is what may help the other one."""
    text = (
        f'GangGroup "{group_id}" gets rejected due to member Pod "{plan.pod.key}" is '
        f'unschedulable with reason "{plan.status.message}", {plan.placed} of {needed} fit together'
    )
    if plan.cut:
        text += "; the search was ended for time"
    also = frozenset(plan.diagnosis.unschedulable_plugins | plan.diagnosis.pending_plugins)
    # Unresolvable: what preempts for single pods would evict for one member of many.
    return Status(Status.unresolvable().code, (text,), also_rejected_by=also)
