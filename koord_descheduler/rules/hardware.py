"""Devices and CPUs that pods hold, and what is free of them on nodes, as columns."""

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koord.api.annotations import DEVICE_ALLOCATED, MAX_DEVICES, RESOURCE_STATUS, annotation_fields
from koord.api.annotations import device_allocations as read_devices
from koord.api.devices.allocation import AllocateOptions, DevicesUnavailable, allocate, has_room
from koord.api.devices.layout import (
    FUNCTION,
    ISOLATION_PROVIDER,
    DeviceLayout,
    DeviceTable,
    NodeTraits,
    used_key,
)
from koord.api.devices.layout import read_devices as read_layout
from koord.api.devices.requests import HINT_ANNOTATIONS, InvalidRequest, PodDevices, pod_devices
from koord.api.machine import parse_cpulist
from koord.api.nodetopology import (
    CPU_TOPOLOGY,
    NUMA_TOPOLOGY_POLICY,
    NUMA_TOPOLOGY_SPEC,
    NUMATopologyPolicy,
    kubelet_topology_policy,
    policy_of,
    withheld_cpus,
)
from koord.api.quantity import Quantity
from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.keptfields import KeptFields
from koord.cluster.view import View
from koord.util.errors import InvalidObject
from koord.util.timebudget import in_time
from koord_descheduler.rules.evictorfilter import annotation

GPU, RDMA, FPGA = "gpu", "rdma", "fpga"
_PREFIX, _OLD_PREFIX = "koordinator.sh/", "kubernetes.io/"
CORE, RATIO, MEMORY = (
    f"{_PREFIX}{name}" for name in ("gpu-core", "gpu-memory-ratio", "gpu-memory")
)
_SHARED, _PERCENT = f"{_PREFIX}gpu.shared", f"{_PREFIX}gpu"
_CARDS = ("nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu")
_AMOUNTS = {GPU: (CORE, RATIO, MEMORY), RDMA: (f"{_PREFIX}rdma",), FPGA: (f"{_PREFIX}fpga",)}
_WHOLE = 100  # percent of one device
MAX_CPUS = 4096  # of one node
_MAX_AMOUNT = 2**62

HARDWARE_FIELDS = KeptFields(
    pod_annotations={
        DEVICE_ALLOCATED: 65_536,
        RESOURCE_STATUS: 16_384,
        NUMA_TOPOLOGY_SPEC: 4_096,
        **dict.fromkeys(HINT_ANNOTATIONS, 32_768),
    }
)
"""Fields of pods that need_of and HardwareTable read, for plugins to declare."""

Object = Mapping[str, Any]
Each = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HardwareNeed:
    """The devices and CPUs that a pod's successor must be given on one node."""

    devices: tuple[tuple[str, int, Each], ...] = ()
    """By type: how many, and of each at least the amounts of that type, in their order."""
    cpus: int = 0  # of its own; 0: none
    wanted: PodDevices | None = field(default=None, compare=False)
    """The same devices with all rules of the scheduler; None: the requests are malformed."""
    single_numa_node: bool = False  # the pod itself says that all must be of one


def need_of(pod: ClusterPod) -> HardwareNeed | None:
    """Return what a pod has been given and requests; None: nothing, as nearly all pods.

    A pod without Koordinator's annotations has its devices from others, such as a device plugin,
    and its CPUs from the kubelet: of these nothing is known of other nodes.
    """
    given = {key: text for key, text in pod.annotations if key in _ANNOTATIONS}
    if not given:
        return None
    kinds = _allocated(given.get(DEVICE_ALLOCATED, ""))
    requested = _requested(pod.spec.requests)
    devices = tuple((kind, *requested[kind]) for kind in requested if kinds.get(kind))
    cpus = _own_cpus(pod, given.get(RESOURCE_STATUS, ""))
    if not devices and not cpus:
        return None
    hints = tuple([pair for pair in pod.annotations if pair[0] in HINT_ANNOTATIONS])
    isolation = pod.labels.get(ISOLATION_PROVIDER, "")
    wanted = _wanted(pod.spec.requests, hints, isolation) if devices else None
    single = _single_numa_node(annotation(pod, NUMA_TOPOLOGY_SPEC) or "")
    return HardwareNeed(devices, len(cpus), wanted, single)


