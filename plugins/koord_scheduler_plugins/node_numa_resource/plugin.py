"""NodeNUMAResource: CPUs of their own for pods, and resources of as few NUMA nodes as possible.

Source: Koordinator, pkg/scheduler/plugins/nodenumaresource; docs/differences.md for what differs.
"""

import json
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from koord.api.annotations import MAX_HINT_BYTES, RESOURCE_SPEC, RESOURCE_STATUS, SCHEDULING_HINTS
from koord.api.nodetopology import NUMA_TOPOLOGY_SPEC, BindPolicy
from koord.plugin import KoordError
from koord.plugin.args import takes_args
from koord.plugin.kube import ApiResource
from koord_scheduler.plugin import (
    NODE,
    Action,
    ClusterEvent,
    ClusterPod,
    CycleState,
    EnqueueExtensions,
    EventResource,
    FilterPlugin,
    Handle,
    HintedEvent,
    NodeInfo,
    PodSpec,
    PreBindPlugin,
    PreFilterPlugin,
    QueueingHint,
    ReservePlugin,
    ScorePlugin,
    Status,
    View,
    about_itself,
    claims_pods_with,
    in_time,
    pod_changes,
    reads,
)
from koord_scheduler.plugin.koordinator import (
    APIServiceProvider,
    Endpoint,
    FailedPod,
    NamedReservation,
    NodePart,
    NodePartsProvider,
    NUMATopologyHint,
    NUMATopologyHintProvider,
    NUMATopologyPolicy,
    PendingAdvice,
    PlannedReservePlugin,
    PluginRequest,
    ReservationFilterPlugin,
    ReservationRoom,
)
from koord_scheduler.plugin.vector import (
    Mask,
    Scores,
    VectorFilterPlugin,
    VectorScorePlugin,
    Verdicts,
)
from koord_scheduler_plugins.node_numa_resource.allocation import (
    OUT_OF_SCOPE,
    Need,
    ReservedCpus,
    allocate,
    allocate_reserved,
    amplified_requests,
    designated_status,
    numa_hints,
    pods_by_numa_node,
    reserved_cpus,
)
from koord_scheduler_plugins.node_numa_resource.args import (
    NodeNUMAResourceArgs,
    amount_scorer,
)
from koord_scheduler_plugins.node_numa_resource.columns import (
    REJECTIONS,
    ColumnScorer,
    MachineTable,
    rejections,
    whole_node_status,
)
from koord_scheduler_plugins.node_numa_resource.holdings import (
    NO_ALLOCATION,
    NUMA_HOLDINGS,
    Allocation,
    allocation_of,
    annotation,
    status_document,
)
from koord_scheduler_plugins.node_numa_resource.machine import Machine
from koord_scheduler_plugins.node_numa_resource.pods import (
    NO_NUMA_NODES,
    PodDemand,
    completed_spec,
    demand_of,
    need_on,
    policy_on,
)
from koord_scheduler_plugins.node_numa_resource.serving import (
    NUMAMetrics,
    PinningKubelets,
    advice,
    machine_parts,
    node_document,
)
from koord_scheduler_plugins.node_numa_resource.topology import (
    AMPLIFICATION,
    MachineReport,
    read_machine,
)

TOPOLOGIES = ApiResource("topology.node.k8s.io/v1alpha1", "noderesourcetopologies")
MAX_TRIALS = 64  # nodes with a NUMA policy that are tried for a pod once one of them is good

_EVENTS = "noderesourcetopologies.v1alpha1.topology.node.k8s.io"
_DEMAND = "NodeNUMAResource/demand"
_TRIALS = "NodeNUMAResource/trials"
_DECISION = "NodeNUMAResource/decision"
_MAX_ANNOTATION_BYTES = 32 << 10
_NODES_AT_ONCE = 32  # taken over at the start without a pause
_NOT_TRIED = Status.unschedulable("node(s) were not tried for NUMA nodes, as others are good")
_BEST_EFFORT = NUMATopologyPolicy.BEST_EFFORT


class _Trials:
    """Amounts of NUMA nodes for the pod of a cycle, by node. A what-if starts empty."""

    def __init__(self) -> None:
        self.by_node: dict[str, Allocation] = {}

    def clone(self) -> "_Trials":
        return _Trials()


