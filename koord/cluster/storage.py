"""Storage: claims, volumes, classes and CSI drivers as facts, their kinds, and an index of them."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from sys import intern
from types import MappingProxyType
from typing import TypeVar

from msgspec import Raw, Struct

from koord.api.labelselector import Requirement
from koord.api.pod import amount
from koord.cluster import wire
from koord.cluster.columns import Shards
from koord.cluster.decoder import ObjectKind
from koord.cluster.facts import ClusterPod, NodeTerm, Selector
from koord.cluster.lenient_decoding import DecodingFaults, LenientDecoder
from koord.cluster.pod_specs import SharedSpecs
from koord.cluster.selectors import read_node_terms, read_selector
from koord.cluster.wire import LabelSelector, Metadata
from koord.util.errors import InvalidObject

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


BIND_COMPLETED = "pv.kubernetes.io/bind-completed"  # annotations: of claims
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"  # of volumes
SELECTED_NODE = "volume.kubernetes.io/selected-node"  # of claims
_OLD_CLASS = "volume.beta.kubernetes.io/storage-class"  # an annotation; it wins over the spec's
MAX_SIZE = 2**62  # bytes; sums of a few stay below 64 bits

NOTHING_MATCHES: Selector = (Requirement("", "In", ()),)
_SELECTOR: LenientDecoder[LabelSelector] = LenientDecoder("selector", LabelSelector)
_NODE_AFFINITY: LenientDecoder[wire.VolumeAffinity] = LenientDecoder(
    "nodeAffinity", wire.VolumeAffinity
)

MIGRATED: Mapping[str, str] = {
    "aws_elastic_block_store": "ebs.csi.aws.com",
    "gce_persistent_disk": "pd.csi.storage.gke.io",
    "azure_disk": "disk.csi.azure.com",
    "cinder": "cinder.csi.openstack.org",
    "portworx_volume": "pxd.portworx.com",
}
"""Kinds of volumes that Kubernetes hands to CSI drivers. Source: csi-translation-lib."""


def _read_claim(found: wire.PersistentVolumeClaim, _: SharedSpecs, faults: DecodingFaults) -> Claim:
    meta, spec = found.metadata, found.spec or wire.ClaimSpec()
    namespace = intern(meta.namespace or "default")
    annotations = meta.annotations or {}
    requests = (spec.resources and spec.resources.requests) or {}
    return Claim(
        namespace,
        meta.name,
        spec.volume_name or "",
        _class_of(meta, spec.storage_class_name),
        uid=meta.uid or "",
        access_modes=_interned(spec.access_modes),
        request=_size(requests.get("storage"), faults, unread=MAX_SIZE),
        selector=_selector(spec.selector, faults),
        is_block=spec.volume_mode == "Block",
        attributes_class=intern(spec.volume_attributes_class_name or ""),
        phase=intern((found.status or wire.Phase()).phase or ""),
        bind_completed=BIND_COMPLETED in annotations,
        selected_node=intern(annotations.get(SELECTED_NODE, "")),
        deleting=meta.deletion_timestamp is not None,
        owner_pod=next(
            (
                one.uid or ""
                for one in meta.owner_references or ()
                if one.kind == "Pod" and one.controller
            ),
            "",
        ),
        resource_version=meta.resource_version or "",
    )


def _read_volume(found: wire.PersistentVolume, _: SharedSpecs, faults: DecodingFaults) -> Volume:
    meta, spec = found.metadata, found.spec or wire.VolumeSpec()
    terms = _NODE_AFFINITY.read(spec.node_affinity, own := DecodingFaults())
    required = None if terms is None else terms.required
    faults.take(own)
    reference = spec.claim_ref
    driver, handle = _driver_of(spec)
    return Volume(
        meta.name,
        () if own else None if required is None else read_node_terms(required),
        uid=meta.uid or "",
        storage_class=_class_of(meta, spec.storage_class_name),
        capacity=_size((spec.capacity or {}).get("storage"), faults) or 0,
        access_modes=_interned(spec.access_modes),
        is_block=spec.volume_mode == "Block",
        attributes_class=intern(spec.volume_attributes_class_name or ""),
        phase=intern((found.status or wire.Phase()).phase or ""),
        claim=None
        if reference is None
        else ClaimReference(
            intern(reference.namespace or ""), reference.name or "", reference.uid or ""
        ),
        labels=MappingProxyType(meta.labels) if meta.labels else NO_LABELS,
        driver=intern(driver),
        handle=handle,
        deleting=meta.deletion_timestamp is not None,
        resource_version=meta.resource_version or "",
    )


def _driver_of(spec: wire.VolumeSpec) -> tuple[str, str]:
    """The CSI driver of a volume, and its name of the volume; "" where there is none."""
    if spec.csi is not None:
        return spec.csi.driver, spec.csi.volume_handle
    for kind, driver in MIGRATED.items():
        source: wire.InTreeVolumeSource | None = getattr(spec, kind)
        if source is not None:
            return driver, source.volume_id or source.pd_name or source.disk_uri or ""
    return "", ""


def _read_class(found: wire.StorageClass, _: SharedSpecs, faults: DecodingFaults) -> StorageClass:
    mode = found.volume_binding_mode
    return StorageClass(
        found.metadata.name,
        intern(found.provisioner or ""),
        None if mode is None else mode == "WaitForFirstConsumer",
        _topologies(found.allowed_topologies) if found.allowed_topologies else None,
    )


def _topologies(found: Iterable[wire.TopologyTerm]) -> tuple[NodeTerm, ...]:
    """The terms that some node can match: one that is empty, or wants no value, matches none.

    Source: Kubernetes, component-helpers corev1.MatchTopologySelectorTerms.
    """
    return tuple(
        NodeTerm(tuple(Requirement(one.key, "In", tuple(one.values or ())) for one in expressions))
        for term in found
        if (expressions := term.match_label_expressions) and all(one.values for one in expressions)
    )


def _read_csi_node(found: wire.CsiNode, _: SharedSpecs, faults: DecodingFaults) -> CsiNode:
    drivers = (found.spec or wire.CsiNodeSpec()).drivers or ()
    return CsiNode(
        found.metadata.name,
        tuple(
            NodeDriver(
                intern(one.name),
                None if one.allocatable is None else one.allocatable.count,
                _interned(one.topology_keys),
            )
            for one in drivers
        ),
    )


def _read_csi_driver(found: wire.CsiDriver, _: SharedSpecs, faults: DecodingFaults) -> CsiDriver:
    return CsiDriver(
        found.metadata.name, bool((found.spec or wire.CsiDriverSpec()).storage_capacity)
    )


def _read_capacity(
    found: wire.CsiStorageCapacity, _: SharedSpecs, faults: DecodingFaults
) -> StorageCapacity:
    meta = found.metadata
    namespace = intern(meta.namespace or "default")
    return StorageCapacity(
        namespace,
        meta.name,
        intern(found.storage_class_name),
        _selector(found.node_topology, faults),
        _size(found.capacity, faults),
        _size(found.maximum_volume_size, faults),
    )


def _read_attachment(
    found: wire.VolumeAttachment, _: SharedSpecs, faults: DecodingFaults
) -> VolumeAttachment:
    spec = found.spec
    source = spec.source or wire.AttachmentSource()
    return VolumeAttachment(
        found.metadata.name,
        intern(spec.attacher),
        intern(spec.node_name),
        source.persistent_volume_name or "",
    )


def _class_of(meta: Metadata, name: str | None) -> str:
    """Source: Kubernetes, component-helpers volume.GetPersistentVolumeClaimClass."""
    return intern((meta.annotations or {}).get(_OLD_CLASS, name or ""))


def _interned(found: Iterable[str] | None) -> tuple[str, ...]:
    return tuple(map(intern, found or ()))


def _selector(found: Raw, faults: DecodingFaults) -> Selector | None:
    """A selector; of one that cannot be read it is one that nothing matches."""
    own = DecodingFaults()
    try:
        selector = read_selector(_SELECTOR.read(found, own), "selector")
    except InvalidObject as err:
        own.note("selector", str(err))
    faults.take(own)
    return NOTHING_MATCHES if own else selector


def _size(found: str | float | None, faults: DecodingFaults, *, unread: int = 0) -> int | None:
    """Bytes of a quantity, rounded up, at most MAX_SIZE; None: there is none.

    unread: of a text that is no quantity.
    """
    if found is None:
        return None
    try:
        size = amount("storage", str(found))
    except ValueError as err:
        faults.note("storage", str(err))
        return unread
    counted = min(max(size, 0), MAX_SIZE)
    if counted != size:
        faults.note("storage", f"{found} counts as {counted}")
    return counted


CLAIM = ObjectKind("PersistentVolumeClaim", wire.PersistentVolumeClaim, _read_claim)
VOLUME = ObjectKind("PersistentVolume", wire.PersistentVolume, _read_volume)
STORAGE_CLASS = ObjectKind("StorageClass", wire.StorageClass, _read_class)
CSI_NODE = ObjectKind("CSINode", wire.CsiNode, _read_csi_node)
CSI_DRIVER = ObjectKind("CSIDriver", wire.CsiDriver, _read_csi_driver)
STORAGE_CAPACITY = ObjectKind("CSIStorageCapacity", wire.CsiStorageCapacity, _read_capacity)
VOLUME_ATTACHMENT = ObjectKind("VolumeAttachment", wire.VolumeAttachment, _read_attachment)
