"""Storage: claims, volumes, classes and CSI drivers as facts, and an index of them."""

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import TypeVar

from msgspec import Struct

from koord.cluster.columns import Shards
from koord.cluster.facts import ClusterPod, NodeTerm, Selector

NO_LABELS: Mapping[str, str] = MappingProxyType({})
BOUND, AVAILABLE, LOST = "Bound", "Available", "Lost"  # phases
READ_WRITE_ONCE_POD = "ReadWriteOncePod"
NO_PROVISIONER = "kubernetes.io/no-provisioner"  # of classes whose volumes people make


class Claim(Struct, frozen=True):
    """A persistent volume claim."""

    namespace: str
    name: str
    volume: str = ""  # "": it is bound to none
    storage_class: str = ""  # "": it names none
    uid: str = ""
    access_modes: tuple[str, ...] = ()
    request: int | None = None  # None: it does not say how much
    selector: Selector | None = None  # of labels of volumes; None: any
    is_block: bool = False  # it wants a device, not a file system
    attributes_class: str = ""  # "": it names none
    phase: str = ""
    bind_completed: bool = False  # the volume controller has done its part
    selected_node: str = ""  # for which a volume is to be made; "": for none
    deleting: bool = False
    owner_pod: str = ""  # uid of the pod that it was made for; "": for none
    resource_version: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def fully_bound(self) -> bool:
        """Whether nothing is left to be done before a pod can use it."""
        return bool(self.volume) and self.bind_completed

    def is_for(self, pod: ClusterPod) -> bool:
        """Whether it was made for a pod's ephemeral volume."""
        return bool(pod.uid) and self.owner_pod == pod.uid and self.namespace == pod.namespace


class ClaimReference(Struct, frozen=True):
    """The claim that a volume is bound to, or kept for."""

    namespace: str
    name: str
    uid: str = ""  # "": any claim of this name

    def means(self, claim: Claim) -> bool:
        """Source: Kubernetes, component-helpers volume.IsVolumeBoundToClaim."""
        if (self.namespace, self.name) != (claim.namespace, claim.name):
            return False
        return self.uid in ("", claim.uid)


class Volume(Struct, frozen=True):
    """A persistent volume."""

    name: str
    node_terms: tuple[NodeTerm, ...] | None = None  # nodes that can reach it; None: all of them
    uid: str = ""
    storage_class: str = ""
    capacity: int = 0
    access_modes: tuple[str, ...] = ()
    is_block: bool = False
    attributes_class: str = ""
    phase: str = ""
    claim: ClaimReference | None = None
    labels: Mapping[str, str] = NO_LABELS
    driver: str = ""  # the CSI driver, also of what is migrated to one; "": none
    handle: str = ""  # the driver's name of it
    deleting: bool = False
    resource_version: str = ""

    @property
    def key(self) -> str:
        return self.name


class StorageClass(Struct, frozen=True):
    """A storage class."""

    name: str
    provisioner: str = ""
    waits_for_consumer: bool | None = False  # None: it does not say when volumes are bound
    topologies: tuple[NodeTerm, ...] | None = None  # nodes volumes are made for; None: all of them

    @property
    def key(self) -> str:
        return self.name

    @property
    def provisions(self) -> bool:
        """Whether it makes volumes."""
        return self.provisioner not in ("", NO_PROVISIONER)


class NodeDriver(Struct, frozen=True):
    """A CSI driver on a node."""

    name: str
    most_volumes: int | None = None  # None: there is no limit
    topology_keys: tuple[str, ...] = ()


class CsiNode(Struct, frozen=True):
    """The CSI drivers of a node."""

    name: str
    drivers: tuple[NodeDriver, ...] = ()

    @property
    def key(self) -> str:
        return self.name

    def driver(self, name: str) -> NodeDriver | None:
        return next((one for one in self.drivers if one.name == name), None)


class CsiDriver(Struct, frozen=True):
    """A CSI driver."""

    name: str
    tracks_capacity: bool = False  # where it can make volumes is in StorageCapacity objects

    @property
    def key(self) -> str:
        return self.name


