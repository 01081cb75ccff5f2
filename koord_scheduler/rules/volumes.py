"""Volumes of pods and nodes: claims, disks, and the volumes that are attached, by CSI driver."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import FrozenColumn, FrozenShards
from koord.cluster.facts import ClusterPod, Disk
from koord.cluster.storage import Claim, StorageObjects, Volume
from koord.cluster.view import View


def is_ephemeral(pod: ClusterPod, name: str) -> bool:
    """Whether a claim is that of an ephemeral volume, which is made for this pod.

    Source: Kubernetes, component-helpers ephemeral.VolumeClaimName.
    """
    return any(name == f"{pod.name}-{volume}" for volume in pod.spec.ephemeral_volumes)


def named_claims(pod: ClusterPod) -> tuple[str, ...]:
    """The claims that the pod names, without those that are made for it."""
    if not pod.spec.ephemeral_volumes:
        return pod.claims
    return tuple(name for name in pod.claims if not is_ephemeral(pod, name))


def uses_claim(pod: ClusterPod, claim: object) -> bool:
    """Whether it is one of the pod's claims."""
    return (
        isinstance(claim, Claim) and claim.namespace == pod.namespace and claim.name in pod.claims
    )


def missing(kind: str, name: str) -> str:
    """Return the message of Kubernetes for an object that is not there; kind is its resource."""
    return f'{kind} "{name}" not found'


_NONE: Mapping[int, int] = {}


class VolumePods:
    """Follows views, of what-ifs too, each at the cost of its differences to the one before.

    Belongs to one thread. Most pods have neither claims nor disks, and cost nothing here.
    """

    def __init__(self) -> None:
        self._column: FrozenColumn | None = None
        self._pods: dict[int, tuple[ClusterPod, ...]] = {}  # by row
        self._users: dict[str, dict[int, int]] = {}  # claim -> row -> how many pods there

    @property
    def rows(self) -> Mapping[int, tuple[ClusterPod, ...]]:
        """The pods with claims or disks, but finished ones, of each row that has some."""
        return self._pods

    def users(self, claim: str) -> Mapping[int, int]:
        """Rows with pods that use a claim, namespace/name, and how many do."""
        return self._users.get(claim, _NONE)

    def follow(self, view: View) -> list[int]:
        """Take over the pods of a view; return the rows whose pods are others, or that went."""
        column = view.volume_pods
        if column is self._column:
            return []
        rows = column.other_rows(self._column)
        for row in rows:
            self._count(row, self._pods.pop(row, ()), -1)
            found: tuple[ClusterPod, ...] = column[row] if row < len(column) else ()
            if found:
                self._pods[row] = found
                self._count(row, found, 1)
        self._column = column
        return rows

    def _count(self, row: int, pods: Iterable[ClusterPod], times: int) -> None:
        for pod in pods:
            for name in pod.claims:
                key = f"{pod.namespace}/{name}"
                rows = self._users.setdefault(key, {})
                rows[row] = rows.get(row, 0) + times
                if not rows[row]:
                    del rows[row]
                    if not rows:
                        del self._users[key]


VolumeId = tuple[str, str]
"""CSI driver, and its name of the volume; of one that is yet to be made the key of its claim."""

Volumes = Mapping[str, frozenset[str]]
"""Names of volumes by CSI driver."""

_PROVISIONERS = {
    "kubernetes.io/aws-ebs": "ebs.csi.aws.com",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/portworx-volume": "pxd.portworx.com",
}
_DISKS = {
    "awsElasticBlockStore": "ebs.csi.aws.com",
    "gcePersistentDisk": "pd.csi.storage.gke.io",
}
_UNMADE = "claim "  # begins the name of a volume that is yet to be made
NO_LIMIT = 2**62

K = TypeVar("K")


def volumes_of(pods: Iterable[ClusterPod], view: View, storage: StorageObjects) -> Volumes:
    """The volumes that pods need on their node."""
    return _by_driver(_ids(pods, view, storage))


def volumes_on(
    node: str, pods: Iterable[ClusterPod], view: View, storage: StorageObjects
) -> Volumes:
    """The volumes of a node: of its pods, and those that are attached to it without a pod."""
    users = [pod for pod in pods if not pod.finished]
    return _by_driver((*_ids(users, view, storage), *_attached(node, view, storage)))


def limit_on(node: str, driver: str, storage: StorageObjects) -> int | None:
    """How many volumes of a driver a node may have; None: any number."""
    found = storage.nodes.get(node)
    named = None if found is None else found.driver(driver)
    return None if named is None else named.most_volumes


