"""The kinds of storage objects, and the facts that are kept of each."""

from collections.abc import Iterable, Mapping
from sys import intern
from types import MappingProxyType

from koord.api.labelselector import Requirement
from koord.api.pods.requests import amount
from koord.cluster.decoder import Kind
from koord.cluster.facts import NodeTerm
from koord.cluster.podspecs import Sharing
from koord.cluster.selectors import read_node_terms, read_selector
from koord.cluster.storage import wire
from koord.cluster.storage.facts import (
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
from koord.cluster.wire import Metadata
from koord.util.errors import InvalidObject

BIND_COMPLETED = "pv.kubernetes.io/bind-completed"  # annotations: of claims
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"  # of volumes
SELECTED_NODE = "volume.kubernetes.io/selected-node"  # of claims
_OLD_CLASS = "volume.beta.kubernetes.io/storage-class"  # an annotation; it wins over the spec's
LARGEST_SIZE = 2**62  # bytes; sums of a few stay below 64 bits

MIGRATED: Mapping[str, str] = {
    "aws_elastic_block_store": "ebs.csi.aws.com",
    "gce_persistent_disk": "pd.csi.storage.gke.io",
    "azure_disk": "disk.csi.azure.com",
    "cinder": "cinder.csi.openstack.org",
    "portworx_volume": "pxd.portworx.com",
}
"""Kinds of volumes that Kubernetes hands to CSI drivers. Source: csi-translation-lib."""


def _read_claim(found: wire.Claim, _: Sharing) -> Claim:
    meta, spec = found.metadata, found.spec or wire.ClaimSpec()
    namespace = intern(meta.namespace or "default")
    where = f"PersistentVolumeClaim {namespace}/{meta.name}"
    annotations = meta.annotations or {}
    requests = (spec.resources and spec.resources.requests) or {}
    return Claim(
        namespace,
        meta.name,
        spec.volume_name or "",
        _class_of(meta, spec.storage_class_name),
        uid=meta.uid or "",
        access_modes=_interned(spec.access_modes),
        request=_size(requests.get("storage"), where),
        selector=read_selector(spec.selector, where),
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


def _read_volume(found: wire.Volume, _: Sharing) -> Volume:
    meta, spec = found.metadata, found.spec or wire.VolumeSpec()
    where = f"PersistentVolume {meta.name}"
    terms = None if spec.node_affinity is None else spec.node_affinity.required
    reference = spec.claim_ref
    driver, handle = _driver_of(spec)
    return Volume(
        meta.name,
        None if terms is None else read_node_terms(terms),
        uid=meta.uid or "",
        storage_class=_class_of(meta, spec.storage_class_name),
        capacity=_size((spec.capacity or {}).get("storage"), where) or 0,
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
        source: wire.InTree | None = getattr(spec, kind)
        if source is not None:
            return driver, source.volume_id or source.pd_name or source.disk_uri or ""
    return "", ""


def _read_class(found: wire.StorageClass, _: Sharing) -> StorageClass:
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


def _read_csi_node(found: wire.CsiNode, _: Sharing) -> CsiNode:
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


def _read_csi_driver(found: wire.CsiDriver, _: Sharing) -> CsiDriver:
    return CsiDriver(
        found.metadata.name, bool((found.spec or wire.CsiDriverSpec()).storage_capacity)
    )


def _read_capacity(found: wire.StorageCapacity, _: Sharing) -> StorageCapacity:
    meta = found.metadata
    namespace = intern(meta.namespace or "default")
    where = f"CSIStorageCapacity {namespace}/{meta.name}"
    return StorageCapacity(
        namespace,
        meta.name,
        intern(found.storage_class_name),
        read_selector(found.node_topology, where),
        _size(found.capacity, where),
        _size(found.maximum_volume_size, where),
    )


def _read_attachment(found: wire.VolumeAttachment, _: Sharing) -> VolumeAttachment:
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


def _size(found: str | float | None, where: str) -> int | None:
    """Bytes of a quantity, rounded up; None: there is none."""
    if found is None:
        return None
    try:
        size = amount("storage", str(found))
    except ValueError as err:
        raise InvalidObject(f"{where}: storage", wanted="a quantity", found=found) from err
    if not 0 <= size <= LARGEST_SIZE:
        raise InvalidObject(f"{where}: storage", wanted=f"0 to {LARGEST_SIZE}", found=found)
    return size


CLAIM = Kind("PersistentVolumeClaim", wire.Claim, _read_claim)
VOLUME = Kind("PersistentVolume", wire.Volume, _read_volume)
STORAGE_CLASS = Kind("StorageClass", wire.StorageClass, _read_class)
CSI_NODE = Kind("CSINode", wire.CsiNode, _read_csi_node)
CSI_DRIVER = Kind("CSIDriver", wire.CsiDriver, _read_csi_driver)
STORAGE_CAPACITY = Kind("CSIStorageCapacity", wire.StorageCapacity, _read_capacity)
VOLUME_ATTACHMENT = Kind("VolumeAttachment", wire.VolumeAttachment, _read_attachment)
