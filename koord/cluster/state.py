"""The state of the cluster: the snapshot of nodes and pods, and the other objects."""

import math
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from koord.cluster import kinds as cluster_kinds
from koord.cluster import storage
from koord.cluster.account import Account, AccountKind, FrozenAccount
from koord.cluster.columns import Column, NodeImages, Shards
from koord.cluster.decoder import ObjectKind
from koord.cluster.facts import (
    ClusterNamespace,
    ClusterNode,
    ClusterPod,
    DisruptionBudget,
    PriorityClass,
    Workload,
)
from koord.cluster.kinds import UsageReport
from koord.cluster.placement import Placement, ServiceTable, Workloads
from koord.cluster.pod_counts import PodCounts
from koord.cluster.storage import Claim, StorageObjects, Volume
from koord.cluster.view import Traits, View

MAX_RESOURCES = 128  # kinds of resources that the nodes of a cluster have together


class Snapshot:
    """Nodes as rows of a few columns, with the pods of each. Belongs to one thread.

    What is put replaces what had the same name, so the same object in two lists is one, and the
    last one counts. A pod on a node that is not known waits for it; when a node is deleted, its
    pods wait for the next one of that name. Of a pod that is bound to no node nothing is placed.
    """

    def __init__(self, usage: Sequence[str] = ()) -> None:
        """usage: names of the columns that set_usage fills."""
        self.usage_columns = tuple(usage)
        self._nodes = Column(object)
        self._allocatable = Column(np.int64, len(Placement().resources))
        self._usage = Column(np.float64, len(self.usage_columns))
        self._generation = Column(np.int64)
        self._images = NodeImages()
        self._placement = Placement()
        self._rows: dict[str, int] = {}
        self._pods: dict[str, ClusterPod] = {}
        self._waiting: dict[str, dict[str, ClusterPod]] = {}  # by node that is not known, by key
        self._pod_counts = PodCounts()
        self._account = Account()
        self._claims: Shards[Claim] = Shards()
        self._volumes: Shards[Volume] = Shards()
        self._namespaces: Shards[ClusterNamespace] = Shards()
        self._changes = 0
        self._traits: Traits | None = None
        self._view: View | None = None

    def __len__(self) -> int:
        return len(self._nodes)

    def pod(self, key: str) -> ClusterPod | None:
        """A pod by namespace/name, wherever it is; None: not known."""
        return self._pods.get(key)

    def node(self, name: str) -> ClusterNode | None:
        """A node by name; None: not known."""
        row = self._rows.get(name)
        return None if row is None else self._nodes[row]

    def pods_of_node(self, name: str) -> tuple[ClusterPod, ...]:
        """The pods of a node, without a view; the same tuple until one of them changes."""
        row = self._rows.get(name)
        return () if row is None else self._placement.pods(row)

    def claim(self, key: str) -> Claim | None:
        """A claim by namespace/name; None: not known."""
        return self._claims.get(key)

    def volume(self, name: str) -> Volume | None:
        """A volume by name; None: not known."""
        return self._volumes.get(name)

    def namespace(self, name: str) -> ClusterNamespace | None:
        """A namespace by name; None: not known."""
        return self._namespaces.get(name)

    def node_names(self) -> Iterable[str]:
        """Names of all nodes."""
        return self._rows

    @property
    def pod_count(self) -> int:
        """How many pods are known, bound or not."""
        return len(self._pods)

    def pod_keys(self) -> Iterable[str]:
        """namespace/name of all pods, bound or not."""
        return self._pods

    def claim_keys(self) -> Iterable[str]:
        """namespace/name of all claims."""
        return self._claims.keys()

    def volume_names(self) -> Iterable[str]:
        """Names of all volumes."""
        return self._volumes.keys()

    def namespace_names(self) -> Iterable[str]:
        """Names of all namespaces."""
        return self._namespaces.keys()

    def put_node(self, node: ClusterNode) -> None:
        """Take over a node that was added or modified."""
        self._provide(node)
        row = self._rows.get(node.name)
        if row is None:
            self._append(node)
            return
        old: ClusterNode = self._nodes[row]
        if old == node:
            return
        if not _same_traits(old, node):
            self._traits = None
        self._nodes[row] = node
        if old.images is not node.images:
            self._images.put(row, node.images)
        self._write_allocatable(row, node)
        self._touch(row)

    def left_out(self, node: ClusterNode) -> tuple[str, ...]:
        """Return the resources of a node that have no column, as the cluster has too many kinds.

        A pod that requests one fits nowhere.
        """
        known = self._placement.resources
        if len(known) < MAX_RESOURCES:
            return ()
        return tuple([name for name, _ in node.allocatable if name not in known])

    def remove_node(self, name: str) -> None:
        """Forget a node; the last row takes its place. One that is not known is none."""
        row = self._rows.pop(name, None)
        if row is None:
            return
        pods = self._placement.clear(row)
        if pods:  # a node that comes back still has them, and the watch does not send them again
            self._waiting[name] = {pod.key: pod for pod in pods}
        last = len(self._nodes) - 1
        self._placement.drop_row(row)
        self._images.drop_row(row)
        for column in (self._nodes, self._allocatable, self._usage, self._generation):
            if row != last:
                column[row] = column[last]
            column.pop()
        if row != last:
            self._rows[self._nodes[row].name] = row
            self._touch(row)
        self._traits = self._view = None

    def put_pod(self, pod: ClusterPod, key: str = "") -> None:
        """Take over a pod that was added or modified, on whichever node it was before.

        key: the pod's, where the caller has it already: one string for all tables that have it.
        """
        key = key or pod.key
        old = self._pods.get(key)
        if old == pod:
            return
        self._pods[key] = pod
        # Otherwise a pod without a node leaves the view as it is: with a new one, each plugin would
        # look for rows that have changed, though none has.
        if self._account.put(pod, key):
            self._view = None
        row = self._rows.get(pod.node)
        if old is not None:
            if row is not None and old.node == pod.node:
                self._placement.replace(row, old, pod)
                self._touch(row)
                return
            self._displace(old)
        if row is not None:
            self._placement.add(row, pod)
            self._touch(row)
        elif pod.node:
            self._waiting.setdefault(pod.node, {})[key] = pod

    def remove_pod(self, key: str, uid: str) -> None:
        """Forget a pod, unless another of its name has taken its place already."""
        old = self._pods.get(key)
        if old is not None and old.uid == uid:
            del self._pods[key]
            if self._account.remove(key):
                self._view = None
            self._displace(old)

    @property
    def account(self) -> FrozenAccount:
        """The account as it is now; see View.account."""
        return self._account.freeze()

    def keep_account(self, kind: AccountKind) -> None:
        """Keep an account of what pods hold; each view has it from now on."""
        self._account.keep(kind, self._pods.values())
        self._view = None

    def unread_holdings(self, kind: AccountKind) -> Set[str]:
        """namespace/name of the pods of which an account cannot say what they hold."""
        return self._account.unread(kind)

    def set_usage(self, node: str, values: Sequence[float]) -> None:
        """Write the usage columns of a node; NaN where a value is not known.

        What is said about a node that is not known is dropped.
        """
        row = self._rows.get(node)
        if row is not None:
            self._usage[row] = values
            self._touch(row)

    def put_claim(self, claim: Claim) -> None:
        self._claims.put(claim.key, claim)
        self._view = None

    def remove_claim(self, key: str) -> None:
        self._claims.drop(key)
        self._view = None

    def put_volume(self, volume: Volume) -> None:
        self._volumes.put(volume.key, volume)
        self._view = None

    def remove_volume(self, key: str) -> None:
        self._volumes.drop(key)
        self._view = None

    def put_namespace(self, namespace: ClusterNamespace) -> None:
        self._namespaces.put(namespace.key, namespace)
        self._view = None

    def remove_namespace(self, key: str) -> None:
        self._namespaces.drop(key)
        self._view = None

    def view(self) -> View:
        """The cluster as it is now. Between two changes it is the same one."""
        if self._view is None:
            nodes = self._nodes.freeze()
            if self._traits is None:
                self._traits = Traits(nodes)
            self._view = View(
                traits=self._traits,
                nodes=nodes,
                allocatable=self._allocatable.freeze(),
                usage=self._usage.freeze(),
                generation=self._generation.freeze(),
                placement=self._placement.freeze(),
                claims=self._claims.freeze(),
                volumes=self._volumes.freeze(),
                namespaces=self._namespaces.freeze(),
                pod_counts=self._pod_counts,
                images=self._images.freeze(),
                account=self._account.freeze(),
            )
        return self._view

    def _append(self, node: ClusterNode) -> None:
        row = self._rows[node.name] = len(self._nodes)
        self._nodes.append(node)
        self._allocatable.append(0)
        self._write_allocatable(row, node)
        self._usage.append(math.nan)
        self._generation.append(0)
        self._placement.append_row()
        self._images.append(node.images)
        for pod in self._waiting.pop(node.name, {}).values():
            self._placement.add(row, pod)
        self._traits = None
        self._touch(row)

    def _displace(self, pod: ClusterPod) -> None:
        """Take a pod from where it is: a row, or those that wait."""
        row = self._rows.get(pod.node)
        if row is not None:
            self._placement.remove(row, pod)
            self._touch(row)
            return
        waiting = self._waiting.get(pod.node)
        if waiting is not None:
            del waiting[pod.key]
            if not waiting:
                del self._waiting[pod.node]

    def _provide(self, node: ClusterNode) -> None:
        """Add a column for each new resource of a node, up to MAX_RESOURCES columns in total."""
        known = self._placement.resources
        new = [name for name, _ in node.allocatable if name not in known]
        new = new[: MAX_RESOURCES - len(known)]
        if not new:
            return
        resources = {**known, **{name: len(known) + at for at, name in enumerate(new)}}
        self._placement.widen(resources)
        narrow, self._allocatable = self._allocatable, Column(np.int64, len(resources))
        for row in range(len(narrow)):
            self._allocatable.append(0)
            self._allocatable.writable(row)[: len(known)] = narrow[row]
        self._view = None

    def _write_allocatable(self, row: int, node: ClusterNode) -> None:
        amounts = self._allocatable.writable(row)
        amounts[:] = 0
        for name, amount in node.allocatable:
            column = self._placement.resources.get(name)
            if column is not None:
                amounts[column] = amount

    def _touch(self, row: int) -> None:
        self._changes += 1
        self._generation[row] = self._changes
        self._view = None


