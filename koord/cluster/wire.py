"""API objects as msgspec reads them: only the fields that are needed, each list bounded.

Every field may be absent or null, as Go has it. A Raw is JSON that is read later, if at all.
"""

from typing import Annotated, TypeVar

from msgspec import Meta, Raw, Struct

_MANY = Meta(max_length=1024)  # more containers, terms, ports and so on than any object has
_TEXT = Meta(max_length=4096)  # characters

Text = Annotated[str, _TEXT]
Name = Annotated[str, Meta(max_length=253)]  # as Kubernetes bounds them
Texts = Annotated[list[Text], Meta(max_length=8192)]
Labels = Annotated[dict[Text, Text], _MANY]
Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]  # as Go has them
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Amounts = Annotated[dict[Text, Text | int | float], Meta(max_length=256)]
T = TypeVar("T")
ManyOf = Annotated[list[T], _MANY]
NULL = b"null"
NOTHING = Raw(NULL)


def given(found: Raw) -> bool:
    """Whether a field is there and not null."""
    return found is not NOTHING and bytes(found) != NULL


class Wire(Struct, rename="camel", gc=False):
    """Base of what is read and converted at once."""


class OwnerReference(Wire):
    kind: Name | None = None
    name: Name | None = None
    uid: Name | None = None
    controller: bool | None = None


class Metadata(Wire):
    name: Annotated[Name, Meta(min_length=1)]
    namespace: Name | None = None
    uid: Name | None = None
    resource_version: Text | None = None
    labels: Labels | None = None
    annotations: Annotated[dict[Text, str], _MANY] | None = None
    owner_references: ManyOf[OwnerReference] | None = None
    creation_timestamp: Text | None = None
    deletion_timestamp: Text | None = None


class Identity(Wire):
    name: Name | None = None
    namespace: Name | None = None
    uid: Name | None = None
    resource_version: Text | None = None


class Identified(Wire):
    """What is read of an object that cannot be read otherwise."""

    metadata: Identity


class Container(Wire):
    image: Raw = NOTHING
    resources: Raw = NOTHING
    ports: Raw = NOTHING
    restart_policy: Text | None = None


class ClaimSource(Wire):
    claim_name: Name


class ImageSource(Wire):
    reference: Text | None = None


class SchedulingGate(Wire):
    name: Name


class PodVolume(Wire):
    name: Name
    image: ImageSource | None = None
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: Raw = NOTHING
    empty_dir: Raw = NOTHING
    host_path: Raw = NOTHING
    gce_persistent_disk: Raw = NOTHING
    aws_elastic_block_store: Raw = NOTHING
    iscsi: Raw = NOTHING
    rbd: Raw = NOTHING


class Spec(Wire):
    node_name: Name | None = None
    scheduler_name: Name | None = None
    priority: Int32 | None = None
    preemption_policy: Text | None = None
    scheduling_gates: ManyOf[SchedulingGate] | None = None
    containers: ManyOf[Container] | None = None
    init_containers: ManyOf[Container] | None = None
    volumes: ManyOf[PodVolume] | None = None
    overhead: Raw = NOTHING
    resources: Raw = NOTHING
    tolerations: Raw = NOTHING
    node_selector: Raw = NOTHING
    affinity: Raw = NOTHING
    topology_spread_constraints: Raw = NOTHING
    resource_claims: Raw = NOTHING


class Waiting(Wire):
    reason: Text | None = None


class Terminated(Wire):
    reason: Text | None = None
    exit_code: Int32 | None = None


class ContainerState(Wire):
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(Wire):
    restart_count: Int32 | None = None
    state: ContainerState | None = None


class PodCondition(Wire):
    type: Text
    status: Text
    reason: Text | None = None
    last_transition_time: Text | None = None


class PodStatus(Wire):
    phase: Text | None = None
    nominated_node_name: Name | None = None
    qos_class: Text | None = None
    reason: Text | None = None
    start_time: Text | None = None
    conditions: ManyOf[PodCondition] | None = None
    container_statuses: ManyOf[ContainerStatus] | None = None
    init_container_statuses: ManyOf[ContainerStatus] | None = None
    ephemeral_container_statuses: ManyOf[ContainerStatus] | None = None


class Pod(Wire):
    metadata: Metadata
    spec: Spec | None = None
    status: PodStatus | None = None


class Resources(Wire):
    requests: Amounts | None = None
    limits: Amounts | None = None


class Port(Wire, rename={"host_port": "hostPort", "host_ip": "hostIP"}):
    host_port: Int32 | None = None
    protocol: Text | None = None
    host_ip: Text | None = None


