"""API objects as msgspec decodes them: only the fields that are needed."""

from typing import Annotated, ClassVar

from msgspec import Meta, Raw, Struct

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]  # as Go has them
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Labels = dict[str, str]
Amounts = dict[str, str | int | float]
NULL = b"null"
NOTHING = Raw(NULL)


def is_given(found: Raw) -> bool:
    """Whether a field is there and not null."""
    return found is not NOTHING and bytes(found) != NULL


class Wire(Struct, rename="camel", gc=False):
    """Base of what is read and converted at once."""

    deciding: ClassVar[frozenset[str]] = frozenset()
    """Fields without which nothing can be said of the object: the API server could not have taken
    one of another type."""
    whole: ClassVar[bool] = False
    """Whether what is left of it would say something else when a part is missing."""


class OwnerReference(Wire):
    api_version: str | None = None
    kind: str | None = None
    name: str | None = None
    uid: str | None = None
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class Metadata(Wire):
    deciding = frozenset({"namespace", "uid", "deletion_timestamp"})

    name: Annotated[str, Meta(min_length=1)]
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    labels: Labels | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None


class Identity(Wire):
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None


class Identified(Wire):
    """The identity of an object that is otherwise unreadable."""

    metadata: Identity


class Container(Wire):
    name: str = ""
    image: Raw = NOTHING
    resources: Raw = NOTHING
    ports: Raw = NOTHING
    restart_policy: str | None = None


class ClaimSource(Wire):
    claim_name: str


class ImageSource(Wire):
    reference: str | None = None


class SchedulingGate(Wire):
    name: str


class PodVolume(Wire):
    name: str
    image: ImageSource | None = None
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: Raw = NOTHING
    empty_dir: Raw = NOTHING
    host_path: Raw = NOTHING
    gce_persistent_disk: Raw = NOTHING
    aws_elastic_block_store: Raw = NOTHING
    iscsi: Raw = NOTHING
    rbd: Raw = NOTHING


class WorkloadReference(Wire):
    name: str | None = None
    pod_group: str | None = None
    pod_group_replica_key: str | None = None


class PodSpecFields(Wire):
    deciding = frozenset({"node_name", "priority", "containers", "init_containers"})

    node_name: str | None = None
    scheduler_name: str | None = None
    priority: Int32 | None = None
    preemption_policy: str | None = None
    scheduling_gates: list[SchedulingGate] | None = None
    workload_ref: WorkloadReference | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    volumes: list[PodVolume] | None = None
    overhead: Raw = NOTHING
    resources: Raw = NOTHING
    tolerations: Raw = NOTHING
    node_selector: Raw = NOTHING
    affinity: Raw = NOTHING
    topology_spread_constraints: Raw = NOTHING
    resource_claims: Raw = NOTHING


class Waiting(Wire):
    reason: str | None = None


class Terminated(Wire):
    reason: str | None = None
    exit_code: Int32 | None = None


class ContainerState(Wire):
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(Wire):
    name: str = ""
    resources: Raw = NOTHING
    allocated_resources: Raw = NOTHING
    restart_count: Int32 | None = None
    state: ContainerState | None = None


class PodCondition(Wire):
    type: str
    status: str
    reason: str | None = None
    last_transition_time: str | None = None