class VolumeUse:
    """Volumes of all nodes of a view, followed from view to view at the cost of what differs.

    Belongs to one thread.
    """

    def __init__(self, storage: StorageObjects) -> None:
        self._storage = storage
        self._pods = VolumePods()
        self._claims: FrozenShards[Claim] | None = None
        self._volumes: FrozenShards[Volume] | None = None
        self._classes = self._attachments = -1  # versions
        self._due: set[int] = set()  # rows that have changed
        self._traits: object = None
        self._nodes: list[str] = []  # by row
        self._by_row: dict[int, Volumes] = {}
        self._rows: dict[VolumeId, set[int]] = {}  # by volume
        self._depends: dict[int, set[str]] = {}  # on volumes, by row
        self._dependent: dict[str, set[int]] = {}  # the same by name of the volume
        self._counts: dict[str, NDArray[np.int64]] = {}  # by driver
        self._limits: dict[str, NDArray[np.int64]] = {}  # by driver, of the nodes and version of
        self._limits_of: tuple[object, int] = None, -1

    def exceeds(self, wanted: Volumes, view: View) -> NDArray[np.bool_]:
        """Nodes that cannot have so many volumes more; shape (nodes,).

        A volume that a node has already is none more; a driver without a limit is not exceeded.
        """
        for _ in self.steps(view):
            pass
        exceeded = np.zeros(len(view), np.bool_)
        for driver, names in wanted.items():
            limits, counts = self._limits_by(driver, view), self._counts.get(driver)
            if counts is None:
                counts = np.zeros(len(view), np.int64)
            over = counts + len(names) > limits
            shared = {row for name in names for row in self._rows.get((driver, name), ())}
            for row in shared:
                more = len(names - self._by_row[row].get(driver, frozenset()))
                over[row] = more > 0 and counts[row] + more > limits[row]
            exceeded |= over
        return exceeded

    def steps(self, view: View) -> Iterator[None]:
        """Take over a view, in many small steps. What an unfinished one leaves the next one does.

        exceeds does it itself; only the first view takes long.
        """
        storage, rows = self._storage, self._due
        rows.update(self._renamed(view))
        rows.update(self._pods.follow(view))
        for key in view.claims.other_keys(self._claims):
            rows.update(self._pods.users(key))
        for name in view.volumes.other_keys(self._volumes):
            rows.update(self._dependent.get(name, ()))
        for node in storage.attached_since(self._attachments):
            row = view.row(node)
            if row is not None:
                rows.add(row)
        if self._classes != storage.classes_version:
            rows.update(self._pods.rows)
        self._claims, self._volumes = view.claims, view.volumes
        self._classes, self._attachments = storage.classes_version, storage.attachments_version
        while rows:
            row = rows.pop()
            self._drop(row)
            if row < len(view):
                self._take(row, view)
            yield

    def _renamed(self, view: View) -> set[int]:
        """Rows that are another node's than before; columns get the length of the view."""
        if view.traits is self._traits:
            return set()
        self._traits = view.traits
        before, self._nodes = self._nodes, list(view.traits.rows)
        pairs = enumerate(zip_longest(self._nodes, before))
        rows = {row for row, (name, last) in pairs if name != last}
        if len(before) != len(view):
            for driver, counts in self._counts.items():
                self._counts[driver] = np.zeros(len(view), np.int64)
                kept = min(len(view), len(counts))
                self._counts[driver][:kept] = counts[:kept]
        return rows

    def _drop(self, row: int) -> None:
        for driver, names in self._by_row.pop(row, {}).items():
            if row < len(self._counts[driver]):
                self._counts[driver][row] = 0
            for name in names:
                _discard(self._rows, (driver, name), row)
        for name in self._depends.pop(row, ()):
            _discard(self._dependent, name, row)

    def _take(self, row: int, view: View) -> None:
        node, pods = self._nodes[row], self._pods.rows.get(row, ())
        attached = self._storage.attached_to(node)
        if not pods and not attached:
            return
        claims = (view.claim(pod.namespace, name) for pod in pods for name in pod.claims)
        names = {claim.volume for claim in claims if claim is not None}
        names.update(one.volume for one in attached)
        self._depends[row] = names
        for name in names:
            self._dependent.setdefault(name, set()).add(row)
        self._by_row[row] = volumes_on(node, pods, view, self._storage)
        for driver, found in self._by_row[row].items():
            if driver not in self._counts:
                self._counts[driver] = np.zeros(len(view), np.int64)
            self._counts[driver][row] = len(found)
            for name in found:
                self._rows.setdefault((driver, name), set()).add(row)

    def _limits_by(self, driver: str, view: View) -> NDArray[np.int64]:
        """How many volumes of a driver each node may have."""
        of = view.traits, self._storage.nodes_version
        if self._limits_of[0] is not of[0] or self._limits_of[1] != of[1]:
            self._limits, self._limits_of = {}, of
        found = self._limits.get(driver)
        if found is None:
            nodes = (view.node(row).name for row in range(len(view)))
            limits = (limit_on(name, driver, self._storage) for name in nodes)
            found = self._limits[driver] = np.fromiter(
                (NO_LIMIT if limit is None else limit for limit in limits), np.int64, len(view)
            )
        return found


def _discard(table: dict[K, set[int]], key: K, row: int) -> None:
    rows = table[key]
    rows.discard(row)
    if not rows:
        del table[key]


def _by_driver(found: Iterable[VolumeId]) -> Volumes:
    volumes: dict[str, set[str]] = {}
    for driver, name in found:
        volumes.setdefault(driver, set()).add(name)
    return {driver: frozenset(names) for driver, names in volumes.items()}


def _ids(pods: Iterable[ClusterPod], view: View, storage: StorageObjects) -> Iterator[VolumeId]:
    """The CSI volumes of pods; claims that are not there, and other volumes, have none."""
    for pod in pods:
        for name in pod.claims:
            claim = view.claim(pod.namespace, name)
            found = None if claim is None else _id_of(claim, view, storage)
            if found is not None:
                yield found
        yield from (_disk_id(disk) for disk in pod.spec.disks if disk.kind in _DISKS)


def _id_of(claim: Claim, view: View, storage: StorageObjects) -> VolumeId | None:
    volume = view.volume(claim.volume) if claim.volume else None
    if volume is not None:
        return (volume.driver, volume.handle) if volume.driver else None
    found = storage.classes.get(claim.storage_class)
    if found is None or not found.provisions:
        return None
    return _PROVISIONERS.get(found.provisioner, found.provisioner), f"{_UNMADE}{claim.key}"


def _disk_id(disk: Disk) -> VolumeId:
    return _DISKS[disk.kind], disk.name


def _attached(node: str, view: View, storage: StorageObjects) -> Iterator[VolumeId]:
    for one in storage.attached_to(node):
        volume = view.volume(one.volume) if one.volume else None
        if volume is not None and volume.driver:
            yield one.driver, volume.handle