class Disk(Wire, rename={"volume_id": "volumeID", "pd_name": "pdName", "read_only": "readOnly"}):
    """A disk in a pod: the fields of all its kinds."""

    pd_name: Text | None = None
    volume_id: Text | None = None
    iqn: Text | None = None
    monitors: Texts | None = None
    pool: Text | None = None
    image: Text | None = None
    read_only: bool | None = None


class Toleration(Wire):
    key: Text | None = None
    operator: Text | None = None
    value: Text | None = None
    effect: Text | None = None


class Expression(Wire):
    key: Text
    operator: Text
    values: Texts | None = None


class LabelSelector(Wire):
    match_labels: Labels | None = None
    match_expressions: ManyOf[Expression] | None = None


class NodeSelectorTerm(Wire):
    match_expressions: ManyOf[Expression] | None = None
    match_fields: ManyOf[Expression] | None = None


class NodeSelector(Wire):
    node_selector_terms: ManyOf[NodeSelectorTerm] | None = None


class PreferredTerm(Wire):
    weight: Int64
    preference: NodeSelectorTerm


class NodeAffinity(Wire):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: ManyOf[PreferredTerm] | None = None


class PodAffinityTerm(Wire):
    topology_key: Text
    label_selector: LabelSelector | None = None
    namespaces: Texts | None = None
    namespace_selector: LabelSelector | None = None


class WeightedAffinityTerm(Wire):
    weight: Int64
    pod_affinity_term: PodAffinityTerm


class PodAffinity(Wire):
    required_during_scheduling_ignored_during_execution: ManyOf[PodAffinityTerm] | None = None
    preferred_during_scheduling_ignored_during_execution: ManyOf[WeightedAffinityTerm] | None = None


class Affinity(Wire):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Spread(Wire):
    topology_key: Text
    max_skew: Int32
    when_unsatisfiable: Text
    label_selector: LabelSelector | None = None
    min_domains: Int32 | None = None
    node_affinity_policy: Text | None = None
    node_taints_policy: Text | None = None
    match_label_keys: Texts | None = None


class Taint(Wire):
    key: Text
    effect: Text
    value: Text | None = None


class NodeSpec(Wire):
    taints: ManyOf[Taint] | None = None
    unschedulable: bool | None = None


class Condition(Wire):
    type: Text
    status: Text


class NodeAddress(Wire):
    type: Text | None = None
    address: Text | None = None


class NodeStatus(Wire):
    allocatable: Amounts | None = None
    addresses: ManyOf[NodeAddress] | None = None
    conditions: ManyOf[Condition] | None = None
    images: Raw = NOTHING


class NodeImage(Wire):
    names: ManyOf[Text] | None = None
    size_bytes: Int64 | None = None


NodeImages = Annotated[list[NodeImage], Meta(max_length=8192)]


class Node(Wire):
    metadata: Metadata
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


class Named(Wire):
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
    selector: LabelSelector | None = None


class BudgetStatus(Wire):
    disruptions_allowed: Int32 | None = None
    disrupted_pods: Annotated[dict[Text, Raw], Meta(max_length=8192)] | None = None


class Budget(Wire):
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
    duration: Text | None = None
    usage: UsageByType | None = None


class NodeUsage(Wire):
    node_usage: ResourceMap | None = None
    system_usage: ResourceMap | None = None
    aggregated_node_usages: ManyOf[Aggregated] | None = None


class PodUsage(Wire):
    name: Text
    namespace: Text
    pod_usage: ResourceMap | None = None
    priority: Text | None = None
    qos: Text | None = None


class HostUsage(Wire):
    usage: ResourceMap | None = None


class NodeMetricStatus(Wire):
    update_time: Text | None = None
    node_metric: NodeUsage | None = None
    pods_metric: Annotated[list[PodUsage], Meta(max_length=16384)] | None = None
    host_application_metric: ManyOf[HostUsage] | None = None


class CollectPolicy(Wire):
    report_interval_seconds: Int64 | None = None


class NodeMetricSpec(Wire):
    metric_collect_policy: CollectPolicy | None = None


class NodeMetric(Wire):
    metadata: Metadata
    spec: NodeMetricSpec | None = None
    status: NodeMetricStatus | None = None


class PageMeta(Wire, rename={"resource_version": "resourceVersion", "continue_": "continue"}):
    resource_version: Text | None = None
    continue_: Text | None = None


class ObjectList(Wire):
    """A page of a list: its items are read one by one."""

    metadata: PageMeta | None = None
    items: Annotated[list[Raw], Meta(max_length=1_000_000)] | None = None


class Event(Wire):
    """A watch event."""

    type: Text
    object: Raw


class Status(Wire):
    """The answer that an ERROR event carries."""

    code: Int32 | None = None