class PodStatus(Wire):
    deciding = frozenset({"phase"})

    phase: str | None = None
    nominated_node_name: str | None = None
    qos_class: str | None = None
    reason: str | None = None
    start_time: str | None = None
    resize: str | None = None  # of Kubernetes 1.32 and older
    conditions: list[PodCondition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    ephemeral_container_statuses: list[ContainerStatus] | None = None


class Pod(Wire):
    deciding = frozenset({"spec", "status"})

    metadata: Metadata
    spec: PodSpecFields | None = None
    status: PodStatus | None = None


class Resources(Wire):
    requests: Amounts | None = None
    limits: Amounts | None = None


class ContainerPort(Wire, rename={"host_port": "hostPort", "host_ip": "hostIP"}):
    whole = True

    host_port: Int32 | None = None
    protocol: str | None = None
    host_ip: str | None = None


class DiskVolumeSource(
    Wire, rename={"volume_id": "volumeID", "pd_name": "pdName", "read_only": "readOnly"}
):
    """A disk in a pod: the fields of all its kinds."""

    whole = True

    pd_name: str | None = None
    volume_id: str | None = None
    iqn: str | None = None
    monitors: list[str] | None = None
    pool: str | None = None
    image: str | None = None
    read_only: bool | None = None


class Toleration(Wire):
    whole = True

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class SelectorExpression(Wire):
    key: str
    operator: str
    values: list[str] | None = None


class LabelSelector(Wire):
    whole = True

    match_labels: Labels | None = None
    match_expressions: list[SelectorExpression] | None = None


class NodeSelectorTerm(Wire):
    whole = True

    match_expressions: list[SelectorExpression] | None = None
    match_fields: list[SelectorExpression] | None = None


class NodeSelector(Wire):
    node_selector_terms: list[NodeSelectorTerm] | None = None


class PreferredSchedulingTerm(Wire):
    whole = True

    weight: Int64
    preference: NodeSelectorTerm


class PodAffinityTerm(Wire):
    whole = True

    topology_key: str
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None


class WeightedAffinityTerm(Wire):
    whole = True

    weight: Int64
    pod_affinity_term: PodAffinityTerm


class AffinityTerms(Wire):
    """Terms of a node affinity, or of a pod (anti-)affinity."""

    required_during_scheduling_ignored_during_execution: Raw = NOTHING
    preferred_during_scheduling_ignored_during_execution: Raw = NOTHING


class Affinity(Wire):
    node_affinity: AffinityTerms | None = None
    pod_affinity: AffinityTerms | None = None
    pod_anti_affinity: AffinityTerms | None = None


class TopologySpreadConstraint(Wire):
    whole = True

    topology_key: str
    max_skew: Int32
    when_unsatisfiable: str
    label_selector: LabelSelector | None = None
    min_domains: Int32 | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: list[str] | None = None


class Taint(Wire):
    whole = True

    key: str
    effect: str
    value: str | None = None


class NodeSpec(Wire):
    taints: Raw = NOTHING
    unschedulable: bool | None = None


class NodeCondition(Wire):
    type: str
    status: str


class NodeAddress(Wire):
    type: str | None = None
    address: str | None = None


class NodeStatus(Wire):
    deciding = frozenset({"allocatable"})

    allocatable: Amounts | None = None
    capacity: Amounts | None = None
    addresses: list[NodeAddress] | None = None
    conditions: list[NodeCondition] | None = None
    images: Raw = NOTHING


class NodeImage(Wire):
    names: list[str] | None = None
    size_bytes: Int64 | None = None


class Node(Wire):
    deciding = frozenset({"spec", "status"})

    metadata: Metadata
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


class NamedObject(Wire):
    metadata: Metadata


class PriorityClass(Wire):
    metadata: Metadata
    value: Int32 | None = None
    global_default: bool | None = None


class WorkloadSpec(Wire):
    replicas: Int32 | None = None
    selector: Raw = NOTHING


class Workload(Wire):
    metadata: Metadata
    spec: WorkloadSpec | None = None


class ServiceSpec(Wire):
    selector: Labels | None = None


class Service(Wire):
    metadata: Metadata
    spec: ServiceSpec | None = None


class BudgetSpec(Wire):
    selector: Raw = NOTHING


class BudgetStatus(Wire):
    disruptions_allowed: Int32 | None = None
    disrupted_pods: dict[str, Raw] | None = None


class PodDisruptionBudget(Wire):
    metadata: Metadata
    spec: BudgetSpec | None = None
    status: BudgetStatus | None = None


class ResourceMap(Wire):
    resources: Amounts | None = None


class UsageByType(Wire):
    avg: ResourceMap | None = None
    p50: ResourceMap | None = None
    p90: ResourceMap | None = None
    p95: ResourceMap | None = None
    p99: ResourceMap | None = None


class Aggregated(Wire):
    duration: str | None = None
    usage: UsageByType | None = None


class NodeUsage(Wire):
    node_usage: ResourceMap | None = None
    system_usage: ResourceMap | None = None
    aggregated_node_usages: list[Aggregated] | None = None


class PodUsage(Wire):
    name: str
    namespace: str
    pod_usage: ResourceMap | None = None
    priority: str | None = None
    qos: str | None = None


class HostUsage(Wire):
    usage: ResourceMap | None = None
    priority: str | None = None


class ReclaimableMetric(Wire):
    resource: ResourceMap | None = None


class NodeMetricStatus(Wire):
    update_time: str | None = None
    node_metric: NodeUsage | None = None
    pods_metric: list[PodUsage] | None = None
    host_application_metric: list[HostUsage] | None = None
    prod_reclaimable_metric: ReclaimableMetric | None = None


class CollectPolicy(Wire):
    report_interval_seconds: Int64 | None = None


class NodeMetricSpec(Wire):
    metric_collect_policy: CollectPolicy | None = None


class NodeMetric(Wire):
    metadata: Metadata
    spec: NodeMetricSpec | None = None
    status: NodeMetricStatus | None = None


class PageMeta(Wire, rename={"resource_version": "resourceVersion", "continue_": "continue"}):
    resource_version: str | None = None
    continue_: str | None = None


class RawObjectList(Wire):
    """A page of a list: its items are read one by one."""

    metadata: PageMeta | None = None
    items: list[Raw] | None = None


class RawWatchEvent(Wire):
    """A watch event."""

    type: str
    object: Raw


class ErrorStatus(Wire):
    """The answer that an ERROR event carries."""

    code: Int32 | None = None


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


class PersistentVolumeClaim(Wire):
    metadata: Metadata
    spec: ClaimSpec | None = None
    status: Phase | None = None


class VolumeAffinity(Wire):
    required: NodeSelector | None = None


class ObjectReference(Wire):
    namespace: str | None = None
    name: str | None = None
    uid: str | None = None


class CsiVolumeSource(Wire, rename="camel"):
    driver: str
    volume_handle: str


class InTreeVolumeSource(
    Wire, rename={"volume_id": "volumeID", "pd_name": "pdName", "disk_uri": "diskURI"}
):
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
    claim_ref: ObjectReference | None = None
    csi: CsiVolumeSource | None = None
    aws_elastic_block_store: InTreeVolumeSource | None = None
    gce_persistent_disk: InTreeVolumeSource | None = None
    azure_disk: InTreeVolumeSource | None = None
    cinder: InTreeVolumeSource | None = None
    portworx_volume: InTreeVolumeSource | None = None


class PersistentVolume(Wire):
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


class VolumeLimit(Wire):
    count: int | None = None


class CsiNodeDriver(Wire):
    name: str
    allocatable: VolumeLimit | None = None
    topology_keys: list[str] | None = None


class CsiNodeSpec(Wire):
    drivers: list[CsiNodeDriver] | None = None


class CsiNode(Wire):
    metadata: Metadata
    spec: CsiNodeSpec | None = None


class CsiDriverSpec(Wire):
    storage_capacity: bool | None = None


class CsiDriver(Wire):
    metadata: Metadata
    spec: CsiDriverSpec | None = None


class CsiStorageCapacity(Wire):
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
