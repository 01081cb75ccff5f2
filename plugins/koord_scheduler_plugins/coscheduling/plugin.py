"""Coscheduling: the pods of a gang are placed together, or not at all.

The whole gang group is planned before its first member is reserved. Then one member after the
other is tried on its planned node, waits in Permit, and the last one lets all of them be bound.

Source: Koordinator, pkg/scheduler/plugins/coscheduling; docs/coscheduling.md for what differs.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from koord.api.gangtopology import (
    MAX_SPEC_BYTES,
    NETWORK_TOPOLOGY_SELECTOR,
    NETWORK_TOPOLOGY_SPEC,
    GangTopology,
)
from koord.api.podgroup import (
    ANNOTATIONS,
    API_VERSION,
    GROUP_ID_KEYS,
    GROUP_LABEL,
    GROUPS,
    LIGHTWEIGHT_NAME_LABEL,
    MEMBER_COUNT_KEYS,
    NAME,
    PLURAL,
    MatchPolicy,
    Mode,
    PodGroup,
    is_of_pod_group,
    read_pod_group,
)
from koord.plugin import KoordError, get_logger
from koord.plugin.args import FieldError, Seconds, invalid, takes_args
from koord.plugin.kube import ApiResource, Change, ChangeKind, MissingKind
from koord_scheduler.plugin import (
    POD,
    POD_DELETED,
    Action,
    ClusterEvent,
    ClusterPod,
    CycleState,
    EnqueueExtensions,
    EventResource,
    Handle,
    HintedEvent,
    NodeInfo,
    PermitPlugin,
    PostBindPlugin,
    PostFilterPlugin,
    PostFilterResult,
    PreBindPlugin,
    PreEnqueuePlugin,
    PreFilterPlugin,
    PreFilterResult,
    PreScorePlugin,
    QueueingHint,
    ReservePlugin,
    ScorePlugin,
    SharedPart,
    Status,
    View,
    Wait,
    claims_pods_with,
    pod_changes,
    reads,
)
from koord_scheduler.plugin.koordinator import (
    APIServiceProvider,
    ControllerProvider,
    Endpoint,
    FindOneNodePlugin,
    GroupPlan,
    NextPodPlugin,
    NoGroupPlan,
    PendingAdvice,
    PluginRequest,
    PostFilterTransformer,
    PreFilterTransformer,
)
from koord_scheduler.plugin.preemption import NodeStatuses
from koord_scheduler.plugin.vector import Mask, Scores, VectorScorePlugin
from koord_scheduler_plugins.coscheduling.gangs import (
    Gang,
    GangDefaults,
    Gangs,
    basic_check,
    gang_id,
    in_order,
    what_is_missing,
)
from koord_scheduler_plugins.coscheduling.gathering import (
    NO_NETWORK,
    Gathering,
    is_attracted,
    without_index,
)
from koord_scheduler_plugins.coscheduling.metrics import Ending, GangMetrics, job_size
from koord_scheduler_plugins.coscheduling.podgroup_status import (
    PodGroupStatuses,
    count_members,
    owners_of,
    status_patch,
)

POD_GROUPS = ApiResource(API_VERSION, PLURAL)
MISSING = MissingKind(
    pause=60.0,
    hint="install the CRD podgroups.scheduling.sigs.k8s.io, or declare gangs by annotations",
)
WITHOUT = "gangs are those that pods declare by annotations"

MAX_GANGS = 1000  # in one answer
_SCORES = f"{NAME}/scores"
_NODE_CHANGES = (
    Action.ADD
    | Action.UPDATE_NODE_ALLOCATABLE
    | Action.UPDATE_NODE_LABEL
    | Action.UPDATE_NODE_TAINT
)

log = get_logger("koord_scheduler.coscheduling")


@dataclass(frozen=True, kw_only=True, slots=True)
class CoschedulingArgs:
    """Defaults of gangs."""

    default_timeout: Seconds = 600.0  # in which all members of a gang must have a node
    controller_workers: int = 1  # accepted; one is enough here
    skip_check_schedule_cycle: bool = False  # accepted; it has no meaning any more
    enable_preemption: bool = False
    aware_network_topology: bool = False
    default_match_policy: str = MatchPolicy.ONCE_SATISFIED

    def validate(self) -> Iterator[FieldError]:
        if self.default_timeout < 0:
            text = "coeSchedulingArgs DefaultTimeoutSeconds invalid"
            yield invalid(("defaultTimeout",), self.default_timeout, text)
        if self.controller_workers < 1:
            text = "coeSchedulingArgs ControllerWorkers invalid"
            yield invalid(("controllerWorkers",), self.controller_workers, text)
        if self.default_match_policy not in list(MatchPolicy):
            wanted = f"wanted {', '.join(MatchPolicy)}"
            yield invalid(("defaultMatchPolicy",), self.default_match_policy, wanted)


@dataclass(slots=True)
class Round:
    """A gang group that is being placed by its plan."""

    group: tuple[str, ...]
    group_id: str
    nodes: Mapping[str, str]  # by namespace/name of the member
    left: list[ClusterPod]  # members that have not been asked for, in order
    began: float  # monotonic seconds


@dataclass(frozen=True, slots=True)
class NodeScores:
    """Scores of a cycle; shape (nodes,)."""

    scores: Scores

    def clone(self) -> "NodeScores":
        return self


@takes_args(CoschedulingArgs)
@claims_pods_with(NAME, GROUP_LABEL, LIGHTWEIGHT_NAME_LABEL)
@reads(
    pod_annotations={
        **dict.fromkeys((*ANNOTATIONS, NETWORK_TOPOLOGY_SELECTOR), 1024),
        NETWORK_TOPOLOGY_SPEC: MAX_SPEC_BYTES,
        **dict.fromkeys((GROUPS, *GROUP_ID_KEYS), 64 << 10),  # they list gangs
    }
)
class Coscheduling(
    PreEnqueuePlugin,
    NextPodPlugin,
    PreFilterTransformer,
    PreFilterPlugin,
    FindOneNodePlugin,
    PostFilterPlugin,
    PostFilterTransformer,
    PreScorePlugin,
    VectorScorePlugin,
    ReservePlugin,
    PermitPlugin,
    PreBindPlugin,
    ScorePlugin,
    PostBindPlugin,
    EnqueueExtensions,
    ControllerProvider,
    APIServiceProvider,
    PendingAdvice,
):
    """Holds the members of a gang until all of them can be placed."""

    def __init__(self, args: CoschedulingArgs, handle: Handle) -> None:
        self._handle = handle
        self._cluster = handle.services.cluster
        defaults = GangDefaults(MatchPolicy(args.default_match_policy), args.default_timeout)
        self.gangs = Gangs(self._cluster, defaults)
        self._round: Round | None = None
        self._planning = False
        self._representatives: dict[str, str] = {}  # namespace/name of a pod by gang group
        self._lacking: set[str] = set()  # groups whose representative waits for further pods
        self._waiting: dict[str, dict[str, str]] = {}  # uid by namespace/name, by gang
        self._bound_together: dict[str, frozenset[str]] = {}  # uids by gang group
        self._ended = 0  # gangs that have gone since what is kept of groups was looked through
        self._pods: dict[str, dict[str, ClusterPod]] = {}  # of PodGroups, finished ones too
        self._statuses: PodGroupStatuses | None = None
        self._metrics = handle.services.metrics.own(GangMetrics)
        self._metrics.count_waiting_by(handle.profile, self._count_waiting)
        self._gathering = Gathering(handle) if args.aware_network_topology else None
        if self._gathering is not None and handle.services.network is not None:
            handle.services.network.subscribe(self._network_changed)
        informer = handle.services.informers.informer(POD_GROUPS, absent=MISSING, without=WITHOUT)
        informer.add_handler(self._pod_group_changed)
        handle.services.changes.subscribe(POD, self._pod_changed)

    # The queue.

    def events_to_register(self) -> Iterable[HintedEvent]:
        """What may give a place in the network room for a gang.

        Otherwise a representative waits for what its gang lacks; others are activated with it.
        """
        if self._gathering is not None:
            yield HintedEvent(POD_DELETED, self._may_help)
            yield HintedEvent(ClusterEvent(EventResource.NODE, _NODE_CHANGES), self._may_help)

    def _may_help(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        gang = self._gang(pod)
        gathered = gang is not None and self._topology(self.gangs.group(gang).values())
        return QueueingHint.QUEUE if gathered else QueueingHint.SKIP

    def pre_enqueue(self, pod: ClusterPod) -> Status | None:
        gang = self._gang(pod)
        if gang is None:
            return None
        if gang.spec is None:
            return _not_initialised(gang, pod)
        group = self.gangs.group(gang)
        if self._once_satisfied(gang, group):
            return None
        group_id = gang.spec.group_id
        lacking = _incomplete(gang, group, pod)
        if lacking is not None:
            self._representatives.pop(group_id, None)
            return lacking
        if self._round is not None and gang.id in self._round.group:
            if pod.key in self._round.nodes:
                return None
            return Status.unresolvable(
                f"gangGroup {group_id} is scheduling and this pod has not been attempted"
            )
        return self._represents(pod, group_id)

    def next_pod(self) -> str | None:
        current = self._round
        while current is not None and current.left:
            pod = current.left.pop(0)
            found = self._cluster.pod(pod.key)
            if found is not None and found.uid == pod.uid and not found.node:
                return pod.uid
        if current is not None:
            self._give_up(current, Ending.EXHAUSTED, Ending.EXHAUSTED)
        return None

    # A cycle.

    def before_pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        gang = self._gang(pod)
        if gang is None or self._planning:
            return None
        if gang.spec is None:
            return _not_initialised(gang, pod)
        group = self.gangs.group(gang)
        if self._once_satisfied(gang, group):
            return None
        lacking = _incomplete(gang, group, pod)
        if lacking is not None:
            return lacking
        if self._round is not None and pod.key in self._round.nodes:
            return None
        rejection = None if state.dry_run else self._represents(pod, gang.spec.group_id)
        return rejection or self._without_network(group)

    def pre_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View
    ) -> PreFilterResult | Status | None:
        """Keep a member that follows others in their place of the network, if it must be."""
        gang = None if self._gathering is None or self._planning else self._gang(pod)
        if self._gathering is None or gang is None:
            return Status.skip()
        group = self.gangs.group(gang)
        topology = self._topology(group.values())
        if topology is None or not self._once_satisfied(gang, group):
            return Status.skip()
        members = [one.members for one in group.values() if one is not None]
        bound = [node for of_gang in members for node in of_gang.values() if node]
        names = self._gathering.beside(topology, bound)
        return Status.skip() if names is None else PreFilterResult(names)

    def find_one_node(
        self, state: CycleState, pod: ClusterPod, nodes: View, result: PreFilterResult | None
    ) -> str | Status:
        gang = self._gang(pod)
        if gang is None or gang.spec is None or self._planning:
            return Status.skip()
        group = self.gangs.group(gang)
        if self._once_satisfied(gang, group):
            return Status.skip()
        current, gangs = self._round, [one for one in group.values() if one is not None]
        if current is not None and pod.key in current.nodes:
            return current.nodes[pod.key]
        if state.dry_run:
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
        by_key = {one.key: one for one in pending}
        left = [by_key[key] for key in found.nodes if key != pod.key]
        self._round = Round(gang.group, gang.spec.group_id, found.nodes, left, began)
        self._handle.services.activate([one.uid for one in left])
        return found.nodes[pod.key]

    def _node_in_plan(self, pod: ClusterPod, gangs: list[Gang], nodes: View) -> str | Status:
        """The node that a pending member would get; nothing comes of it."""
        pending = self._pending(gangs)
        if all(one.key != pod.key for one in pending):
            return Status.skip()
        found = self._plan(pod, gangs, pending, nodes)
        return found if isinstance(found, Status) else found.nodes[pod.key]

    async def post_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View, statuses: NodeStatuses
    ) -> PostFilterResult | Status | None:
        """Preempt nothing."""
        return Status.unschedulable()

    def after_post_filter(
        self, state: CycleState, pod: ClusterPod, statuses: NodeStatuses, result: PostFilterResult
    ) -> None:
        current = self._round
        if current is not None and pod.key in current.nodes:
            reason = result.status.message or "its planned node is not feasible any more"
            self._fail(current, pod, reason)

    def pre_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Status | None:
        """Prefer nodes near pods with the same network-topology-selector."""
        found = None if self._gathering is None else self._gathering.scores(pod, nodes, feasible)
        if found is None:
            return Status.skip()
        state.write(_SCORES, NodeScores(found))
        return None

    def pre_score_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        attracted = self._gathering is not None and is_attracted(pod)
        return None if attracted else ()

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        return state.read(_SCORES, NodeScores).scores.item(node.row)

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        return state.read(_SCORES, NodeScores).scores

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        return None

    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        gang = self._gang(pod)
        if gang is None:
            return
        if pod.key not in self._waiting.get(gang.id, ()):
            gang = replace(gang, placed=max(gang.placed - 1, 0))  # it is on its node still
        others_bound = self._once_satisfied(gang, self.gangs.group(gang))
        self._stop_waiting(gang.id, pod.key)
        if gang.strict and not others_bound:
            text = f'Gang "{gang.id}" gets rejected due to Pod "{pod.name}" in Unreserve'
            self._reject_waiting(gang.group, text)
            self._close(gang.group, Ending.UNDONE)
            if gang.spec is not None:
                self._representatives[gang.spec.group_id] = pod.key

    def permit(self, state: CycleState, pod: ClusterPod, node_name: str) -> Wait | Status | None:
        gang = self._gang(pod)
        if gang is None:
            return None
        group = self.gangs.group(gang)
        self._waiting.setdefault(gang.id, {})[pod.key] = pod.uid
        if not all(one is not None and self._satisfied(one) for one in group.values()):
            return Wait(gang.wait if gang.spec is not None else 0.0)
        uids = [uid for one in group for uid in self._waiting.pop(one, {}).values()]
        if gang.spec is not None and len(uids) > 1:
            self._bound_together[gang.spec.group_id] = frozenset(uids)
        for uid in uids:
            waiting = self._handle.services.waiting.get(uid)
            if waiting is not None:
                waiting.allow(self.name)
        self._close(gang.group, Ending.PLACED)
        if gang.spec is not None:
            self._representatives.pop(gang.spec.group_id, None)
        self._activate(group)
        return None

    async def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        """Have the pod's annotations say with how many others it was placed."""
        gang = self._gang(pod)
        if gang is None or gang.spec is None:
            return None
        together = self._bound_together.get(gang.spec.group_id, frozenset())
        is_one = len(together) > 1 and pod.uid in together
        values = (gang.spec.group_id, str(len(together)))
        old, changes = dict(pod.annotations), pod_changes(state).annotations
        for keys, value in zip((GROUP_ID_KEYS, MEMBER_COUNT_KEYS), values, strict=True):
            for key in keys:
                if is_one:
                    changes[key] = value
                elif key in old:
                    changes[key] = None
        return None

    async def post_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        """Do nothing: the account has the pod."""

    # Plans.

    def _pending(self, gangs: Iterable[Gang]) -> list[ClusterPod]:
        """The members that are to be placed, in their order."""
        return in_order(one for one in self.gangs.pods(gangs) if self._can_be_placed(one))

    def _plan(
        self, pod: ClusterPod, gangs: list[Gang], pending: list[ClusterPod], nodes: View
    ) -> GroupPlan | Status:
        """Plan all members that are pending, or, if that fails, only as many as are needed."""
        assert gangs[0].spec is not None  # noqa: S101 - the basic check was passed
        needed = self._needed(pod, gangs, pending)
        if isinstance(needed, Status):
            return needed
        self._planning = True
        try:
            plan = self._nodes_for(pending, gangs, nodes)
            if not isinstance(plan, GroupPlan) and len(needed) < len(pending):
                plan = self._nodes_for(needed, gangs, nodes)
        finally:
            self._planning = False
        if isinstance(plan, NoGroupPlan):
            return _no_plan(gangs[0].spec.group_id, plan, len(needed))
        return plan

    def _nodes_for(
        self, members: list[ClusterPod], gangs: list[Gang], nodes: View
    ) -> GroupPlan | NoGroupPlan | Status:
        members = [without_index(one) for one in members]
        topology = self._topology(gangs)
        if topology is None or self._gathering is None:
            return self._handle.groups().plan(members, nodes)
        placed = [one for one in gangs if one.policy is not MatchPolicy.ONLY_WAITING]
        bound = [node for one in placed for node in one.members.values() if node]
        return self._gathering.plan(members, nodes, topology, bound)

    def _topology(self, gangs: Iterable[Gang | None]) -> GangTopology | None:
        """The topology spec of a group: of its first gang that has one; None: of none."""
        if self._gathering is None:
            return None
        specs = (one.spec for one in gangs if one is not None and one.spec is not None)
        return next((one.topology for one in specs if one.topology is not None), None)

    def _without_network(self, group: Mapping[str, Gang | None]) -> Status | None:
        """Reject a gang that is to be gathered in a network of which nothing is known."""
        if self._gathering is None or self._topology(group.values()) is None:
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
            placed = 0 if gang.policy is MatchPolicy.ONLY_WAITING else gang.placed
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

    def _gang(self, pod: ClusterPod) -> Gang | None:
        gang = gang_id(pod)
        return self.gangs.gang(gang) if gang else None

    def _satisfied(self, gang: Gang) -> bool:
        if gang.spec is None:
            return False
        waiting = len(self._waiting.get(gang.id, ()))
        if gang.policy is MatchPolicy.ONLY_WAITING:
            return waiting >= gang.spec.min_members
        if gang.policy is MatchPolicy.ONCE_SATISFIED and gang.placed > waiting:
            return True
        return gang.placed >= gang.spec.min_members

    def _once_satisfied(self, gang: Gang, group: Mapping[str, Gang | None]) -> bool:
        """Whether members are ordinary pods, as one of the group has been let through already."""
        if gang.policy is not MatchPolicy.ONCE_SATISFIED:
            return False
        return any(
            one is not None and one.placed > len(self._waiting.get(one.id, ()))
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
        gang = self._gang(pod)
        if gang is None or gang.strict:
            self._reject_waiting(current.group, text)
        self._representatives[current.group_id] = pod.key
        self._close(current.group, Ending.FAILED)

    def _give_up(self, current: Round, text: str, ending: Ending) -> None:
        """Nothing is left to be tried: what waits in vain gives up its node."""
        gangs = [self.gangs.gang(one) for one in current.group]
        if not all(one is not None and self._satisfied(one) for one in gangs):
            self._reject_waiting(current.group, text)
        self._close(current.group, ending)
        self._activate({one.id: one for one in gangs if one is not None})

    def _close(self, group: Iterable[str], ending: Ending) -> None:
        current = self._round
        if current is not None and set(current.group) & set(group):
            self._round = None
            self._note_end(current.began, len(current.nodes), ending)

    def _note_end(self, began: float, members: int, ending: Ending) -> None:
        seconds = self._handle.services.clock.monotonic() - began
        self._metrics.rounds.labels(ending, job_size(members)).observe(seconds)

    def _count_waiting(self) -> int:
        """How many gang groups have members that wait for the others."""
        gangs = [self.gangs.gang(one) for one in tuple(self._waiting)]
        return len({one.group for one in gangs if one is not None})

    def _reject_waiting(self, group: Iterable[str], text: str) -> None:
        for gang in group:
            for uid in self._waiting.pop(gang, {}).values():
                waiting = self._handle.services.waiting.get(uid)
                if waiting is not None:
                    waiting.reject(self.name, text)

    def _stop_waiting(self, gang: str, key: str) -> None:
        waiting = self._waiting.get(gang)
        if waiting is not None and waiting.pop(key, None) is not None and not waiting:
            del self._waiting[gang]

    def _activate(self, group: Mapping[str, Gang | None]) -> None:
        """Have the members that are pending looked at: one of them goes on, or all of them."""
        pending = self._pending(one for one in group.values() if one is not None)
        if pending:
            self._handle.services.activate([one.uid for one in pending])

    # What changes.

    def _network_changed(self) -> None:
        """Have gangs tried again: there may be a place for them in the network."""
        found = [self._cluster.pod(one) for one in self._representatives.values()]
        if found:
            self._handle.services.activate([one.uid for one in found if one is not None])

    def _pod_changed(self, old: ClusterPod | None, new: ClusterPod | None) -> None:
        """A gang whose representative has gone gets another one; new members may help it."""
        pod = old if new is None else new
        name = gang_id(pod) if pod is not None else ""
        if not name or pod is None:
            return
        if is_of_pod_group(pod.labels):
            self._note_pod(name, pod, gone=new is None)
        if new is None:
            self._stop_waiting(name, pod.key)
        gang = self.gangs.gang(name)
        if gang is None:
            self._forget_groups()
        if gang is None or gang.spec is None:
            return
        group_id = gang.spec.group_id
        representative = self._representatives.get(group_id)
        if old is None and group_id in self._lacking:
            self._lacking.discard(group_id)
            found = None if representative is None else self._cluster.pod(representative)
            if found is not None:
                self._handle.services.activate([found.uid])
        elif representative == pod.key and (new is None or new.node or new.finished):
            del self._representatives[group_id]
            self._activate(self.gangs.group(gang))

    def _forget_groups(self) -> None:
        """Forget groups that have no gang any more, once in half as many ends as groups are kept.

        So each end costs little, and no more is kept than a few times the groups that there are.
        """
        self._ended += 1
        kept = len(self._representatives) + len(self._bound_together) + len(self._lacking)
        if self._ended <= kept // 2:
            return
        self._ended = 0
        for group in {*self._representatives, *self._bound_together, *self._lacking}:
            if all(self.gangs.gang(one) is None for one in group.split(",")):
                self._representatives.pop(group, None)
                self._bound_together.pop(group, None)
                self._lacking.discard(group)

    def _note_pod(self, gang: str, pod: ClusterPod, *, gone: bool) -> None:
        pods = self._pods.setdefault(gang, {})
        if gone:
            pods.pop(pod.key, None)
        else:
            pods[pod.key] = pod
        if not pods:
            del self._pods[gang]
        if self._statuses is not None:
            self._statuses.note(gang)

    # Services.

    def new_controllers(self) -> Mapping[str, SharedPart]:
        client = self._handle.services.client
        self._statuses = PodGroupStatuses(
            client, POD_GROUPS, self.gangs.pod_group_keys, self._status_patch
        )
        return {"PodGroupController": self._statuses}

    def _status_patch(self, key: str) -> tuple[PodGroup, Mapping[str, object]] | None:
        group = self.gangs.pod_group(key)
        if group is None:
            return None
        pods = in_order(self._pods.get(key, {}).values())
        counts = count_members(pods, self._is_assumed)
        owners = owners_of(pods[0]) if pods else ""
        return group, status_patch(group, counts, owners, self._handle.services.clock.wall())

    def _is_assumed(self, uid: str) -> bool:
        return self._handle.scheduler().is_assumed(uid)

    def pending_advice(self, pod: ClusterPod) -> Iterable[str]:
        """What its gang group lacks, and which members are held back or wait on their nodes."""
        gang = self._gang(pod)
        if gang is None:
            return
        group = self.gangs.group(gang)
        if self._once_satisfied(gang, group):
            return
        yield from what_is_missing(group)
        for one in group.values():
            if one is None:
                continue
            gated = sum(bool(each.scheduling_gates) for each in self.gangs.pods((one,)))
            if gated:
                yield f"gang {one.id}: {gated} of its pods have scheduling gates"
            waiting = len(self._waiting.get(one.id, ()))
            if waiting:
                yield f"gang {one.id}: {waiting} of its pods wait on their nodes for the others"

    def endpoints(self) -> Iterable[Endpoint]:
        yield Endpoint("GET", "/gang/{namespace}/{name}", self._answer_gang)
        yield Endpoint("GET", "/gangs", self._answer_gangs)

    async def _answer_gang(self, request: PluginRequest) -> object:
        key = f"{request.parameters['namespace']}/{request.parameters['name']}"
        gang = self.gangs.gang(key)
        if gang is None:
            raise LookupError(f"cannot find gang {key}")
        return self._summary(gang)

    async def _answer_gangs(self, request: PluginRequest) -> object:
        found = {one: self.gangs.gang(one) for one in self.gangs.known()[:MAX_GANGS]}
        return {one: self._summary(gang) for one, gang in found.items() if gang is not None}

    def _summary(self, gang: Gang) -> Mapping[str, object]:
        """A gang as Koordinator's endpoint has it; sets are objects with empty values."""
        spec, waiting = gang.spec, self._waiting.get(gang.id, {})
        nothing: Mapping[str, object] = {}
        bound = {key: nothing for key, node in gang.members.items() if node and key not in waiting}
        pending = {key: nothing for key, node in gang.members.items() if not node}
        return {
            "name": gang.id,
            "waitTime": int(gang.wait * 1e9),
            "mode": str(Mode.STRICT if spec is None else spec.mode),
            "gangMatchPolicy": str(gang.policy),
            "minRequiredNumber": 0 if spec is None else spec.min_members,
            "totalChildrenNum": 0 if spec is None else spec.total,
            "gangGroup": list(gang.group),
            "children": dict.fromkeys(gang.members, nothing),
            "pendingChildren": pending,
            "waitingForBindChildren": dict.fromkeys(waiting, nothing),
            "boundChildren": bound,
            "onceResourceSatisfied": bool(bound),
            "gangFrom": "GangFromPodGroupCrd"
            if spec is not None and spec.from_pod_group
            else "GangFromPodAnnotation",
            "hasGangInit": spec is not None,
        }

    def _pod_group_changed(self, change: Change[object]) -> None:
        if change.kind is ChangeKind.SYNCED:
            return
        if self._statuses is not None:
            self._statuses.note(change.key)
        if change.new is None:
            self.gangs.remove_pod_group(change.key)
            if self.gangs.gang(change.key) is None:
                self._forget_groups()
            return
        try:
            found = read_pod_group(change.new)
        except KoordError as err:
            log.warning("pod_group.invalid", pod_group=change.key, error=str(err))
            return
        if found.problem:
            log.warning("pod_group.invalid", pod_group=change.key, error=found.problem)
        self.gangs.put_pod_group(found)
        gang = self.gangs.gang(change.key)
        if gang is not None and gang.complete:
            self._activate(self.gangs.group(gang))


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
    return Status(Status.unschedulable().code, (text,), also_rejected_by=also)