_PodKind = tuple[PodSpec, object, int | None, tuple[tuple[str, str], ...]]
"""The fields of a pod by which it asks for something: spec, labels, priority, annotations."""


@dataclass(frozen=True, slots=True)
class _Decision:
    """The allocation of a pod, for PreBind."""

    need: Need

    def clone(self) -> "_Decision":
        return self


@takes_args(NodeNUMAResourceArgs)
@claims_pods_with(RESOURCE_SPEC, NUMA_TOPOLOGY_SPEC)
@reads(
    pod_annotations={
        **dict.fromkeys(
            (RESOURCE_STATUS, RESOURCE_SPEC, NUMA_TOPOLOGY_SPEC), _MAX_ANNOTATION_BYTES
        ),
        **dict.fromkeys(SCHEDULING_HINTS, MAX_HINT_BYTES),
    },
    node_annotations={AMPLIFICATION: 4096},
)
class NodeNUMAResource(
    PreFilterPlugin,
    FilterPlugin,
    VectorFilterPlugin,
    ScorePlugin,
    VectorScorePlugin,
    ReservePlugin,
    PreBindPlugin,
    EnqueueExtensions,
    NUMATopologyHintProvider,
    APIServiceProvider,
    PendingAdvice,
    NodePartsProvider,
    PlannedReservePlugin,
    ReservationFilterPlugin,
):
    """Chooses CPUs and NUMA nodes."""

    def __init__(self, args: NodeNUMAResourceArgs, handle: Handle) -> None:
        services = handle.services
        default = args.default_cpu_bind_policy
        self._default = BindPolicy(default) if default else None
        self._scorer = amount_scorer(args.scoring_strategy)
        self._numa_scorer = amount_scorer(args.numa_scoring_strategy)
        self._columns = ColumnScorer(self._scorer)
        self._most = self._numa_scorer.most
        self._handle = handle
        self._last_demand: tuple[_PodKind, PodDemand | Status] | None = None
        self._start = 0  # where the trial of nodes begins
        self.table = MachineTable()
        self.table.expected = self._expected
        self.table.reconsider = handle.reconsider
        self._metrics = services.metrics.own(NUMAMetrics)
        self._metrics.show(self.table)
        self._pinning = PinningKubelets(services.events.emit, services.clock)
        services.cluster.keep_account(NUMA_HOLDINGS)
        services.custom_resources.follow(
            TOPOLOGIES,
            read_machine,
            self._take_report,
            without="no pod gets CPUs of its own, and NUMA policies of kubelets are not known",
        )
        services.changes.subscribe(NODE, self.table.node_changed)
        services.hooks.add("NodeNUMAResource", self._catch_up)
        services.failures.register(after=self._failed)

    def events_to_register(self) -> Iterable[HintedEvent]:
        node = Action.ADD | Action.UPDATE_NODE_ALLOCATABLE | Action.UPDATE_NODE_ANNOTATION
        itself = ClusterEvent(EventResource.UNSCHEDULED_POD, Action.UPDATE)
        return (
            HintedEvent(ClusterEvent(EventResource.POD, Action.DELETE), self._deletion_helps),
            HintedEvent(ClusterEvent(_EVENTS, Action.ALL), _report_helps),
            HintedEvent(ClusterEvent(EventResource.NODE, node | Action.UPDATE_NODE_LABEL)),
            HintedEvent(itself, about_itself),
        )

    def active_at(self, pod: ClusterPod) -> Collection[str] | None:
        """Only at Score for a pod that asks for nothing, while no node asks for more either.

        A node that has changed counts as one that does, until it was looked at.
        """
        demand = self._demand_of(pod)
        if isinstance(demand, Status) or annotation(pod, RESOURCE_STATUS):
            return None
        asks = demand.asks or demand.designated is not None
        return ("score",) if self.table.is_plain and not asks else None

    # PreFilter and Filter.

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        demand = self._demand_of(pod)
        if isinstance(demand, Status):
            return demand
        state.write(_DEMAND, demand)
        if not demand.requests:
            return Status.skip()
        self.table.settle(nodes)
        is_plain = not demand.asks and demand.designated is None and not self.table.has_special
        return Status.skip() if is_plain else None

    def _demand_of(self, pod: ClusterPod) -> PodDemand | Status:
        """Return the demand of a pod; equal pods that follow each other share one lookup."""
        kind = pod.spec, pod.label_set, pod.priority, pod.annotations
        last = self._last_demand
        if last is None or not (
            last[0][0] is kind[0] and last[0][1] is kind[1] and last[0][2:] == kind[2:]
        ):
            last = self._last_demand = kind, demand_of(pod, self._default)
        return last[1]

    def _demand_in(self, state: CycleState, pod: ClusterPod) -> PodDemand:
        """Return the demand of the pod of a cycle; of one that asks for nothing none is kept."""
        found = state.find(_DEMAND, PodDemand) or self._demand_of(pod)
        assert isinstance(found, PodDemand)  # noqa: S101 - PreFilter has rejected the others
        return found

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        self.table.settle(nodes)
        return self.table.has_special

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        """None where nodes have to be tried: what other plugins say of NUMA nodes counts there."""
        self.table.follow(nodes)
        if self._tries(state.read(_DEMAND, PodDemand)):
            return None
        return self.table.version

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        self.table.follow(node.view)
        demand = state.read(_DEMAND, PodDemand)
        machine = self.table.machine(node.view, node.row)
        policy = policy_on(demand, machine)
        if isinstance(policy, Status):
            return policy
        found = whole_node_status(demand, policy, machine, node, most=self._most)
        if found is None and demand.designated is not None:
            need = need_on(demand, machine)
            if isinstance(need, Status):
                return need
            return designated_status(machine, need, demand.designated)
        if found is not None or policy is None or policy is _BEST_EFFORT:
            return found
        return self._admit(state, pod, node, machine, demand, policy)

    def victim_groups(
        self, state: CycleState, pod: ClusterPod, node: NodeInfo
    ) -> Iterable[Collection[str]]:
        """Those that have something of one NUMA node, where the pod needs CPUs or NUMA nodes."""
        demand = state.find(_DEMAND, PodDemand)
        if demand is None or not demand.requests or not (demand.asks or self._tries(demand)):
            return ()
        self.table.follow(node.view)
        machine = self.table.machine(node.view, node.row)
        return pods_by_numa_node(machine, node.pods)

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask | Verdicts:
        return self.filter_among(state, pod, nodes, np.ones(len(nodes), np.bool_))

    def filter_among(
        self, state: CycleState, pod: ClusterPod, nodes: View, among: Mask
    ) -> Mask | Verdicts:
        """Reject by columns first; then the nodes that are left are tried, if they have to be."""
        self.table.follow(nodes)
        demand = state.read(_DEMAND, PodDemand)
        numbers, tried = rejections(demand, self.table, nodes)
        statuses = list(REJECTIONS)
        known = {status: number for number, status in enumerate(statuses, 1)}
        altered = np.zeros(len(nodes), np.bool_)
        altered[list(nodes.altered)] = True
        good, trials = 0, 0
        rows = np.flatnonzero((tried | altered) & among & ((numbers == 0) | altered))
        rows = np.roll(rows, -(self._start % max(len(rows), 1)))
        for row in in_time(rows.tolist()):
            if trials >= MAX_TRIALS and good and not altered[row]:
                status: Status | None = _NOT_TRIED
            else:
                status = self.filter(state, pod, NodeInfo(nodes, row))
                trials += 1
                good += status is None
            if status is None:
                numbers[row] = 0
                continue
            if not status.rejected:
                raise KoordError(status.message)
            numbers[row] = known.setdefault(status, len(known) + 1)
        return Verdicts(numbers, tuple(known))

    def _tries(self, demand: PodDemand) -> bool:
        """Whether nodes may have to be tried for a pod."""
        return demand.policy is not None or demand.designated is not None or self.table.has_policy

    def _admit(
        self,
        state: CycleState,
        pod: ClusterPod,
        node: NodeInfo,
        machine: Machine,
        demand: PodDemand,
        policy: NUMATopologyPolicy,
    ) -> Status | None:
        """Choose NUMA nodes; None: there are some."""
        if not machine.zones:  # Filter has rejected such a node, but it may have changed
            return NO_NUMA_NODES
        numa, zones = self._handle.numa(), tuple(machine.zones)
        prefers = demand.prefers_own_numa_nodes and policy is not _BEST_EFFORT
        uses = machine.uses(amounts=demand.requires_own_numa_nodes or prefers)
        exclusive = demand.wants_own_numa_nodes or prefers
        status = numa.admit(state, pod, node, zones, policy, exclusive=exclusive, uses=uses)
        if prefers and not status.ok:  # others have to do
            status = numa.admit(state, pod, node, zones, policy)
        self._metrics.admissions.labels(policy, "admitted" if status.ok else "refused").inc()
        return None if status.ok else status

    # NUMA hints.

    def pod_topology_hints(
        self, state: CycleState, pod: ClusterPod, node: NodeInfo
    ) -> Mapping[str, list[NUMATopologyHint]] | Status:
        found = self._need(state, node)
        if isinstance(found, Status):
            return found
        machine, need, policy = found
        return numa_hints(machine, need, policy or _BEST_EFFORT, self._numa_scorer, most=self._most)

    def allocate(
        self, state: CycleState, affinity: NUMATopologyHint, pod: ClusterPod, node: NodeInfo
    ) -> Status | None:
        found = self._need(state, node)
        if isinstance(found, Status):
            return found
        machine, need, _ = found
        chosen = allocate(machine, need, affinity.nodes, most=self._most, trial=True)
        if isinstance(chosen, Status):
            return chosen
        self._trials(state).by_node[node.name] = chosen
        return None

    def _need(
        self, state: CycleState, node: NodeInfo
    ) -> tuple[Machine, Need, NUMATopologyPolicy | None] | Status:
        self.table.follow(node.view)
        demand = state.read(_DEMAND, PodDemand)
        machine = self.table.machine(node.view, node.row)
        need, policy = need_on(demand, machine), policy_on(demand, machine)
        if isinstance(need, Status):
            return need
        return policy if isinstance(policy, Status) else (machine, need, policy)

    def _trials(self, state: CycleState) -> _Trials:
        found = state.find(_TRIALS, _Trials)
        if found is None:
            found = _Trials()
            state.write(_TRIALS, found)
        return found

    # Score.

    def score_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        self.table.follow(nodes)
        demand = self._demand_in(state, pod)
        return None if nodes.altered or self._tries(demand) else self.table.version

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        self.table.follow(node.view)
        demand = self._demand_in(state, pod)
        if not demand.requests:
            return 0
        if not demand.asks and not self.table.has_special and not node.view.altered:
            return self._columns.of_plain_node(pod, node)
        machine = self.table.machine(node.view, node.row)
        policy, need = policy_on(demand, machine), need_on(demand, machine)
        if isinstance(need, Status) or isinstance(policy, Status):
            return 0
        if policy is None or policy is _BEST_EFFORT:
            return self._columns.of_node(pod, machine, need, node)
        trial = self._trials(state).by_node.get(node.name)
        if trial is None:
            return 0
        return self._score_of(machine, need, trial, pod, node)

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        self.table.follow(nodes)
        demand = self._demand_in(state, pod)
        if not demand.requests:
            return np.zeros(len(nodes), np.int64)
        scores, by_trial = self._columns.of_all(pod, demand, self.table, nodes)
        trials = self._trials(state).by_node if self._tries(demand) else {}
        if by_trial is not None:
            scores[by_trial] = 0
        rows = [row for name in trials if (row := nodes.row(name)) is not None]
        for row in {*rows, *nodes.altered}:
            scores[row] = self.score(state, pod, NodeInfo(nodes, row))
        return scores

    def _score_of(
        self, machine: Machine, need: Need, found: Allocation, pod: ClusterPod, node: NodeInfo
    ) -> int:
        """The score of the NUMA nodes that the pod would be on; without any, of the node."""
        chosen = [one for one, _ in found.numa]
        if not chosen:
            return self._columns.of_node(pod, machine, need, node)
        capacity: dict[str, int] = {}
        used: dict[str, int] = {}
        for one in chosen:
            for name, amount in machine.zones.get(one, {}).items():
                capacity[name] = capacity.get(name, 0) + amount
            for name, amount in machine.used.get(one, {}).items():
                used[name] = used.get(name, 0) + amount
        return self._numa_scorer.score(capacity, used, amplified_requests(machine, need))

    # Reserve.

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        """Choose CPUs and amounts of NUMA nodes; the account has them with the pod from then on.

        An annotation that the pod came with is not the scheduler's: it is replaced, or removed.
        """
        demand, had = state.read(_DEMAND, PodDemand), annotation(pod, RESOURCE_STATUS)
        if not had and not demand.asks and not self.table.has_special:
            return None  # a view of the cluster with the pod costs more than all else here
        nodes = self._handle.services.cluster.view()
        row = nodes.row(node_name)
        if row is None:
            return Status.failed(f'getting nil node "{node_name}" from Snapshot')
        changes = pod_changes(state).annotations
        found = self._chosen(state, pod, demand, NodeInfo(nodes, row), is_known=bool(had))
        if isinstance(found, Status):
            self._metrics.allocations.labels("refused").inc()
            return found
        if found is None:
            if had:
                changes[RESOURCE_STATUS] = None
            return None
        _, need, allocation = found
        document = status_document(allocation)
        changes[RESOURCE_STATUS] = json.dumps(document, separators=(",", ":"))
        state.write(_DECISION, _Decision(need))
        self._metrics.allocations.labels("chosen").inc()
        self._start += MAX_TRIALS
        return None

    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        """Nothing: a pod that is forgotten holds nothing in the next view."""

    def planned_annotations(self, pod: ClusterPod, node: NodeInfo) -> Mapping[str, str]:
        """Return the CPUs that a member of a group would get, whatever its NUMA nodes."""
        self.table.follow(node.view)
        found = self._expected(pod, self.table.machine(node.view, node.row))
        if not found and not annotation(pod, RESOURCE_STATUS):
            return {}
        return {RESOURCE_STATUS: json.dumps(status_document(found), separators=(",", ":"))}

    def _expected(self, pod: ClusterPod, machine: Machine) -> Allocation:
        """Return the allocation that a pod would get of a node."""
        demand = demand_of(pod, self._default)
        if isinstance(demand, Status) or not demand.requests:
            return NO_ALLOCATION
        need = need_on(demand, machine)
        if isinstance(need, Status) or not need.cpus:
            return NO_ALLOCATION
        found = allocate(machine, need, None, most=self._most)
        return NO_ALLOCATION if isinstance(found, Status) else found

    def pre_bind_pre_flight(
        self, state: CycleState, pod: ClusterPod, node_name: str
    ) -> Status | None:
        return None if state.find(_DECISION, _Decision) is not None else Status.skip()

    async def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        """Say in the pod's annotation which policy its CPUs have."""
        need = state.read(_DECISION, _Decision).need
        if need.cpus:
            self._pinning.bind_cpus(self.table.report_of(node_name))
        spec = completed_spec(annotation(pod, RESOURCE_SPEC), need)
        if spec is not None:
            pod_changes(state).annotations[RESOURCE_SPEC] = spec
        return None

    def _chosen(
        self,
        state: CycleState,
        pod: ClusterPod,
        demand: PodDemand,
        node: NodeInfo,
        *,
        is_known: bool,
    ) -> tuple[Machine, Need, Allocation] | Status | None:
        """Return the allocation of the pod on its node; None: it needs nothing."""
        self.table.follow(node.view)
        machine = self.table.machine(node.view, node.row)
        if is_known:
            machine = self.table.without(node.view, node.row, pod)
        policy, need = policy_on(demand, machine), need_on(demand, machine)
        if isinstance(policy, Status):
            return policy
        if isinstance(need, Status):
            return need
        if not demand.requests or (not need.cpus and policy is None):
            return None
        if demand.designated is not None:
            refused = designated_status(machine, need, demand.designated)
            return (machine, need, demand.designated) if refused is None else refused
        chosen: frozenset[int] | None = None
        if policy is not None:
            if policy is _BEST_EFFORT or self._trials(state).by_node.get(node.name) is None:
                refused = self._admit(state, pod, node, machine, demand, policy)
                if refused is not None:
                    return refused
            affinity = self._handle.numa().affinity(state, node.name)
            chosen = None if affinity is None else affinity.nodes
        reserved = self._reserved(pod, node, machine)
        if reserved is None:
            found = allocate(machine, need, chosen, most=self._most)
        else:
            found = allocate_reserved(machine, need, chosen, reserved, most=self._most)
            if isinstance(found, Status):
                return OUT_OF_SCOPE
        return found if isinstance(found, Status) else (machine, need, found)

    # Reservations.

    def _reserved(self, pod: ClusterPod, node: NodeInfo, machine: Machine) -> ReservedCpus | None:
        """Return the part of the reservation that the pod gets on its node; None: there is none."""
        nominator = self._handle.reservations().nominator
        room = None if nominator is None else nominator.nominated_reservation(pod, node.name)
        if not isinstance(room, ReservationRoom):
            return None
        found, now = reserved_cpus(room), reserved_cpus(room.on(node))
        if found is None or now is None:
            return None
        # On its node the pod may hold what an attempt before has written: that is not in now.
        return replace(found, cpus=found.cpus & (now.cpus | machine.free))

    def filters_reservations(self, state: CycleState, pod: ClusterPod) -> bool:
        demand = state.find(_DEMAND, PodDemand)
        if demand is None or not demand.requests:
            return False
        return demand.asks or self._tries(demand)

    def filter_reservation(
        self, state: CycleState, pod: ClusterPod, reservation: NamedReservation, node_name: str
    ) -> Status | None:
        """Whether a pod gets its CPUs with a reservation, or beside all of a node."""
        demand = state.find(_DEMAND, PodDemand)
        if demand is None or not isinstance(reservation, ReservationRoom):
            return None
        node = reservation.node
        machine = self.table.machine_in(node, reservation.account)
        policy, need = policy_on(demand, machine), need_on(demand, machine)
        if isinstance(policy, Status):
            return policy
        if isinstance(need, Status):
            return need
        affinity = self._handle.numa().affinity(state, node_name)
        nodes = None if policy is None or affinity is None else affinity.nodes
        if not need.cpus and nodes is None:
            return None
        reserved = reserved_cpus(reservation)
        if reserved is None:
            found = allocate(machine, need, nodes, most=self._most)
        else:
            found = allocate_reserved(machine, need, nodes, reserved, most=self._most)
        return found if isinstance(found, Status) else None

    # Beside the cycles.

    def endpoints(self) -> Iterable[Endpoint]:
        return (Endpoint("GET", "/nodes/{node}", self._node),)

    def node_parts(self, node: NodeInfo) -> Iterable[NodePart]:
        self.table.follow(node.view)
        return machine_parts(self.table.machine(node.view, node.row), node.view.pods(node.row))

    def pending_advice(self, pod: ClusterPod) -> Iterable[str]:
        demand = demand_of(pod, self._default)
        if isinstance(demand, Status):
            return ()
        self.table.follow(self._handle.services.cluster.view())
        return advice(demand, self.table)

    async def _node(self, request: PluginRequest) -> object:
        name, nodes = request.parameters["node"], self._handle.services.cluster.view()
        row = nodes.row(name)
        if row is None:
            raise LookupError(f'nodeinfo not found for node name "{name}"')
        self.table.follow(nodes)
        machine = self.table.machine(nodes, row)
        if not machine.layout.valid:
            raise ValueError("invalid topology, please check the NodeResourceTopology object")
        if machine.rules.ratios is None:
            raise ValueError(f"failed to amplify NUMANode Resources, err: {AMPLIFICATION}")
        return node_document(machine, nodes.pods(row))

    def _failed(self, failed: FailedPod) -> bool:
        """Try other nodes first the next time."""
        self._start += MAX_TRIALS
        return False

    async def _catch_up(self) -> None:
        """Take over all nodes, some at a time so that all else goes on."""
        services = self._handle.services
        while not self.table.follow(services.cluster.view(), _NODES_AT_ONCE):
            await services.clock.sleep(0)

    def _deletion_helps(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        """It had CPUs or amounts of NUMA nodes, or CPU that an amplified node counts."""
        if not isinstance(old, ClusterPod) or not old.node:
            return QueueingHint.SKIP
        helps = self.table.is_amplified or bool(allocation_of(old))
        return QueueingHint.QUEUE if helps else QueueingHint.SKIP

    def _take_report(self, old: MachineReport | None, new: MachineReport | None) -> None:
        self.table.take_report(old, new)
        self._pinning.take_report(old, new)


def _report_helps(pod: ClusterPod, old: object, new: object) -> QueueingHint:
    """It says something else than before."""
    return QueueingHint.SKIP if new is None or old == new else QueueingHint.QUEUE