_ANNOTATIONS = frozenset({DEVICE_ALLOCATED, RESOURCE_STATUS})


@lru_cache(maxsize=1024)
def _wanted(
    requests: tuple[tuple[str, int], ...], hints: tuple[tuple[str, str], ...], isolation: str
) -> PodDevices | None:
    try:
        return pod_devices(requests, dict(hints), isolation)
    except InvalidRequest:
        return None


@lru_cache(maxsize=1024)
def _single_numa_node(text: str) -> bool:
    try:
        policy = (
            annotation_fields(text, NUMA_TOPOLOGY_SPEC).text("numaTopologyPolicy") if text else ""
        )
    except InvalidObject:
        return False
    return policy_of(policy) is NUMATopologyPolicy.SINGLE_NUMA_NODE


@lru_cache(maxsize=4096)
def _requested(requests: tuple[tuple[str, int], ...]) -> Mapping[str, tuple[int, Each]]:
    """Return, by type, how many devices are requested at least, and how much of each.

    Of interfaces and FPGAs one is what is certain: hints may ask for a part of each.
    """
    amounts: dict[str, int] = {}
    for name, amount in requests:
        now = name.replace(_OLD_PREFIX, _PREFIX, 1) if name.startswith(_OLD_PREFIX) else name
        amounts[now] = amounts.get(now, 0) + amount
    found: dict[str, tuple[int, Each]] = {}
    cards = sum(amounts.get(name, 0) for name in _CARDS)
    percent = cards * _WHOLE or amounts.get(_PERCENT, 0)
    gpu = (percent, percent, 0) if percent else tuple(amounts.get(one, 0) for one in _AMOUNTS[GPU])
    if any(gpu):
        most = gpu[1] or gpu[0]
        count = amounts.get(_SHARED, 0) or (most // _WHOLE if most > _WHOLE else 1)
        found[GPU] = count, tuple(amount // count for amount in gpu)
    for kind in (RDMA, FPGA):
        share = amounts.get(_AMOUNTS[kind][0], 0)
        if share > 0:
            found[kind] = 1, (min(share, _WHOLE),)
    return found


@lru_cache(maxsize=4096)
def _allocated(text: str) -> Mapping[str, tuple[tuple[int, Each], ...]]:
    """Return minors and amounts by type; nothing of an annotation that is malformed."""
    try:
        given = read_devices(text) if text else {}
        return {
            kind: tuple(
                (one.minor, tuple(_amount(one.resources.get(name)) for name in _AMOUNTS[kind]))
                for one in devices
            )
            for kind, devices in given.items()
            if kind in _AMOUNTS
        }
    except (InvalidObject, ValueError):
        return {}


@lru_cache(maxsize=4096)
def _cpus(text: str) -> frozenset[int]:
    try:
        found = parse_cpulist(annotation_fields(text, RESOURCE_STATUS).text("cpuset"))
    except (InvalidObject, ValueError):
        return frozenset()
    return found if len(found) <= MAX_CPUS else frozenset()


def _own_cpus(pod: ClusterPod, text: str) -> frozenset[int]:
    """Return the CPUs of a pod; none where they are more than it requests: it made them up."""
    cpus = _cpus(text) if text else frozenset[int]()
    requests = next((amount for name, amount in pod.spec.requests if name == "cpu"), 0)
    return cpus if len(cpus) * 1000 <= requests else frozenset()


def _amount(value: object) -> int:
    return 0 if value is None else min(Quantity.parse(value).integer, _MAX_AMOUNT)


def devices_of(device: Object) -> dict[tuple[str, int], Each]:
    """Return the amounts of a Device's healthy devices by type and minor.

    A device that is malformed, or negative in an amount, is none; of a minor twice neither is.
    """
    found: dict[tuple[str, int], Each] = {}
    twice: set[tuple[str, int]] = set()
    for one in _list(_dict(device.get("spec")).get("devices"))[: MAX_DEVICES * len(_AMOUNTS)]:
        fields = _dict(one)
        kind, minor = fields.get("type"), fields.get("minor") or 0
        names = _AMOUNTS.get(kind) if isinstance(kind, str) else None
        if names is None or not isinstance(minor, int) or not 0 <= minor < 2**31:
            continue
        if (str(kind), minor) in found:
            twice.add((str(kind), minor))
        resources = {
            str(name).replace(_OLD_PREFIX, _PREFIX, 1): amount
            for name, amount in _dict(fields.get("resources")).items()
        }
        try:
            amounts = tuple(_amount(resources.get(name)) for name in names)
        except ValueError:
            continue
        if fields.get("health") is True and min(amounts) >= 0:
            found[str(kind), minor] = amounts
    return {key: amounts for key, amounts in found.items() if key not in twice}


def cpus_of(topology: Object) -> frozenset[int]:
    """Return the CPUs of a node that pods can have; none where the object is malformed.

    Those that the kubelet or the system keeps, or the kubelet has given to pods, are not among
    them.
    """
    return frozenset(numa_nodes_of(topology))


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _cpus_by_numa_node(topology: Object, pods: Iterable[ClusterPod]) -> tuple[tuple[int, int], ...]:
    """Return NUMA nodes with how many CPUs no pod has for its own."""
    held, found = _held_cpus(pods), dict[int, int]()
    for cpu, node in numa_nodes_of(topology).items():
        found[node] = found.get(node, 0) + (cpu not in held)
    return tuple(sorted(found.items()))


def free_devices(
    total: Mapping[tuple[str, int], Each], pods: Iterable[ClusterPod]
) -> dict[tuple[str, int], Each]:
    """Return what pods of a node leave of its devices.

    An annotation counts for no more devices than the pod requests, and takes no more of one than
    the device has.
    """
    free = dict(total)
    for pod in pods:
        if pod.finished or not pod.annotations:
            continue
        text = annotation(pod, DEVICE_ALLOCATED) or ""
        requested = _requested(pod.spec.requests)
        for kind, given in _allocated(text).items():
            if kind not in requested:
                continue
            most = requested[kind][0] if kind == GPU else MAX_DEVICES
            for minor, amounts in given[:most]:
                left = free.get((kind, minor))
                if left is not None:
                    free[kind, minor] = tuple(
                        max(one - max(taken, 0), 0)
                        for one, taken in zip(left, amounts, strict=True)
                    )
    return free


def free_cpus(total: frozenset[int], pods: Iterable[ClusterPod]) -> int:
    """Return how many CPUs of a node no pod has for its own."""
    return len(total - _held_cpus(pods))


def _held_cpus(pods: Iterable[ClusterPod]) -> set[int]:
    held: set[int] = set()
    for pod in pods:
        if not pod.finished and pod.annotations:
            text = annotation(pod, RESOURCE_STATUS) or ""
            held |= _own_cpus(pod, text)
    return held


NUMA_NODE = "numaNode"
PART_KINDS = (GPU, NUMA_NODE)


@dataclass(frozen=True, slots=True)
class HardwarePart:
    """A GPU or a NUMA node, and the pods that have something of it."""

    free: Each  # of a GPU percent of its cores, percent and bytes of its memory; or CPUs
    holders: frozenset[str]  # keys of pods

    @property
    def is_broken(self) -> bool:
        """Whether pods have a part of it, and not all."""
        return bool(self.holders) and any(self.free)

    def fits(self, each: Each) -> bool:
        """Whether as much is free."""
        return all(have >= wanted for have, wanted in zip(self.free, each, strict=True))

    def with_pod(self, key: str, each: Each) -> "HardwarePart":
        """The same with one more pod."""
        left = zip(self.free, each, strict=True)
        free = tuple(max(have - taken, 0) for have, taken in left)
        return HardwarePart(free, self.holders | {key})


Parts = Mapping[int, HardwarePart]
"""The GPUs of a node by minor, or its NUMA nodes by id."""


def gpu_parts(device: Object, pods: Iterable[ClusterPod]) -> Parts:
    """Return the healthy GPUs of a Device."""
    total, pods = devices_of(device), tuple(pods)
    free, holders = free_devices(total, pods), dict[int, set[str]]()
    for pod in pods:
        if not pod.finished:
            for minor in _minors(pod):
                holders.setdefault(minor, set()).add(pod.key)
    return {
        minor: HardwarePart(left, frozenset(holders.get(minor, ())))
        for (kind, minor), left in free.items()
        if kind == GPU
    }


def numa_parts(topology: Object, pods: Iterable[ClusterPod]) -> Parts:
    """Return the NUMA nodes of a NodeResourceTopology with the CPUs that no pod has for its own.

    Pods that have amounts of a NUMA node are holders, too.
    """
    nodes = numa_nodes_of(topology)
    free = {node: set[int]() for node in nodes.values()}
    for cpu, node in nodes.items():
        free[node].add(cpu)
    holders: dict[int, set[str]] = {}
    for pod in pods:
        if pod.finished or not pod.annotations:
            continue
        text = annotation(pod, RESOURCE_STATUS) or ""
        for cpu in _own_cpus(pod, text):
            if cpu in nodes:
                free[nodes[cpu]].discard(cpu)
                holders.setdefault(nodes[cpu], set()).add(pod.key)
        for node in _amounts_of(text) if text else ():
            holders.setdefault(node, set()).add(pod.key)
    return {
        node: HardwarePart((len(cpus),), frozenset(holders.get(node, ())))
        for node, cpus in free.items()
    }


def parts_wanted(pod: ClusterPod, kind: str) -> tuple[int, Each] | None:
    """Return of how many parts a pod's successor needs something, and how much of each.

    None: of none, or of CPUs that are on several NUMA nodes now.
    """
    need = need_of(pod)
    if need is None:
        return None
    if kind == NUMA_NODE:
        return (1, (need.cpus,)) if need.cpus else None
    return next(((count, each) for of, count, each in need.devices if of == GPU), None)


def numa_nodes_of(topology: Object) -> dict[int, int]:
    """Return the NUMA node of each CPU that pods can have; as cpus_of."""
    found = _dict(_dict(topology.get("metadata")).get("annotations"))
    annotations = {key: text for key, text in found.items() if isinstance(text, str)}
    if CPU_TOPOLOGY not in annotations:
        return {}
    try:
        fields = annotation_fields(annotations[CPU_TOPOLOGY], CPU_TOPOLOGY)
        detail = islice(fields.objects("detail"), MAX_CPUS)
        nodes = {one.integer("id") or 0: one.integer("node") or 0 for one in detail}
        for cpu in withheld_cpus(annotations):
            nodes.pop(cpu, None)
    except InvalidObject:
        return {}
    return nodes


@lru_cache(maxsize=4096)
def _amounts_of(text: str) -> frozenset[int]:
    """Ids of the NUMA nodes of which an annotation names amounts."""
    try:
        every = annotation_fields(text, RESOURCE_STATUS).objects("numaNodeResources")
        return frozenset(one.integer("node") or 0 for one in islice(every, MAX_CPUS))
    except InvalidObject:
        return frozenset()


def _minors(pod: ClusterPod) -> Iterator[int]:
    """GPUs of a pod, no more than it requests."""
    text = annotation(pod, DEVICE_ALLOCATED) or ""
    wanted = _requested(pod.spec.requests).get(GPU)
    if text and wanted is not None:
        for minor, _ in _allocated(text).get(GPU, ())[: wanted[0]]:
            yield minor


def device_table(
    layout: DeviceLayout,
    labels: Mapping[str, str],
    pods: Iterable[ClusterPod],
    shared: dict[Hashable, DeviceTable],
) -> DeviceTable:
    """Return the devices of a node with what its pods have of them, as the scheduler has it.

    An annotation counts for no more devices than the pod requests. shared: those of other nodes;
    equal ones have one.
    """
    used: dict[str, int] = {}
    for pod in pods:
        if pod.finished or not pod.annotations:
            continue
        requested = _requested(pod.spec.requests)
        for kind, given in _given(annotation(pod, DEVICE_ALLOCATED) or "").items():
            if kind not in requested:
                continue
            most = requested[kind][0] if kind == GPU else MAX_DEVICES
            for minor, amounts, functions in given[:most]:
                for name, amount in amounts:
                    key = used_key(kind, minor, name)
                    used[key] = used.get(key, 0) + amount
                for address in functions:
                    used[used_key(kind, minor, f"{FUNCTION}{address}")] = 1
    traits = NodeTraits.of(labels)
    same = layout, traits, frozenset(used.items())
    found = shared.get(same)
    if found is None:
        found = shared[same] = DeviceTable(layout, traits, used.items())
    return found


_Given = tuple[int, tuple[tuple[str, int], ...], tuple[str, ...]]


@lru_cache(maxsize=4096)
def _given(text: str) -> Mapping[str, tuple[_Given, ...]]:
    """Return minors, amounts and functions by type; nothing of an annotation that is malformed."""
    try:
        return {
            kind: tuple(
                (
                    one.minor,
                    tuple((name, max(_amount(text), 0)) for name, text in one.resources.items()),
                    one.functions,
                )
                for one in devices
            )
            for kind, devices in (read_devices(text) if text else {}).items()
        }
    except (InvalidObject, ValueError):
        return {}


@dataclass(frozen=True)
class NodeRules:
    """A node as the scheduler's rules about devices and NUMA nodes see it."""

    table: DeviceTable | None  # None: it has no Device that can be read in full
    cpus: tuple[tuple[int, int], ...] | None
    """NUMA nodes with how many CPUs no pod has for its own; None: not known."""
    policy: NUMATopologyPolicy | None

    def gives(self, need: HardwareNeed) -> bool:
        """Whether the node can give it, where its amounts are enough.

        In partitions, scopes and on switches as the node and the pod require, and from one NUMA
        node where one of them asks for that.
        """
        single = need.single_numa_node or self.policy is NUMATopologyPolicy.SINGLE_NUMA_NODE
        if not single:
            return self._gives_devices(need, None)
        numa_nodes = {node for node, _ in self.cpus or ()}
        if self.table is not None:
            numa_nodes.update(self.table.layout.numa_nodes)
        return not numa_nodes or any(
            self._gives_cpus(need, node) and self._gives_devices(need, node)
            for node in sorted(numa_nodes)
        )

    def _gives_cpus(self, need: HardwareNeed, node: int) -> bool:
        return self.cpus is None or dict(self.cpus).get(node, 0) >= need.cpus

    def _gives_devices(self, need: HardwareNeed, node: int | None) -> bool:
        table, wanted = self.table, need.wanted
        if table is None or wanted is None:
            return True
        gpu = wanted.gpu
        if gpu is not None and gpu.shared and wanted.isolation not in ("", table.node.isolation):
            return False
        if node is None or not table.layout.numa_nodes:
            near = None
            if has_room(table, wanted):
                return True
        else:
            near = frozenset({node})
        try:
            allocate(table, wanted, AllocateOptions(numa_nodes=near))
        except DevicesUnavailable:
            return False
        return True


class HardwareTable:
    """Free devices and CPUs of nodes, as columns. Nodes are rows of one view."""

    def __init__(
        self,
        nodes: int,
        devices: Mapping[int, Mapping[tuple[str, int], Each]] | None,
        cpus: Mapping[int, int] | None,
        rules: Callable[[int], NodeRules] | None = None,
    ) -> None:
        """devices and cpus: what is free, by row; None: nothing is known of any node.

        rules: of a row; None: amounts are enough.
        """
        self._rules = rules
        self._nodes = nodes
        self._devices = devices
        self._rows = np.array(sorted(devices or ()), np.intp)
        self._free: dict[str, NDArray[np.int64]] = {}  # (rows, devices, amounts); -1: no device
        self._cpus: NDArray[np.int64] | None = None
        if cpus is not None:
            self._cpus = np.zeros(nodes, np.int64)
            self._cpus[list(cpus)] = list(cpus.values())

    def fits(self, need: HardwareNeed) -> Mask:
        """Return the nodes that can give as much; shape (nodes,). Of what is not known, all.

        Amounts rule most nodes out, of all at once; the others are asked one by one.
        """
        mask = np.ones(self._nodes, np.bool_)
        if need.cpus and self._cpus is not None:
            mask &= self._cpus >= need.cpus
        if self._devices is not None:
            for kind, count, each in need.devices:
                have = (self._column(kind) >= np.array(each, np.int64)).all(axis=2).sum(axis=1)
                enough = np.zeros(self._nodes, np.bool_)
                enough[self._rows] = have >= count
                mask &= enough
        if self._rules is not None:
            answers: dict[NodeRules, bool] = {}  # equal nodes are asked once
            for row in in_time(np.flatnonzero(mask).tolist()):
                rules = self._rules(row)
                if rules not in answers:
                    answers[rules] = rules.gives(need)
                mask[row] = answers[rules]
        return mask

    def _column(self, kind: str) -> NDArray[np.int64]:
        column = self._free.get(kind)
        if column is None:
            devices = self._devices or {}
            every = [
                [amounts for (of, _), amounts in devices[row].items() if of == kind]
                for row in self._rows.tolist()
            ]
            most = max(map(len, every), default=0)
            column = np.full((len(every), most, len(_AMOUNTS[kind])), -1, np.int64)
            for at, free in enumerate(every):
                if free:
                    column[at, : len(free)] = free
            self._free[kind] = column
        return column


class NodeHardware:
    """Makes the table of a view, and keeps what has not changed since the last one."""

    def __init__(self) -> None:
        self._of: tuple[View, int] | None = None
        self._table: HardwareTable | None = None
        self._totals: dict[str, tuple[Object, Any]] = {}  # by kind and name
        self._free: dict[str, tuple[int, Any, Any]] = {}  # likewise: generation, total, free
        self._layouts: dict[str, tuple[Object, DeviceLayout | None]] = {}  # by name
        self._rules: dict[str, tuple[tuple[object, ...], NodeRules]] = {}  # likewise
        self._shared: dict[Hashable, DeviceTable] = {}

    def table(
        self,
        view: View,
        devices: Mapping[str, Object],
        topologies: Mapping[str, Object],
        version: int,
    ) -> HardwareTable:
        """Return the table of a view. An empty mapping: nothing is known of that kind.

        Objects are replaced, not changed, when they change; version is another one then.
        """
        if self._table is None or self._of is None or self._of != (view, version):
            self._of = view, version
            found = dict(self._each(view, "devices", devices, devices_of, free_devices))
            cpus = dict(self._each(view, "cpus", topologies, cpus_of, free_cpus))
            self._table = HardwareTable(
                len(view),
                found if devices else None,
                cpus if topologies else None,
                lambda row: self._node_rules(view, row, devices, topologies),
            )
            self._prune(view)
        return self._table

    def _node_rules(
        self,
        view: View,
        row: int,
        devices: Mapping[str, Object],
        topologies: Mapping[str, Object],
    ) -> NodeRules:
        node = view.node(row)
        device, topology = devices.get(node.name), topologies.get(node.name)
        made_of = (device, topology, node, int(view.generation[row]))
        known = self._rules.get(node.name)
        if (
            known is not None
            and all(map(operator.is_, known[0][:3], made_of[:3]))
            and (known[0][3] == made_of[3])
        ):
            return known[1]
        layout = None if device is None else self._layout(node.name, device)
        pods = view.pods(row)
        label = node.labels.get(NUMA_TOPOLOGY_POLICY)
        rules = NodeRules(
            table=None if layout is None else device_table(layout, node.labels, pods, self._shared),
            cpus=None if topology is None else _cpus_by_numa_node(topology, pods),
            policy=policy_of(label) if label else kubelet_topology_policy(topology or {}),
        )
        self._rules[node.name] = made_of, rules
        return rules

    def _layout(self, name: str, device: Object) -> DeviceLayout | None:
        known = self._layouts.get(name)
        if known is None or known[0] is not device:
            try:
                layout = read_layout(device).layout
            except InvalidObject:
                layout = None  # it counts by its amounts
            known = self._layouts[name] = device, layout
        return known[1]

    def _prune(self, view: View) -> None:
        """Keep nothing of nodes that have gone, and of tables not too many old ones."""
        if len(self._shared) > 2 * len(view):
            self._shared.clear()
        for kept in (self._layouts, self._rules):
            for name in [name for name in kept if view.row(name) is None]:
                del kept[name]

    def _each(
        self, view: View, kind: str, objects: Mapping[str, Object], read: Any, free: Any
    ) -> Iterator[tuple[int, Any]]:
        for key in [key for key in self._totals if key.startswith(f"{kind} ")]:
            if key.partition(" ")[2] not in objects:
                self._totals.pop(key)
                self._free.pop(key, None)
        for name, one in objects.items():
            row, key = view.row(name), f"{kind} {name}"
            if row is None:
                continue
            known = self._totals.get(key)
            if known is None or known[0] is not one:
                known = self._totals[key] = one, read(one)
            total, generation = known[1], int(view.generation[row])
            last = self._free.get(key)
            if last is None or last[0] != generation or last[1] is not total:
                last = self._free[key] = generation, total, free(total, view.pods(row))
            yield row, last[2]
