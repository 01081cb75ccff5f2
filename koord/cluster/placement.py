"""Pods by node and by workload, and the amounts that they take: one row for each node."""

import struct
from collections.abc import Collection, Iterable, Mapping, MutableSequence, Sequence
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import Column, FrozenColumn, Ids, read_only
from koord.cluster.facts import (
    PODS,
    AffinityTerm,
    ClusterPod,
    ClusterService,
    HostPort,
    LabelSet,
    Owner,
    PodSpec,
    Workload,
    selects,
)
from koord.cluster.pod_specs import MAX_AMOUNT
from koord.cluster.selectors import TermIndex

BASE_RESOURCES = (PODS, "cpu", "memory", "ephemeral-storage")  # columns that are always there

_NO_PORTS: frozenset[HostPort] = frozenset()
NONZERO = 2  # columns before those of the resources: nonzero cpu and memory

_ENTRY = struct.Struct("=iiii")  # label set, spec, whether it is being deleted, priority
ENTRY_BYTES = _ENTRY.size
_LEAST_PRIORITY, _MOST_PRIORITY = -(2**31), 2**31 - 1  # as the API has them, an int32


class FrozenPlacement:
    """A placement that never changes."""

    def __init__(
        self,
        *,
        resources: Mapping[str, int],
        amounts: FrozenColumn,
        pods: FrozenColumn,
        volume_pods: FrozenColumn,
        entries: FrozenColumn,
        label_sets: FrozenColumn,
        specs: FrozenColumn,
        ports: FrozenColumn,
        port_sets: FrozenColumn,
        term_counts: int,
    ) -> None:
        self.resources = resources  # columns by name
        self.amounts = amounts  # int64, (nodes, 2 + resources): see the two properties
        self.pods = pods  # of each node, a tuple
        self.volume_pods = volume_pods  # those with claims or disks, but finished ones, likewise
        self.entries = entries  # of each node, bytes; see Placed
        self.label_sets = label_sets  # by number
        self.specs = specs  # by number
        self.ports = ports  # int32, of each node, the number of its set of host ports
        self.port_sets = port_sets  # by number
        self.term_counts = (
            term_counts  # another number when pods with affinity to others were added or removed
        )

    @property
    def requested(self) -> NDArray[np.int64]:
        """(nodes, resources)."""
        return self.amounts.array[:, NONZERO:]

    @property
    def nonzero_requested(self) -> NDArray[np.int64]:
        """(nodes, 2): cpu and memory."""
        return self.amounts.array[:, :NONZERO]

    def requested_of(self, row: int, column: int) -> int:
        """One amount of the table, at little cost."""
        return self.amounts.number(row, NONZERO + column)

    def nonzero_requested_of(self, row: int) -> tuple[int, int]:
        """One row of the table, at little cost."""
        return self.amounts.number(row, 0), self.amounts.number(row, 1)

    def amounts_of(
        self, row: int, allocatable: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the taken and the free amounts of a row: nonzero first, then all resources."""
        taken: NDArray[np.int64] = read_only(self.amounts[row])
        free = -taken
        free[NONZERO:] += allocatable
        free[0] += allocatable[self.resources["cpu"]]
        free[1] += allocatable[self.resources["memory"]]
        return taken, free


class Placement:
    """Pods on rows. A finished pod is listed, but takes nothing and no rule sees it."""

    def __init__(self, base: FrozenPlacement | None = None) -> None:
        """base: the placement that this one begins as; it stays as it is."""
        self.resources: Mapping[str, int] = (
            base.resources
            if base
            else MappingProxyType({name: at for at, name in enumerate(BASE_RESOURCES)})
        )
        width = len(self.resources)
        self._amounts = Column(np.int64, NONZERO + width, base=base.amounts if base else None)
        self._pods = Column(object, base=base.pods if base else None)
        self._volume_pods = Column(object, base=base.volume_pods if base else None)
        self._entries = Column(object, base=base.entries if base else None)
        self._label_sets: Ids[LabelSet] = Ids(base.label_sets if base else None)
        self._specs: Ids[PodSpec] = Ids(base.specs if base else None)
        self._ports = Column(np.int32, base=base.ports if base else None)
        self._port_sets: Ids[frozenset[HostPort]] = Ids(base.port_sets if base else None)
        self._term_counts = base.term_counts if base else 0

    def pods(self, row: int) -> tuple[ClusterPod, ...]:
        """The pods of a row, in the order of their arrival."""
        found: tuple[ClusterPod, ...] = self._pods[row]
        return found

    def requested(self, row: int) -> NDArray[np.int64]:
        """One row of FrozenPlacement.requested. To be read at once."""
        found: NDArray[np.int64] = self._amounts[row][NONZERO:]
        return found

    def append_row(self) -> None:
        """Add a row without pods."""
        self._amounts.append(0)
        self._pods.append(())
        self._volume_pods.append(())
        self._entries.append(b"")
        self._ports.append(self._port_sets.take(_NO_PORTS))

    def drop_row(self, row: int) -> None:
        """Drop a row without pods; the last row takes its place."""
        last = len(self._pods) - 1
        self._port_sets.release(int(self._ports[row]))
        columns = self._amounts, self._pods, self._volume_pods, self._entries, self._ports
        for column in columns:
            if row != last:
                column[row] = column[last]
            column.pop()

    def widen(self, resources: Mapping[str, int]) -> None:
        """Make a column for each of these resources; existing columns keep their place."""
        self.resources = MappingProxyType({**resources})
        width = len(resources)
        self._amounts = Column(np.int64, NONZERO + width)
        for row in range(len(self._pods)):
            self._amounts.append(0)
            self._amounts.writable(row)[:] = amounts_of(self.pods(row), resources)

    def add(self, row: int, pod: ClusterPod) -> None:
        """Put a pod on a row."""
        self._pods[row] = (*self._pods[row], pod)
        if pod.finished:
            return
        self._count(row, pod, 1)
        self._entries[row] += self._entry(pod)
        self._term_counts += pod.spec.has_affinity_terms
        if pod.spec.host_ports:
            self._note_ports(row)
        self._add_volumes(row, pod)

    def remove(self, row: int, pod: ClusterPod) -> None:
        """Take a pod, this very object, off a row.

        Raises:
            KeyError: it is not there.
        """
        pods = self.pods(row)
        at = next((at for at, one in enumerate(pods) if one is pod), None)
        if at is None:
            raise KeyError(pod.key)
        self._pods[row] = pods[:at] + pods[at + 1 :]
        if pod.finished:
            return
        self._count(row, pod, -1)
        entries: bytes = self._entries[row]
        begin = self._entry_at(entries, pods, at)
        label_set, spec, *_ = _ENTRY.unpack_from(entries, begin)
        self._label_sets.release(label_set)
        self._specs.release(spec)
        self._entries[row] = entries[:begin] + entries[begin + ENTRY_BYTES :]
        self._term_counts += pod.spec.has_affinity_terms  # a version, no sum: it never comes back
        if pod.spec.host_ports:
            self._note_ports(row)
        self._drop_volumes(row, pod)

    def replace(self, row: int, old: ClusterPod, new: ClusterPod) -> None:
        """Put a pod in the place of another, this very object, on its row.

        Of a pod whose status has changed nothing is counted again.

        Raises:
            KeyError: the other one is not there.
        """
        pods = list(self.pods(row))
        at = next((at for at, one in enumerate(pods) if one is old), None)
        if at is None:
            raise KeyError(old.key)
        is_counted_alike = _entry_facts(old) == _entry_facts(new)
        if not is_counted_alike and (old.finished or new.finished):
            self.remove(row, old)
            self.add(row, new)
            return
        pods[at] = new
        self._pods[row] = tuple(pods)
        if not is_counted_alike:
            self._replace_entry(row, at, old, new)
        self._drop_volumes(row, old)
        self._add_volumes(row, new)

    def _replace_entry(self, row: int, at: int, old: ClusterPod, new: ClusterPod) -> None:
        """Count a pod for another one; neither has finished. at: among the pods of the row."""
        self._count(row, old, -1)
        if not old.spec.has_huge:  # else all pods of the row were counted
            self._count(row, new, 1)
        entries: bytes = self._entries[row]
        begin = self._entry_at(entries, self.pods(row), at)
        label_set, spec, *_ = _ENTRY.unpack_from(entries, begin)
        entry = self._entry(new)
        self._label_sets.release(label_set)
        self._specs.release(spec)
        self._entries[row] = entries[:begin] + entry + entries[begin + ENTRY_BYTES :]
        self._term_counts += old.spec.has_affinity_terms + new.spec.has_affinity_terms
        if old.spec.host_ports or new.spec.host_ports:
            self._note_ports(row)

    def _entry(self, pod: ClusterPod) -> bytes:
        """The entry of a pod, whose label set and spec are used once more."""
        numbers = self._label_sets.take(pod.label_set), self._specs.take(pod.spec)
        priority = min(max(pod.priority or 0, _LEAST_PRIORITY), _MOST_PRIORITY)
        return _ENTRY.pack(*numbers, pod.deleting, priority)

    @staticmethod
    def _entry_at(entries: bytes, pods: Sequence[ClusterPod], at: int) -> int:
        """Where the entry of one of a row's pods begins; a finished pod has none."""
        before = at
        if len(entries) != len(pods) * ENTRY_BYTES:
            before = sum(not one.finished for one in pods[:at])
        return before * ENTRY_BYTES

    def set_pods(self, row: int, pods: tuple[ClusterPod, ...]) -> None:
        """Let a row have exactly these pods, in this order; what stays is not counted again."""
        before = self.pods(row)
        begin, old_end, new_end = differing_pods(before, pods)
        for pod in before[begin:old_end]:
            self.remove(row, pod)
        for pod in pods[begin:new_end]:
            self.add(row, pod)
        more = new_end - begin
        if more and new_end < len(pods):  # what was added last belongs before the pods that stay
            entries: bytes = self._entries[row]
            stay = sum([not pod.finished for pod in pods[:begin]]) * ENTRY_BYTES
            added = sum([not pod.finished for pod in pods[begin:new_end]]) * ENTRY_BYTES
            at = len(entries) - added
            self._entries[row] = entries[:stay] + entries[at:] + entries[stay:at]
        self._pods[row] = pods

    def clear(self, row: int) -> tuple[ClusterPod, ...]:
        """Take all pods off a row, and return them."""
        pods = self.pods(row)
        for label_set, spec, *_ in _ENTRY.iter_unpack(self._entries[row]):
            self._label_sets.release(label_set)
            self._specs.release(spec)
        self._pods[row], self._entries[row], self._amounts[row] = (), b"", 0
        self._term_counts += any(pod.spec.has_affinity_terms for pod in pods)
        self._note_ports(row)
        self._volume_pods[row] = ()
        return pods

    def freeze(self) -> FrozenPlacement:
        """The placement as it is now."""
        return FrozenPlacement(
            resources=self.resources,
            amounts=self._amounts.freeze(),
            pods=self._pods.freeze(),
            volume_pods=self._volume_pods.freeze(),
            entries=self._entries.freeze(),
            label_sets=self._label_sets.freeze(),
            specs=self._specs.freeze(),
            ports=self._ports.freeze(),
            port_sets=self._port_sets.freeze(),
            term_counts=self._term_counts,
        )

    def _add_volumes(self, row: int, pod: ClusterPod) -> None:
        if _has_volumes(pod):
            self._volume_pods[row] = (*self._volume_pods[row], pod)

    def _drop_volumes(self, row: int, pod: ClusterPod) -> None:
        if _has_volumes(pod):
            others = [one for one in self._volume_pods[row] if one is not pod]
            self._volume_pods[row] = tuple(others)

    def _note_ports(self, row: int) -> None:
        """Record the host ports that the pods of a row take now."""
        taken = [pod.spec.host_ports for pod in self.pods(row) if not pod.finished]
        number = self._port_sets.take(frozenset(chain.from_iterable(taken)))
        self._port_sets.release(int(self._ports[row]))
        self._ports[row] = number

    def _count(self, row: int, pod: ClusterPod, times: int) -> None:
        """Count what a pod takes, times 1 or -1. What no node has is not counted."""
        if pod.finished:
            return
        if pod.spec.has_huge:
            self._amounts.writable(row)[:] = amounts_of(self.pods(row), self.resources)
        else:
            _add(self._amounts.writable(row), pod.spec, self.resources, times)


def differing_pods(old: Sequence[ClusterPod], new: Sequence[ClusterPod]) -> tuple[int, int, int]:
    """Return where two lists of pods begin to differ, and the ends of what differs in each."""
    begin = 0
    for one, other in zip(old, new, strict=False):
        if one is not other:
            break
        begin += 1
    old_end, new_end = len(old), len(new)
    while old_end > begin and new_end > begin and old[old_end - 1] is new[new_end - 1]:
        old_end, new_end = old_end - 1, new_end - 1
    return begin, old_end, new_end


def _entry_facts(pod: ClusterPod) -> tuple[object, ...]:
    """Return the facts behind a row's entry and amounts; shared objects by their identity."""
    return id(pod.label_set), id(pod.spec), pod.deleting, pod.priority, pod.finished


def _has_volumes(pod: ClusterPod) -> bool:
    return not pod.finished and bool(pod.claims or pod.spec.disks)


def amounts_of(pods: Iterable[ClusterPod], resources: Mapping[str, int]) -> tuple[int, ...]:
    """Return the total amounts of pods, as a row of a placement's amounts.

    Pods with huge requests count as MAX_AMOUNT together at most, more than any node has. So sums
    over the pods of a node, and over all nodes, stay below 64 bits.
    """
    amounts = [0] * (NONZERO + len(resources))
    huge = amounts.copy()
    for pod in pods:
        if not pod.finished:
            _add(huge if pod.spec.has_huge else amounts, pod.spec, resources, 1)
    return tuple(one + min(other, MAX_AMOUNT) for one, other in zip(amounts, huge, strict=True))


def _add(
    amounts: MutableSequence[int] | NDArray[np.int64],
    spec: PodSpec,
    resources: Mapping[str, int],
    times: int,
) -> None:
    amounts[0] += times * spec.nonzero_cpu
    amounts[1] += times * spec.nonzero_memory
    amounts[NONZERO + resources[PODS]] += times
    for name, amount in spec.requests:
        column = resources.get(name)
        if column is not None:
            amounts[NONZERO + column] += times * amount


class Placed:
    """All pods that take resources, in one table; each column has shape (pods,)."""

    def __init__(self, entries: FrozenColumn) -> None:
        texts: list[bytes] = entries.array.tolist()
        self._table = np.frombuffer(b"".join(texts), np.int32).reshape(-1, 4)
        counts = np.fromiter(map(len, texts), np.intp, len(texts)) // ENTRY_BYTES
        self.nodes = len(texts)
        self.row = read_only(np.repeat(np.arange(self.nodes), counts))

    @cached_property
    def label_set(self) -> NDArray[np.intp]:
        """Numbers that View.pods_matching uses."""
        return read_only(self._table[:, 0].astype(np.intp))

    @cached_property
    def spec(self) -> NDArray[np.intp]:
        """Numbers in View.specs."""
        return read_only(self._table[:, 1].astype(np.intp))

    @cached_property
    def deleting(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self._table[:, 2] != 0
        return read_only(found)

    @cached_property
    def priority(self) -> NDArray[np.int32]:
        """0 of a pod that has none."""
        return self._table[:, 3]


T = TypeVar("T")


def controller_of(owners: Iterable[Owner]) -> Owner | None:
    """The owner that controls an object; None: it is bare."""
    return next((owner for owner in owners if owner.controller), None)


class Workloads:
    """Controllers by uid, and pods by the uid of their controller. Belongs to one thread."""

    def __init__(self) -> None:
        self._by_uid: dict[str, Workload] = {}
        self._uids: dict[tuple[str, str], str] = {}  # by kind and key
        self._children: dict[str, dict[str, None]] = {}  # uids of those that a workload controls
        self._pods: dict[str, dict[str, ClusterPod]] = {}  # by uid of the controller, then by key
        self._missing: dict[str, dict[str, ClusterPod]] = {}  # likewise, those that do not serve

    def __len__(self) -> int:
        return len(self._by_uid)

    def keys(self, kind: str) -> list[str]:
        """namespace/name of all workloads of a kind."""
        return [key for known, key in self._uids if known == kind]

    def get(self, kind: str, key: str) -> Workload | None:
        """A workload by kind and namespace/name; None: not known."""
        return self._by_uid.get(self._uids.get((kind, key), ""))

    def all(self) -> Collection[Workload]:
        """All workloads, in no given order."""
        return self._by_uid.values()

    def put(self, workload: Workload) -> None:
        """Take over a workload that was added or modified."""
        self.remove(workload.kind, workload.key)
        self._by_uid[workload.uid] = workload
        self._uids[workload.kind, workload.key] = workload.uid
        if workload.controller is not None:
            self._children.setdefault(workload.controller.uid, {})[workload.uid] = None

    def remove(self, kind: str, key: str) -> None:
        """Forget a workload; one that is not known is none."""
        old = self._by_uid.pop(self._uids.pop((kind, key), ""), None)
        if old is not None and old.controller is not None:
            _drop(self._children, old.controller.uid, old.uid)

    def put_pod(self, pod: ClusterPod, key: str) -> None:
        """Count a pod to its controller. key: the pod's, one string for all tables that have it."""
        controller = controller_of(pod.owners)
        if controller is not None:
            self._pods.setdefault(controller.uid, {})[key] = pod
            if not pod.ready or pod.deleting or pod.finished:
                self._missing.setdefault(controller.uid, {})[key] = pod
            elif controller.uid in self._missing:
                _drop(self._missing, controller.uid, key)

    def remove_pod(self, pod: ClusterPod) -> None:
        """Forget a pod."""
        controller = controller_of(pod.owners)
        if controller is not None:
            _drop(self._pods, controller.uid, pod.key)
            if controller.uid in self._missing:
                _drop(self._missing, controller.uid, pod.key)

    def controlling(self, pod: ClusterPod) -> Workload | None:
        """The workload that controls a pod itself; None: as of().

        Of a Deployment's pod that is a ReplicaSet.
        """
        controller = controller_of(pod.owners)
        return None if controller is None else self._by_uid.get(controller.uid)

    def of(self, pod: ClusterPod) -> Workload | None:
        """The workload of a pod: of a ReplicaSet that a Deployment controls, that Deployment.

        None: the pod is bare, or its controller is not known, or another of that name is.
        """
        found = self.controlling(pod)
        if found is None or found.controller is None:
            return found
        return self._by_uid.get(found.controller.uid, found)

    def pods(self, workload: Workload) -> list[ClusterPod]:
        """The pods of a workload and of all that it controls, bound or not, in no given order."""
        uids = (workload.uid, *self._children.get(workload.uid, ()))
        return [pod for uid in uids for pod in self._pods.get(uid, {}).values()]

    def unavailable(self, pod: ClusterPod) -> list[ClusterPod]:
        """The pods of a pod's workload that are ending, have ended or are not ready.

        Of a workload that is not known those with the same controller; of a bare pod none.
        """
        workload, controller = self.of(pod), controller_of(pod.owners)
        if workload is not None:
            uids = (workload.uid, *self._children.get(workload.uid, ()))
        else:
            uids = () if controller is None else (controller.uid,)
        return [one for uid in uids for one in self._missing.get(uid, {}).values()]

    def siblings(self, pod: ClusterPod) -> Collection[ClusterPod]:
        """The pods with the same controller, this one too; of a bare pod none."""
        controller = controller_of(pod.owners)
        return () if controller is None else self._pods.get(controller.uid, {}).values()


def _drop(table: dict[str, dict[str, T]], name: str, key: str) -> None:
    bucket = table.get(name, {})
    bucket.pop(key, None)
    if not bucket:
        table.pop(name, None)


class ServiceTable:
    """Services by namespace/name. Belongs to one thread."""

    def __init__(self) -> None:
        self._services: dict[str, ClusterService] = {}
        self._index: TermIndex[str] = TermIndex()  # of their keys

    def get(self, key: str) -> ClusterService | None:
        return self._services.get(key)

    def keys(self) -> Iterable[str]:
        """namespace/name of all services."""
        return self._services.keys()

    def put(self, service: ClusterService) -> None:
        """Take over a service that was added or modified."""
        self.remove(service.key)
        self._services[service.key] = service
        self._index.put(_term(service), service.key)

    def remove(self, key: str) -> None:
        """Forget a service; one that is not known is none."""
        old = self._services.pop(key, None)
        if old is not None:
            self._index.drop(_term(old), key)

    def selecting(self, pod: ClusterPod) -> list[ClusterService]:
        """The services of which a pod is an endpoint, by name."""
        if not self._services:
            return []
        found = (self._services[key] for key in sorted(self._index.candidates(pod.label_set)))
        return [service for service in found if selects(service.selector, pod.labels)]


def _term(service: ClusterService) -> AffinityTerm:
    return AffinityTerm("", service.selector, (service.namespace,))
