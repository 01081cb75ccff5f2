"""The cluster as it is known: the snapshot, and what decisions need beside it."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from koord.cluster import decoding
from koord.cluster.decoder import Kind
from koord.cluster.decoding import UsageReport
from koord.cluster.facts import (
    ClusterNode,
    ClusterPod,
    DisruptionBudget,
    PriorityClass,
    Workload,
)
from koord.cluster.services import ServiceTable
from koord.cluster.snapshot import MOST_RESOURCES, Snapshot
from koord.cluster.storage import kinds as storage
from koord.cluster.storage.facts import Volume
from koord.cluster.storage.objects import StorageObjects
from koord.cluster.view import View
from koord.cluster.workloads import Workloads

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Table(Generic[T]):
    """Where the objects of one kind are kept."""

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
        self._tables: dict[Kind[Any], _Table[Any]] = {
            decoding.NODE: _Table(
                snapshot.node,
                snapshot.put_node,
                lambda key, _: snapshot.remove_node(key),
                snapshot.node_names,
            ),
            decoding.POD: _Table(snapshot.pod, self._put_pod, self._remove_pod, snapshot.pod_keys),
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
            decoding.NAMESPACE: _Table(
                snapshot.namespace,
                snapshot.put_namespace,
                lambda key, _: snapshot.remove_namespace(key),
                snapshot.namespace_names,
            ),
            decoding.SERVICE: _Table(
                self.services.get,
                self.services.put,
                lambda key, _: self.services.remove(key),
                self.services.keys,
            ),
            decoding.NODE_METRIC: _in(self.reports),
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
            decoding.BUDGET: _in(self.budgets),
            decoding.PRIORITY_CLASS: _in(self.priority_classes),
            **{kind: self._workload_table(kind) for kind in decoding.WORKLOADS},
        }

    @property
    def kinds(self) -> Collection[Kind[Any]]:
        """The kinds that have a place."""
        return self._tables.keys()

    def view(self) -> View:
        """The cluster as it is now; see Snapshot.view."""
        return self.snapshot.view()

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

    def get(self, kind: Kind[T], key: str) -> T | None:
        """An object by its key; None: not known."""
        found: T | None = self._tables[kind].get(key)
        return found

    def put(self, kind: Kind[T], item: T) -> None:
        """Take over an object that was added or modified."""
        self._tables[kind].put(item)

    def left_out(self, item: object) -> tuple[str, ...]:
        """Return what of an object that was put is not kept, for people."""
        if not isinstance(item, ClusterNode):
            return ()
        return tuple(
            f"allocatable: {name}: the cluster has {MOST_RESOURCES} kinds of resources"
            for name in self.snapshot.left_out(item)
        )

    def remove(self, kind: Kind[Any], key: str, uid: str = "") -> None:
        """Forget an object; of a pod with another uid nothing is forgotten."""
        self._tables[kind].remove(key, uid)

    def keys(self, kind: Kind[Any]) -> Iterable[str]:
        """The keys of all objects of a kind."""
        return self._tables[kind].keys()

    def _put_pod(self, pod: ClusterPod) -> None:
        old = self.snapshot.pod(pod.key)
        if old is not None and old.owners != pod.owners:
            self.workloads.remove_pod(old)
        self.snapshot.put_pod(pod)
        self.workloads.put_pod(pod)

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

    def _workload_table(self, kind: Kind[Workload]) -> _Table[Workload]:
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
