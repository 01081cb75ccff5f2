"""Storage objects as msgspec reads them: as koord.cluster.wire."""

from typing import Annotated

from msgspec import Meta

from koord.cluster.wire import (
    Amounts,
    LabelSelector,
    ManyOf,
    Metadata,
    Name,
    NodeSelector,
    Text,
    Texts,
    Wire,
)

Handle = Annotated[str, Meta(max_length=4096)]


class ClaimResources(Wire):
    requests: Amounts | None = None


class ClaimSpec(Wire):
    volume_name: Name | None = None
    storage_class_name: Name | None = None
    access_modes: Texts | None = None
    resources: ClaimResources | None = None
    selector: LabelSelector | None = None
    volume_mode: Text | None = None
    volume_attributes_class_name: Name | None = None


class Phase(Wire):
    phase: Text | None = None


class Claim(Wire):
    metadata: Metadata
    spec: ClaimSpec | None = None
    status: Phase | None = None


class VolumeAffinity(Wire):
    required: NodeSelector | None = None


class ClaimReference(Wire):
    namespace: Name | None = None
    name: Name | None = None
    uid: Name | None = None


class Csi(Wire, rename="camel"):
    driver: Name
    volume_handle: Handle


class InTree(Wire, rename={"volume_id": "volumeID", "pd_name": "pdName", "disk_uri": "diskURI"}):
    """A volume of a kind that is migrated to a CSI driver: the names that such kinds have."""

    volume_id: Handle | None = None
    pd_name: Handle | None = None
    disk_uri: Handle | None = None


class VolumeSpec(Wire):
    node_affinity: VolumeAffinity | None = None
    storage_class_name: Name | None = None
    capacity: Amounts | None = None
    access_modes: Texts | None = None
    volume_mode: Text | None = None
    volume_attributes_class_name: Name | None = None
    claim_ref: ClaimReference | None = None
    csi: Csi | None = None
    aws_elastic_block_store: InTree | None = None
    gce_persistent_disk: InTree | None = None
    azure_disk: InTree | None = None
    cinder: InTree | None = None
    portworx_volume: InTree | None = None


class Volume(Wire):
    metadata: Metadata
    spec: VolumeSpec | None = None
    status: Phase | None = None


class TopologyExpression(Wire):
    key: Text
    values: Texts | None = None


class TopologyTerm(Wire):
    match_label_expressions: ManyOf[TopologyExpression] | None = None


class StorageClass(Wire):
    metadata: Metadata
    provisioner: Text | None = None
    volume_binding_mode: Text | None = None
    allowed_topologies: ManyOf[TopologyTerm] | None = None


class Count(Wire):
    count: int | None = None


class NodeDriver(Wire):
    name: Name
    allocatable: Count | None = None
    topology_keys: Texts | None = None


class CsiNodeSpec(Wire):
    drivers: ManyOf[NodeDriver] | None = None


class CsiNode(Wire):
    metadata: Metadata
    spec: CsiNodeSpec | None = None


class CsiDriverSpec(Wire):
    storage_capacity: bool | None = None


class CsiDriver(Wire):
    metadata: Metadata
    spec: CsiDriverSpec | None = None


class StorageCapacity(Wire):
    metadata: Metadata
    storage_class_name: Name
    node_topology: LabelSelector | None = None
    capacity: Text | int | float | None = None
    maximum_volume_size: Text | int | float | None = None


class AttachmentSource(Wire):
    persistent_volume_name: Name | None = None


class AttachmentSpec(Wire):
    attacher: Name
    node_name: Name
    source: AttachmentSource | None = None


class VolumeAttachment(Wire):
    metadata: Metadata
    spec: AttachmentSpec
