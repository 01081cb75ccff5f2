"""The snapshot: the cluster as it is known, changed by watch events, read through views."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from koord.cluster.census import Census
from koord.cluster.columns import Column, Shards
from koord.cluster.facts import ClusterNamespace, ClusterNode, ClusterPod
from koord.cluster.images import NodeImages
from koord.cluster.placement import Placement
from koord.cluster.storage.facts import Claim, Volume
from koord.cluster.view import Traits, View

MOST_RESOURCES = 128  # kinds of resources that the nodes of a cluster have together


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
        self._census = Census()
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
        if len(known) < MOST_RESOURCES:
            return ()
        return tuple([name for name, _ in node.allocatable if name not in known])

    def remove_node(self, name: str) -> None:
        """Forget a node; the last row takes its place. One that is not known is none."""
        row = self._rows.pop(name, None)
        if row is None:
            return
        pods = self._placement.clear(row)
        if pods:
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

    def put_pod(self, pod: ClusterPod) -> None:
        """Take over a pod that was added or modified, on whichever node it was before."""
        key = pod.key
        old = self._pods.get(key)
        if old == pod:
            return
        self._pods[key] = pod
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
            self._displace(old)

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
                census=self._census,
                images=self._images.freeze(),
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
        """Have a column for each resource of a node, as long as there is room for more of them."""
        known = self._placement.resources
        new = [name for name, _ in node.allocatable if name not in known]
        new = new[: MOST_RESOURCES - len(known)]
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
