"""The kinds of storage objects, and the facts that are kept of each."""

from collections.abc import Iterable, Mapping
from sys import intern
from types import MappingProxyType

from msgspec import Raw

from koord.api.labelselector import Requirement
from koord.api.pod import amount
from koord.cluster import wire
from koord.cluster.decoder import ObjectKind
from koord.cluster.facts import NodeTerm, Selector
from koord.cluster.lenient_decoding import DecodingFaults, LenientDecoder
from koord.cluster.pod_specs import SharedSpecs
from koord.cluster.selectors import read_node_terms, read_selector
from koord.cluster.storage import (
    NO_LABELS,
    Claim,
    ClaimReference,
    CsiDriver,
    CsiNode,
    NodeDriver,
    StorageCapacity,
    StorageClass,
    Volume,
    VolumeAttachment,
)
from koord.cluster.wire import LabelSelector, Metadata
from koord.util.errors import InvalidObject

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
