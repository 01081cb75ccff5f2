"""Storage objects as msgspec reads them: as koord.cluster.wire."""

from msgspec import Raw

from koord.cluster.wire import NOTHING, Amounts, Metadata, NodeSelector, Wire


class ClaimResources(Wire):
    requests: Amounts | None = None


class ClaimSpec(Wire):
    volume_name: str | None = None
    storage_class_name: str | None = None
    access_modes: list[str] | None = None
    resources: ClaimResources | None = None
    selector: Raw = NOTHING
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None


class Phase(Wire):
    phase: str | None = None


class Claim(Wire):
    metadata: Metadata
    spec: ClaimSpec | None = None
    status: Phase | None = None


class VolumeAffinity(Wire):
    required: NodeSelector | None = None


class ClaimReference(Wire):
    namespace: str | None = None
    name: str | None = None
    uid: str | None = None


class Csi(Wire, rename="camel"):
    driver: str
    volume_handle: str


class InTree(Wire, rename={"volume_id": "volumeID", "pd_name": "pdName", "disk_uri": "diskURI"}):
    """A volume of a kind that is migrated to a CSI driver: the names that such kinds have."""

    volume_id: str | None = None
    pd_name: str | None = None
    disk_uri: str | None = None


class VolumeSpec(Wire):
    node_affinity: Raw = NOTHING
    storage_class_name: str | None = None
    capacity: Amounts | None = None
    access_modes: list[str] | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None
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
    key: str
    values: list[str] | None = None


class TopologyTerm(Wire):
    match_label_expressions: list[TopologyExpression] | None = None


class StorageClass(Wire):
    metadata: Metadata
    provisioner: str | None = None
    volume_binding_mode: str | None = None
    allowed_topologies: list[TopologyTerm] | None = None


class Count(Wire):
    count: int | None = None


class NodeDriver(Wire):
    name: str
    allocatable: Count | None = None
    topology_keys: list[str] | None = None


class CsiNodeSpec(Wire):
    drivers: list[NodeDriver] | None = None


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
    storage_class_name: str
    node_topology: Raw = NOTHING
    capacity: str | int | float | None = None
    maximum_volume_size: str | int | float | None = None


class AttachmentSource(Wire):
    persistent_volume_name: str | None = None


class AttachmentSpec(Wire):
    attacher: str
    node_name: str
    source: AttachmentSource | None = None


class VolumeAttachment(Wire):
    metadata: Metadata
    spec: AttachmentSpec
