"""DeviceShare: gives pods GPUs, RDMA interfaces and FPGAs of nodes, or shares of them.

Source: Koordinator, pkg/scheduler/plugins/deviceshare; docs/differences.md for what differs.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from koord.api.annotations import (
    DEVICE_ALLOCATED,
    MAX_HINT_BYTES,
    SCHEDULING_HINTS,
    AllocatedDevice,
)
from koord.api.devices.allocation import (
    AllocateOptions,
    Allocation,
    DevicesUnavailable,
    allocate,
    allocate_with_way,
    has_room,
    instance_request,
    with_memory,
)
from koord.api.devices.layout import (
    ISOLATION_PROVIDER,
    NODE_LABELS,
    NODE_LOCKS,
    DeviceTable,
    NodeDevices,
    read_devices,
)
from koord.api.devices.requests import (
    HINT_ANNOTATIONS,
    RESOURCES,
    InvalidRequest,
    PodDevices,
    pod_devices,
)
from koord.plugin import InvalidObject, KoordError
from koord.plugin.args import takes_args
from koord.plugin.kube import ApiResource, OneObject
from koord_scheduler.plugin import (
    Action,
    ClusterEvent,
    ClusterNode,
    ClusterPod,
    CycleState,
    EnqueueExtensions,
    EventResource,
    FilterPlugin,
    Handle,
    HintedEvent,
    NodeInfo,
    PostBindPlugin,
    PreBindPlugin,
    PreFilterPlugin,
    PreScorePlugin,
    QueueingHint,
    ReservePlugin,
    ScorePlugin,
    Status,
    View,
    about_itself,
    claims_pods_with,
    pod_changes,
    reads,
)
from koord_scheduler.plugin.koordinator import (
    APIServiceProvider,
    Endpoint,
    NamedReservation,
    NodePart,
    NodePartsProvider,
    NUMATopologyHint,
    NUMATopologyHintProvider,
    PendingAdvice,
    PlannedReservePlugin,
    ReservationFilterPlugin,
    ReservationRoom,
)
from koord_scheduler.plugin.vector import (
    Mask,
    Scores,
    VectorFilterPlugin,
    VectorNormalizeScorePlugin,
    VectorScorePlugin,
    Verdicts,
    default_normalize,
)
from koord_scheduler_plugins.device_share.adaption import GATE, VENDORS, NodeLocks, adaption
from koord_scheduler_plugins.device_share.allocated import (
    DEVICES,
    allocated_devices,
    allocated_text,
    comes_with_devices,
    requested_types,
    used_amounts,
)
from koord_scheduler_plugins.device_share.args import (
    DeviceShareArgs,
    Templates,
    TemplatesConfig,
    node_score,
    read_templates,
    templates_for,
)
from koord_scheduler_plugins.device_share.containers import by_container, check_containers
from koord_scheduler_plugins.device_share.hints import device_hints
from koord_scheduler_plugins.device_share.reserved import (
    ReservedDeviceScores,
    allocate_reserved,
    designated_table,
    pods_by_devices,
    reserved_devices,
)
from koord_scheduler_plugins.device_share.serving import (
    DeviceMetrics,
    NodeSummaries,
    device_parts,
    fragmentation,
    without_isolation,
)
from koord_scheduler_plugins.device_share.tables import DeviceTables, ResponseCache, each_once

DEVICE_OBJECTS = ApiResource("scheduling.koordinator.sh/v1alpha1", "devices")
_EVENTS = "devices.v1alpha1.scheduling.koordinator.sh"
_CONFIG_MAPS = "configmaps.v1"
_FOLLOW_SECONDS = 5.0  # between two looks at all nodes for metrics
_KEY, _RESERVED = "DeviceShare/request", "DeviceShare/reserved"
_CLAIMED = tuple(
    name for name in RESOURCES if name.startswith(("koordinator.sh/", "kubernetes.io/"))
)


@dataclass(frozen=True)
class DeviceRequest:
    """The request of the pod of a cycle, in the state. It never changes."""

    wanted: PodDevices
    options: AllocateOptions
    key: Hashable  # equal for pods that request the same
    designated: Mapping[str, Sequence[AllocatedDevice]] | None = None
    """It gets of these or none; None: the plugin chooses."""

    @property
    def is_isolated(self) -> bool:
        """Whether its GPUs are whole ones, or something keeps it to its share."""
        gpu = self.wanted.gpu
        shared = gpu is not None and gpu.shared
        return not shared or bool(self.wanted.isolation) or self.options.needs_template

    def on(self, table: DeviceTable) -> DeviceTable:
        """The devices of a node that it may have."""
        if self.designated is None:
            return table
        return designated_table(table, self.wanted, self.designated)

    def clone(self) -> "DeviceRequest":
        return self


@dataclass(frozen=True)
class ReservedDevices:
    """The devices that Reserve has chosen, in the state."""

    given: Allocation
    devices: NodeDevices

    def clone(self) -> "ReservedDevices":
        return self


@takes_args(DeviceShareArgs)
@reads(
    pod_annotations={
        DEVICE_ALLOCATED: 64 << 10,
        **dict.fromkeys(HINT_ANNOTATIONS, 32 << 10),
        **dict.fromkeys(SCHEDULING_HINTS, MAX_HINT_BYTES),
    },
    node_annotations=dict.fromkeys(NODE_LOCKS, 1024),
    containers=True,
)
@claims_pods_with(*_CLAIMED, *HINT_ANNOTATIONS)
class DeviceShare(
    PreFilterPlugin,
    FilterPlugin,
    VectorFilterPlugin,
    PreScorePlugin,
    ScorePlugin,
    VectorScorePlugin,
    VectorNormalizeScorePlugin,
    ReservePlugin,
    PreBindPlugin,
    PostBindPlugin,
    EnqueueExtensions,
    NUMATopologyHintProvider,
    PlannedReservePlugin,
    PendingAdvice,
    NodePartsProvider,
    APIServiceProvider,
    ReservationFilterPlugin,
    ReservedDeviceScores,
):
    """Places pods where the devices are that they request, and says which they get."""

    scales_to_highest = True

    def __init__(self, args: DeviceShareArgs, handle: Handle) -> None:
        services = handle.services
        self._args = args
        self._handle = handle
        self._cluster = services.cluster
        self._scorer = args.scorer
        self._unsupported = {(one.vendor, one.model) for one in args.gpu_share_unsupported_models}
        self._cluster.keep_account(DEVICES)
        self.metrics = services.metrics.own(DeviceMetrics)
        self.tables = DeviceTables()
        self.tables.expected = self._expected
        followed = services.custom_resources.follow(
            DEVICE_OBJECTS,
            read_devices,
            self._device_changed,
            without="pods get no devices of nodes",
        )
        self.tables.unread = followed.rejected
        self._templates = args.templates
        self._templates_version = 0
        self._follow_templates(args.gpu_shared_resource_templates_config)
        self._adapts = services.gates(GATE)
        self._clock = services.clock
        self._locks = NodeLocks(services, self.tables)
        self._summaries = NodeSummaries(self._cluster.view, self.tables)
        self._verdicts: ResponseCache[Status | None] = ResponseCache(self.tables)
        self._scores: ResponseCache[int] = ResponseCache(self.tables)
        self._followed_at = 0.0  # when all nodes were looked at last, in monotonic seconds
        self.metrics.show(self.tables.counted)

    def _follow_templates(self, config: TemplatesConfig) -> None:
        namespace, name = config.config_map_namespace, config.config_map_name
        self._handle.services.custom_resources.follow(
            OneObject("v1", "configmaps", namespace, name),
            lambda found: read_templates(found, namespace, name),
            self._templates_changed,
            without="shares of NPUs have the templates of the arguments alone",
            optional=True,
        )

    def _templates_changed(self, old: Templates | None, new: Templates | None) -> None:
        self._templates = {**(new or {}), **self._args.templates}
        self._templates_version += 1

    def events_to_register(self) -> Iterable[HintedEvent]:
        gone = ClusterEvent(EventResource.ASSIGNED_POD, Action.DELETE)
        device = ClusterEvent(_EVENTS, Action.ALL)
        labels = Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_ANNOTATION
        node = ClusterEvent(EventResource.NODE, Action.ADD | labels)
        changed = ClusterEvent(EventResource.UNSCHEDULED_POD, Action.UPDATE)
        return (
            HintedEvent(gone, self._pod_helps),
            HintedEvent(device, self._device_helps),
            HintedEvent(ClusterEvent(_CONFIG_MAPS, Action.ALL), self._templates_help),
            HintedEvent(node, self._node_helps),
            HintedEvent(changed, about_itself),
        )

    def active_at(self, pod: ClusterPod) -> Collection[str] | None:
        """Only at PreFilter, where metrics are kept up, for a pod that requests no devices."""
        try:
            return None if self._request(pod) is not None else ("preFilter",)
        except InvalidRequest:
            return None

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        try:
            found = self._request(pod)
        except InvalidRequest as err:
            return Status.unresolvable(str(err))
        if found is None:
            now = self._clock.monotonic()
            if now - self._followed_at > _FOLLOW_SECONDS:  # for metrics
                self._followed_at = now
                self.tables.codes(nodes)
            return Status.skip()
        state.write(_KEY, found)
        return None

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return self._templates_version

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        asked = state.read(_KEY, DeviceRequest)
        table = self.tables.table(node.view, node.row)
        if table is None:
            return self._no_device_object()
        return self._verdict(asked, table) or self._locked(asked, pod, node.name)

    def victim_groups(
        self, state: CycleState, pod: ClusterPod, node: NodeInfo
    ) -> Iterable[Collection[str]]:
        """Those that have GPUs of one partition, switch or NUMA node, or the same device."""
        asked = state.find(_KEY, DeviceRequest)
        table = None if asked is None else self.tables.table(node.view, node.row)
        if asked is None or table is None:
            return ()
        return pods_by_devices(table, asked.wanted, node.pods)

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Verdicts:
        """Try to give the pod devices of each node; of nodes with equal ones one is tried."""
        asked = state.read(_KEY, DeviceRequest)
        codes, tables = self.tables.codes(nodes)
        rejections: dict[Status, int] = {}

        def number(status: Status | None) -> int:
            return 0 if status is None else rejections.setdefault(status, len(rejections) + 1)

        numbers = each_once(codes, tables, lambda table: number(self._verdict(asked, table)))
        without = number(self._no_device_object())
        if without:
            numbers = np.where(codes == 0, without, numbers)
        for name in self.tables.locks:
            row, found = nodes.row(name), self._locked(asked, pod, name)
            if row is not None and found is not None and not numbers[row] and codes[row]:
                numbers[row] = number(found)
        return Verdicts(numbers.astype(np.int32), tuple(rejections))

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        """None while nodes are locked: a lock ends with its time, or its pod."""
        return None if self._adapts and self.tables.locks else self.tables.version

    def _locked(self, asked: DeviceRequest, pod: ClusterPod, node: str) -> Status | None:
        """Why a pod is not put on a node that is locked for the devices of another one."""
        if not self._adapts or not asked.wanted.gpu:
            return None
        return self._locks.status(pod, node)

    def pre_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Mask
    ) -> Status | None:
        return Status.skip() if state.find(_KEY, DeviceRequest) is None else None

    def pre_score_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def scores_pod(self, state: CycleState, pod: ClusterPod) -> bool:
        """Koordinator's configuration enables Score without PreScore: most pods want no device."""
        return state.find(_KEY, DeviceRequest) is not None

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        asked = state.read(_KEY, DeviceRequest)
        table = self.tables.table(node.view, node.row)
        return 0 if table is None else self._score(asked, table)

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        asked = state.read(_KEY, DeviceRequest)
        codes, tables = self.tables.codes(nodes)
        return each_once(codes, tables, lambda table: self._score(asked, table))

    def score_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return self.tables.version

    def normalize_scores(self, state: CycleState, pod: ClusterPod, scores: Scores) -> Scores:
        return default_normalize(scores)

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        """Choose the devices, and write them on the pod: from there the account has them."""
        asked = state.find(_KEY, DeviceRequest)
        if asked is None:
            return None
        nodes = self._cluster.view()
        row = nodes.row(node_name)
        written = dict(pod.annotations).get(DEVICE_ALLOCATED)
        changes = pod_changes(state).annotations
        table, room = None, self._room(pod, node_name)
        if row is not None and room is not None:
            now = room.on(NodeInfo(nodes, row))
            account = now.without().with_pods([(pod, node_name)], ())
            table = self.tables.table_in(nodes, row, account)
        elif row is not None and written is None:
            table = self.tables.table(nodes, row)
        elif row is not None:  # its author has written something, which means nothing
            table = self.tables.table_without(nodes, row, pod)
        if table is None:
            if written is not None:
                changes[DEVICE_ALLOCATED] = None
            return self._no_device_object()
        options = replace(
            asked.options, scorer=self._scorer, numa_nodes=self._near(state, node_name)
        )
        try:
            if room is None:
                found, way = allocate_with_way(asked.on(table), asked.wanted, options)
            else:
                share = reserved_devices(room)
                found, way = allocate_reserved(table, asked.wanted, options, share)
            found = by_container(with_memory(found, table, node_name), asked.wanted, table)
        except DevicesUnavailable as err:
            self.metrics.allocated(asked.wanted.requests, "none", "failed")
            return _rejection(err)
        devices = self.tables.devices.get(node_name)
        changes[DEVICE_ALLOCATED] = allocated_text(found, {} if devices is None else devices.ids)
        if self._adapts and devices is not None:
            state.write(_RESERVED, ReservedDevices(found, devices))
        self.metrics.allocated(found, way, "given")
        return None

    def _room(self, pod: ClusterPod, node_name: str) -> ReservationRoom | None:
        """The reservation that a pod gets on its node; None: it gets none."""
        nominator = self._handle.reservations().nominator
        found = None if nominator is None else nominator.nominated_reservation(pod, node_name)
        return found if isinstance(found, ReservationRoom) else None

    def filters_reservations(self, state: CycleState, pod: ClusterPod) -> bool:
        return state.find(_KEY, DeviceRequest) is not None

    def filter_reservation(
        self, state: CycleState, pod: ClusterPod, reservation: NamedReservation, node_name: str
    ) -> Status | None:
        """Whether a pod gets its devices with a reservation, or beside all of a node."""
        asked = state.find(_KEY, DeviceRequest)
        if asked is None or not isinstance(reservation, ReservationRoom):
            return None
        node = reservation.node
        table = self.tables.table_in(node.view, node.row, reservation.without())
        if table is None:
            return self._no_device_object()
        options = replace(asked.options, numa_nodes=self._near(state, node_name))
        try:
            allocate_reserved(table, asked.wanted, options, reserved_devices(reservation))
        except DevicesUnavailable as err:
            return _rejection(err)
        return None

    def wanted_devices(self, state: CycleState) -> PodDevices | None:
        asked = state.find(_KEY, DeviceRequest)
        return None if asked is None else asked.wanted

    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        """Do nothing: the account does not have the pod any more once it is forgotten."""

    def planned_annotations(self, pod: ClusterPod, node: NodeInfo) -> Mapping[str, str]:
        """Return the devices that a member of a group would get, whatever its NUMA nodes."""
        table = self.tables.table(node.view, node.row)
        found = None if table is None else self._planned(pod, table)
        return {} if found is None else {DEVICE_ALLOCATED: allocated_text(found, {})}

    def _planned(self, pod: ClusterPod, table: DeviceTable) -> Allocation | None:
        """Return the devices that a pod would get of a node; None: none are requested or there."""
        try:
            asked = self._request(pod)
            if asked is None:
                return None
            options = replace(asked.options, scorer=self._scorer)
            return with_memory(allocate(table, asked.wanted, options), table, "")
        except (InvalidRequest, DevicesUnavailable):
            return None

    def _expected(self, pod: ClusterPod, table: DeviceTable) -> Sequence[tuple[str, int]]:
        """Return the devices of a pod that a what-if has put on a node."""
        if any(key == DEVICE_ALLOCATED for key, _ in pod.annotations):
            return ()
        found = self._planned(pod, table)
        return () if found is None else tuple(used_amounts(found))

    # Device plugins of vendors.

    def pre_bind_pre_flight(
        self, state: CycleState, pod: ClusterPod, node_name: str
    ) -> Status | None:
        return None if state.find(_RESERVED, ReservedDevices) is not None else Status.skip()

    async def pre_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        """Write what the vendor's device plugin reads, and lock the node for it."""
        reserved = state.find(_RESERVED, ReservedDevices)
        if reserved is None:
            return None
        try:
            now = int(self._clock.wall() * 10**9)
            found = adaption(reserved.given, reserved.devices, pod.labels, now)
            if found.lock:
                await self._locks.take(found.lock, pod, node_name)
        except KoordError as err:
            return Status.failed(err)
        changes = pod_changes(state)
        changes.labels.update(found.labels)
        changes.annotations.update(found.annotations)
        return None

    async def post_bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        """Report a share of a card beside others that nothing keeps to what it requests."""
        asked, nodes = state.find(_KEY, DeviceRequest), self._cluster.view()
        row = None if asked is None or asked.is_isolated else nodes.row(node_name)
        reserved = state.find(_RESERVED, ReservedDevices)
        if row is not None and (reserved is None or reserved.devices.vendor not in VENDORS):
            for event in without_isolation(pod, node_name, nodes.pods(row)):
                self._handle.services.events.emit(event)

    # NUMA admission.

    def pod_topology_hints(
        self, state: CycleState, pod: ClusterPod, node: NodeInfo
    ) -> Mapping[str, list[NUMATopologyHint]] | Status | None:
        asked, table = self._aligned(state, node)
        if asked is None or table is None:
            return None
        try:
            return device_hints(table, asked.wanted, asked.options)
        except DevicesUnavailable as err:
            return _rejection(err)

    def allocate(
        self, state: CycleState, affinity: NUMATopologyHint, pod: ClusterPod, node: NodeInfo
    ) -> Status | None:
        asked, table = self._aligned(state, node)
        if asked is None or table is None:
            return None
        near = replace(asked.options, numa_nodes=_with_devices(affinity, table))
        try:
            allocate(table, asked.wanted, near)
        except DevicesUnavailable as err:
            return _rejection(err)
        return None

    def _aligned(
        self, state: CycleState, node: NodeInfo
    ) -> tuple[DeviceRequest | None, DeviceTable | None]:
        """The request and the devices, where devices are aligned with NUMA nodes at all."""
        if self._args.disable_device_numa_topology_alignment:
            return None, None
        asked, table = state.find(_KEY, DeviceRequest), self.tables.table(node.view, node.row)
        return asked, table if asked is None or table is None else asked.on(table)

    def _near(self, state: CycleState, node_name: str) -> frozenset[int] | None:
        """The NUMA nodes that the pod gets on a node; None: any."""
        if self._args.disable_device_numa_topology_alignment:
            return None
        affinity = self._handle.numa().affinity(state, node_name)
        if affinity is None:
            return None
        nodes = self._cluster.view()
        row = nodes.row(node_name)
        table = None if row is None else self.tables.table(nodes, row)
        return None if table is None else _with_devices(affinity, table)

    # For people.

    def pending_advice(self, pod: ClusterPod) -> Iterable[str]:
        try:
            asked = self._request(pod)
        except InvalidRequest:
            return ()
        if asked is None:
            return ()
        codes, tables = self.tables.codes(self._cluster.view())
        counts = np.bincount(codes, minlength=len(tables)).tolist()
        every = [
            (table, count)
            for table, count in zip(tables, counts, strict=True)
            if table is not None and count
        ]
        return fragmentation(asked.wanted, every)

    def node_parts(self, node: NodeInfo) -> Iterable[NodePart]:
        table = self.tables.table(node.view, node.row)
        return () if table is None else device_parts(table, node.view.pods(node.row))

    def endpoints(self) -> Iterable[Endpoint]:
        return self._summaries.endpoints()

    # What a node says.

    def _request(self, pod: ClusterPod) -> DeviceRequest | None:
        """Return the requests of a pod; None: no devices. Raises InvalidRequest."""
        annotations = dict(pod.annotations)
        isolation = pod.labels.get(ISOLATION_PROVIDER, "")
        wanted = pod_devices(pod.spec.requests, annotations, isolation, pod.spec.containers)
        if wanted is None:
            return None
        check_containers(wanted)
        options, gpu = AllocateOptions(), wanted.gpu
        matched = self._args.gpu_shared_resource_templates_config.matched_resources
        if gpu is not None and gpu.shared and any(name in gpu.each for name in matched):
            templates = templates_for(self._templates, gpu.each)
            if not templates:
                raise InvalidRequest("no matched GPU shared resource template")
            options = AllocateOptions(templates=templates, needs_template=True)
        key = (
            tuple(sorted(options.templates.items())),
            tuple((kind, tuple(sorted(one.items()))) for kind, one in wanted.requests.items()),
            tuple(annotations.get(name) for name in HINT_ANNOTATIONS),
            isolation,
        )
        if DEVICE_ALLOCATED not in annotations or not comes_with_devices(pod):
            return DeviceRequest(wanted, options, key)
        try:
            designated = allocated_devices(pod)
        except InvalidObject as err:
            raise InvalidRequest(str(err)) from err
        return DeviceRequest(wanted, options, (key, annotations[DEVICE_ALLOCATED]), designated)

    def _no_device_object(self) -> Status | None:
        return _UNREPORTED if self._args.require_devices else None

    def _verdict(self, asked: DeviceRequest, table: DeviceTable) -> Status | None:
        known = self._verdicts.of(asked.key)
        if table not in known:
            known[table] = self._tried(asked, table)
        return known[table]

    def _tried(self, asked: DeviceRequest, table: DeviceTable) -> Status | None:
        wanted, node = asked.wanted, table.node
        if wanted.gpu is not None and wanted.gpu.shared:
            if wanted.isolation and wanted.isolation != node.isolation:
                return _NOT_ISOLATED
            if (node.vendor, node.model) in self._unsupported:
                text = f'model "{node.model}" of vendor "{node.vendor}" does not support GPU Share'
                return Status.unresolvable(text)
        is_free = asked.designated is None and not asked.options.needs_template
        if is_free and has_room(table, wanted):
            return None
        try:
            allocate(asked.on(table), wanted, asked.options)
        except DevicesUnavailable as err:
            return _rejection(err)
        return None

    def _score(self, asked: DeviceRequest, table: DeviceTable) -> int:
        known = self._scores.of(asked.key)
        if table not in known:
            try:
                each = {
                    kind: instance_request(table, asked.wanted, kind)
                    for kind in asked.wanted.requests
                }
            except DevicesUnavailable:
                each = {}  # it is not feasible
            known[table] = node_score(self._scorer, table, each)
        return known[table]

    # What may help.

    def _device_changed(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        self.tables.changed(old, new)
        self.metrics.device_changed(old, new)

    def _pod_helps(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        if not isinstance(old, ClusterPod):
            return QueueingHint.QUEUE
        try:
            given = allocated_devices(old)
        except InvalidObject:
            return QueueingHint.SKIP
        return _queue(any(kind in given for kind in requested_types(pod)))

    def _device_helps(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        if not isinstance(new, NodeDevices):
            return QueueingHint.SKIP
        if isinstance(old, NodeDevices) and old.layout == new.layout:
            return QueueingHint.SKIP
        return _queue(any(kind in new.layout.totals for kind in requested_types(pod)))

    def _templates_help(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        matched = self._args.gpu_shared_resource_templates_config.matched_resources
        asks = any(name in matched for name, _ in pod.spec.requests)
        return _queue(asks and isinstance(new, Mapping) and old != new)

    def _node_helps(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        if not isinstance(old, ClusterNode) or not isinstance(new, ClusterNode):
            return QueueingHint.QUEUE
        locked, now = dict(old.annotations), dict(new.annotations)
        return _queue(
            any(old.labels.get(key) != new.labels.get(key) for key in NODE_LABELS)
            or any(key in locked and locked[key] != now.get(key) for key in NODE_LOCKS)
        )


_NOT_ISOLATED = Status.unresolvable("GPUIsolationProviderHAMICore not found on the node")
_UNREPORTED = Status.unresolvable("node(s) have no Device object")


def _rejection(err: DevicesUnavailable) -> Status:
    make = Status.unresolvable if err.final else Status.unschedulable
    return make(*err.reasons)


def _queue(helps: bool) -> QueueingHint:
    return QueueingHint.QUEUE if helps else QueueingHint.SKIP


def _with_devices(affinity: NUMATopologyHint, table: DeviceTable) -> frozenset[int] | None:
    """The NUMA nodes of an affinity; None: any, also where no device has one."""
    return affinity.nodes if table.layout.numa_nodes else None
