"""Devices and CPUs that nodes can give, as columns, and by the rules of the scheduler."""

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from koord.api.annotations import DEVICE_ALLOCATED, MAX_DEVICES
from koord.api.annotations import device_allocations as read_devices
from koord.api.devices.allocation import AllocateOptions, DevicesUnavailable, allocate, has_room
from koord.api.devices.layout import FUNCTION, DeviceLayout, DeviceTable, NodeTraits, used_key
from koord.api.devices.layout import read_devices as read_layout
from koord.api.nodetopology import (
    NUMA_TOPOLOGY_POLICY,
    BindPolicy,
    CpuManagerPolicy,
    NUMATopologyPolicy,
    bind_policy_of_node,
    cpu_manager_policy,
    kubelet_topology_policy,
    policy_of,
)
from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.util.errors import InvalidObject
from koord.util.timebudget import in_time
from koord_descheduler.rules.evictorfilter import annotation
from koord_descheduler.rules.hardware import (
    AMOUNTS,
    GPU,
    Each,
    HardwareNeed,
    Object,
    amount_of,
    annotations_of,
    cpu_places,
    cpus_of,
    devices_of,
    free_cpus,
    free_devices,
    held_cpus,
    requested_devices,
)


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
        requested = requested_devices(pod.spec.requests)
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
                    tuple((name, max(amount_of(text), 0)) for name, text in one.resources.items()),
                    one.functions,
                )
                for one in devices
            )
            for kind, devices in (read_devices(text) if text else {}).items()
        }
    except (InvalidObject, ValueError):
        return {}


class FreeCpus(NamedTuple):
    """How many CPUs of a NUMA node no pod has for its own."""

    node: int
    all: int
    of_whole_cores: int  # of which all CPUs are free
    cores: int  # of which one CPU or more is free

    def bindable(self, policy: BindPolicy | None) -> int:
        """As many can be bound by a policy; None: by none."""
        if policy is None:
            return self.all
        return self.of_whole_cores if policy is BindPolicy.FULL_PCPUS else self.cores


@dataclass(frozen=True)
class NodeCpus:
    """The CPUs of a node that no pod has for its own, and how they are bound."""

    numa_nodes: tuple[FreeCpus, ...]
    threads: int  # of a core, at most
    bind: BindPolicy | None  # the node's policy for all pods

    def gives(self, need: HardwareNeed, numa_node: int | None) -> bool:
        """Whether a pod can have as many, bound as it and the node require.

        numa_node: that all must be of; None: of any.
        """
        if not need.cpus:
            return True
        if need.bind is not None and self.bind not in (None, need.bind):
            return False
        policy = need.bind or self.bind
        if policy is BindPolicy.FULL_PCPUS and need.cpus % max(self.threads, 1):
            return False
        there = [one for one in self.numa_nodes if numa_node in (None, one.node)]
        return sum(one.bindable(policy) for one in there) >= need.cpus


def node_cpus(topology: Object, labels: Mapping[str, str], pods: Iterable[ClusterPod]) -> NodeCpus:
    """Return the CPUs of a node that its pods leave."""
    held, places = held_cpus(pods), cpu_places(topology)
    cores: dict[tuple[int, int], int] = {}  # CPUs of each
    free: dict[int, dict[tuple[int, int], int]] = {}  # by NUMA node: of each core
    for cpu, place in places.items():
        cores[place.core] = cores.get(place.core, 0) + 1
        left = free.setdefault(place.numa_node, {})
        if cpu not in held and not place.withheld:
            left[place.core] = left.get(place.core, 0) + 1
    try:
        kubelet = cpu_manager_policy(annotations_of(topology))
    except InvalidObject:
        kubelet = CpuManagerPolicy()
    numa_nodes = (
        FreeCpus(
            node,
            sum(left.values()),
            sum(count for core, count in left.items() if count == cores[core]),
            len(left),
        )
        for node, left in sorted(free.items())
    )
    return NodeCpus(
        tuple(numa_nodes), max(cores.values(), default=0), bind_policy_of_node(labels, kubelet)
    )


@dataclass(frozen=True)
class NodeRules:
    """A node as the scheduler's rules about devices, CPUs and NUMA nodes see it."""

    table: DeviceTable | None  # None: it has no Device that can be read in full
    cpus: NodeCpus | None  # None: not known
    policy: NUMATopologyPolicy | None

    def gives(self, need: HardwareNeed) -> bool:
        """Whether the node can give it, where its amounts are enough.

        In partitions, scopes and on switches as the node and the pod require, CPUs bound as they
        do, and from one NUMA node where one of them asks for that.
        """
        single = need.single_numa_node or self.policy is NUMATopologyPolicy.SINGLE_NUMA_NODE
        if not single:
            return self._gives_cpus(need, None) and self._gives_devices(need, None)
        numa_nodes = {one.node for one in self.cpus.numa_nodes} if self.cpus else set[int]()
        if self.table is not None:
            numa_nodes.update(self.table.layout.numa_nodes)
        return not numa_nodes or any(
            self._gives_cpus(need, node) and self._gives_devices(need, node)
            for node in sorted(numa_nodes)
        )

    def _gives_cpus(self, need: HardwareNeed, node: int | None) -> bool:
        return self.cpus is None or self.cpus.gives(need, node)

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
            column = np.full((len(every), most, len(AMOUNTS[kind])), -1, np.int64)
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
            cpus=None if topology is None else node_cpus(topology, node.labels, pods),
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