class StorageCapacity(Struct, frozen=True):
    """The capacity that a driver can still provide for a storage class on some nodes."""

    namespace: str
    name: str
    storage_class: str
    nodes: Selector | None = None  # by labels; None: it can be reached from none
    capacity: int | None = None  # None: not known
    largest_volume: int | None = None  # None: not known

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def limit(self) -> int | None:
        """The largest volume that can be made; None: none at all."""
        return self.capacity if self.largest_volume is None else self.largest_volume


class VolumeAttachment(Struct, frozen=True):
    """A volume that is attached to a node, or is to be."""

    name: str
    driver: str
    node: str
    volume: str = ""  # "": it is defined in a pod

    @property
    def key(self) -> str:
        return self.name


T = TypeVar("T")


class StorageObjects:
    """All storage objects except claims and volumes, plus the volumes of a class.

    Belongs to one thread.
    """

    def __init__(self) -> None:
        self.classes_version = 0  # grows with each change of the classes
        self.nodes_version = 0  # of the nodes
        self.attachments_version = 0
        self.classes: dict[str, StorageClass] = {}
        self.nodes: dict[str, CsiNode] = {}
        self.drivers: dict[str, CsiDriver] = {}
        self.capacities: Shards[StorageCapacity] = Shards()  # by namespace/name
        self.attachments: dict[str, VolumeAttachment] = {}
        self._moved: dict[str, int] = {}  # by node: version of its last change
        self._attached: dict[str, dict[str, VolumeAttachment]] = {}  # by node, by name
        self._volumes: dict[str, dict[str, Volume]] = {}  # by class, by name

    def volumes_of(self, storage_class: str) -> Collection[Volume]:
        """The volumes of a class; of "" those that have none."""
        return self._volumes.get(storage_class, {}).values()

    def attached_to(self, node: str) -> Collection[VolumeAttachment]:
        """Attachments to a node."""
        return self._attached.get(node, {}).values()

    def attached_since(self, version: int) -> list[str]:
        """Nodes whose attachments have changed since a version of them."""
        if version == self.attachments_version:
            return []
        return [node for node, changed in self._moved.items() if changed > version]

    def capacities_of(self, storage_class: str) -> Iterator[StorageCapacity]:
        """Return the capacities of a storage class."""
        found = map(self.capacities.get, self.capacities.keys())
        return (one for one in found if one is not None and one.storage_class == storage_class)

    def put_volume(self, old: Volume | None, volume: Volume) -> None:
        """Take over a volume; old is what it was before."""
        self.drop_volume(old)
        self._volumes.setdefault(volume.storage_class, {})[volume.name] = volume

    def drop_volume(self, old: Volume | None) -> None:
        """Forget a volume; None is none."""
        if old is not None:
            _drop(self._volumes, old.storage_class, old.name)

    def put_class(self, storage_class: StorageClass) -> None:
        """Take over a class."""
        self.classes[storage_class.name] = storage_class
        self.classes_version += 1

    def drop_class(self, name: str) -> None:
        """Forget a class; one that is not known is none the less forgotten."""
        self.classes.pop(name, None)
        self.classes_version += 1

    def put_node(self, node: CsiNode) -> None:
        """Take over the drivers of a node."""
        self.nodes[node.name] = node
        self.nodes_version += 1

    def drop_node(self, name: str) -> None:
        """Forget the drivers of a node; one that is not known is none the less forgotten."""
        self.nodes.pop(name, None)
        self.nodes_version += 1

    def put_attachment(self, attachment: VolumeAttachment) -> None:
        """Take over an attachment."""
        self.drop_attachment(attachment.name)
        self.attachments[attachment.name] = attachment
        self._attached.setdefault(attachment.node, {})[attachment.name] = attachment
        self._move(attachment.node)

    def drop_attachment(self, name: str) -> None:
        """Forget an attachment; one that is not known is none the less forgotten."""
        old = self.attachments.pop(name, None)
        if old is not None:
            _drop(self._attached, old.node, name)
            self._move(old.node)

    def _move(self, node: str) -> None:
        self.attachments_version += 1
        self._moved[node] = self.attachments_version


def _drop(table: dict[str, dict[str, T]], group: str, name: str) -> None:
    """Take an object out of its group, and the group away when it is empty."""
    members = table.get(group, {})
    members.pop(name, None)
    if not members:
        table.pop(group, None)