def _same_traits(one: ClusterNode, other: ClusterNode) -> bool:
    return (
        one.labels == other.labels
        and one.taints == other.taints
        and one.unschedulable == other.unschedulable
        and one.ready == other.ready
    )


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Table(Generic[T]):
    """The functions that read and write the objects of one kind."""

    get: Callable[[str], T | None]  # by key
    put: Callable[[T], None]
    remove: Callable[[str, str], None]  # key and uid; "" for the uid is any
    keys: Callable[[], Iterable[str]]


class ClusterState:
    """All objects that were put and not removed, each kind in its place. Belongs to one thread.

    Fed by koord.kube's lists and watches, or from a dump; either way the same state.
    """

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self.workloads = Workloads()
        self.services = ServiceTable()
        self.storage = StorageObjects()
        self.reports: dict[str, UsageReport] = {}  # NodeMetrics by node, of deleted nodes too
        self.budgets: dict[str, DisruptionBudget] = {}  # by namespace/name
        self.priority_classes: dict[str, PriorityClass] = {}  # by name
        snapshot = self.snapshot
        self._tables: dict[ObjectKind[Any], _Table[Any]] = {
            cluster_kinds.NODE: _Table(
                snapshot.node,
                snapshot.put_node,
                lambda key, _: snapshot.remove_node(key),
                snapshot.node_names,
            ),
            cluster_kinds.POD: _Table(
                snapshot.pod, self._put_pod, self._remove_pod, snapshot.pod_keys
            ),
            storage.CLAIM: _Table(
                snapshot.claim,
                snapshot.put_claim,
                lambda key, _: snapshot.remove_claim(key),
                snapshot.claim_keys,
            ),
            storage.VOLUME: _Table(
                snapshot.volume,
                self._put_volume,
                lambda key, _: self._remove_volume(key),
                snapshot.volume_names,
            ),
            cluster_kinds.NAMESPACE: _Table(
                snapshot.namespace,
                snapshot.put_namespace,
                lambda key, _: snapshot.remove_namespace(key),
                snapshot.namespace_names,
            ),
            cluster_kinds.SERVICE: _Table(
                self.services.get,
                self.services.put,
                lambda key, _: self.services.remove(key),
                self.services.keys,
            ),
            cluster_kinds.NODE_METRIC: _in(self.reports),
            storage.STORAGE_CLASS: _Table(
                self.storage.classes.get,
                self.storage.put_class,
                lambda key, _: self.storage.drop_class(key),
                lambda: self.storage.classes,
            ),
            storage.CSI_NODE: _Table(
                self.storage.nodes.get,
                self.storage.put_node,
                lambda key, _: self.storage.drop_node(key),
                lambda: self.storage.nodes,
            ),
            storage.CSI_DRIVER: _in(self.storage.drivers),
            storage.STORAGE_CAPACITY: _Table(
                self.storage.capacities.get,
                lambda one: self.storage.capacities.put(one.key, one),
                lambda key, _: self.storage.capacities.drop(key),
                self.storage.capacities.keys,
            ),
            storage.VOLUME_ATTACHMENT: _Table(
                self.storage.attachments.get,
                self.storage.put_attachment,
                lambda key, _: self.storage.drop_attachment(key),
                lambda: self.storage.attachments,
            ),
            cluster_kinds.BUDGET: _in(self.budgets),
            cluster_kinds.PRIORITY_CLASS: _in(self.priority_classes),
            **{kind: self._workload_table(kind) for kind in cluster_kinds.WORKLOADS},
        }

    @property
    def kinds(self) -> Collection[ObjectKind[Any]]:
        """The kinds that have a place."""
        return self._tables.keys()

    def view(self) -> View:
        """The cluster as it is now; see Snapshot.view."""
        return self.snapshot.view()

    @property
    def account(self) -> FrozenAccount:
        """Resources that pods hold now, at less cost than in a view of all."""
        return self.snapshot.account

    def keep_account(self, kind: AccountKind) -> None:
        """Keep an account of what pods hold; see Snapshot.keep_account."""
        self.snapshot.keep_account(kind)

    def pod(self, key: str) -> ClusterPod | None:
        """A pod by namespace/name, wherever it is; None: not known."""
        return self.snapshot.pod(key)

    def pods_of_node(self, name: str) -> tuple[ClusterPod, ...]:
        """The pods of a node, finished ones too; of a node that is not known none."""
        view = self.view()
        row = view.row(name)
        return () if row is None else view.pods(row)

    def nodes(self) -> list[ClusterNode]:
        """All nodes, by name."""
        view = self.view()
        return sorted((view.node(row) for row in range(len(view))), key=lambda node: node.name)

    def get(self, kind: ObjectKind[T], key: str) -> T | None:
        """An object by its key; None: not known."""
        found: T | None = self._tables[kind].get(key)
        return found

    def put(self, kind: ObjectKind[T], item: T) -> None:
        """Take over an object that was added or modified."""
        self._tables[kind].put(item)

    def left_out(self, item: object) -> tuple[str, ...]:
        """Return what of an object that was put is not kept, for people."""
        if not isinstance(item, ClusterNode):
            return ()
        return tuple(
            f"allocatable: {name}: the cluster has {MAX_RESOURCES} kinds of resources"
            for name in self.snapshot.left_out(item)
        )

    def remove(self, kind: ObjectKind[Any], key: str, uid: str = "") -> None:
        """Forget an object; of a pod with another uid nothing is forgotten."""
        self._tables[kind].remove(key, uid)

    def keys(self, kind: ObjectKind[Any]) -> Iterable[str]:
        """The keys of all objects of a kind."""
        return self._tables[kind].keys()

    def _put_pod(self, pod: ClusterPod) -> None:
        key = pod.key
        old = self.snapshot.pod(key)
        if old is not None and old.owners != pod.owners:
            self.workloads.remove_pod(old)
        self.snapshot.put_pod(pod, key)
        self.workloads.put_pod(pod, key)

    def _remove_pod(self, key: str, uid: str) -> None:
        old = self.snapshot.pod(key)
        if old is not None and uid in ("", old.uid):
            self.workloads.remove_pod(old)
            self.snapshot.remove_pod(key, old.uid)

    def _put_volume(self, volume: Volume) -> None:
        self.storage.put_volume(self.snapshot.volume(volume.name), volume)
        self.snapshot.put_volume(volume)

    def _remove_volume(self, key: str) -> None:
        self.storage.drop_volume(self.snapshot.volume(key))
        self.snapshot.remove_volume(key)

    def _workload_table(self, kind: ObjectKind[Workload]) -> _Table[Workload]:
        workloads, name = self.workloads, kind.name
        return _Table(
            lambda key: workloads.get(name, key),
            workloads.put,
            lambda key, _: workloads.remove(name, key),
            lambda: workloads.keys(name),
        )


def _in(table: dict[str, Any]) -> _Table[Any]:
    """A table that is a dict of objects by their key."""

    def put(item: Any) -> None:
        table[item.key] = item

    return _Table(table.get, put, lambda key, _: table.pop(key, None), lambda: table)
