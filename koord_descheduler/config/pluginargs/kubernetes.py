"""Arguments of the plugins that are adapted from the Kubernetes descheduler, v0.35.1.

As there, unknown fields are ignored (with a warning here) and the case of keys does not matter.

Source: sigs.k8s.io/descheduler, pkg/framework/plugins.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from koord.api.decoding.wire import wire
from koord.api.labelselector import LabelSelector
from koord.component.config.faults import (
    Fault,
    FieldPath,
    Key,
    invalid,
    invalid_duration,
    required,
    unsupported,
    warning,
)
from koord.component.config.typed import Int32, Seconds, UInt
from koord_descheduler.config.pluginargs.parts import (
    Namespaces,
    Percents,
    PriorityThreshold,
    check_label_selector,
    check_namespaces,
    check_percents,
    check_selector_text,
)


class EvictionMode(StrEnum):
    """A restriction of the pods that HighNodeUtilization evicts."""

    ONLY_THRESHOLDING_RESOURCES = "OnlyThresholdingResources"  # those that request one of them


class SpreadConstraint(StrEnum):
    """The kind of a topology spread constraint."""

    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


class RestartState(StrEnum):
    """A state of pods that restart too often."""

    RUNNING = "Running"
    CRASH_LOOP_BACK_OFF = "CrashLoopBackOff"


class NodeAffinityType(StrEnum):
    """The kind of a node affinity that pods may violate."""

    REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
    PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


class NoEvictionPolicy(StrEnum):
    """The weight of a pod's annotation against its eviction."""

    PREFERRED = "Preferred"
    MANDATORY = "Mandatory"


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnerKinds:
    """Kinds of the pods' owners; without include all but those in exclude."""

    include: tuple[str, ...] = ()  # kinds; only these
    exclude: tuple[str, ...] = ()  # kinds; all but these


@dataclass(frozen=True, kw_only=True, slots=True)
class PodCondition:
    """A condition of a pod; what is not set matches any."""

    type: str = ""  # of the condition
    status: str = ""  # True, False or Unknown
    reason: str = ""  # of the condition
    min_time_since_last_transition_seconds: UInt | None = None  # it has lasted for as long


@dataclass(frozen=True, kw_only=True, slots=True)
class Prometheus:
    """A query of usage."""

    query: str = ""  # has no effect


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricsUtilization:
    """The source of usage. Has no effect: LowNodeUtilization goes by requests."""

    metrics_server: bool = False  # has no effect
    source: str = ""  # has no effect
    prometheus: Prometheus | None = None  # has no effect


@dataclass(frozen=True, kw_only=True, slots=True)
class CycleLimits:
    """Limits of one cycle."""

    node: UInt | None = None  # pods of one node; not set: no limit


@dataclass(frozen=True, kw_only=True, slots=True)
class HighNodeUtilizationArgs:
    """Pods leave nodes with few requests, so that those can go."""

    thresholds: Percents | None = None  # percent of allocatable; below all of them a node is low
    number_of_nodes: Int32 = 0  # act only while more nodes than this are low
    eviction_modes: tuple[EvictionMode, ...] = (
        EvictionMode.ONLY_THRESHOLDING_RESOURCES,
    )  # restrict the pods that may go
    evictable_namespaces: Namespaces | None = None  # only exclude; not set: all

    def validate(self) -> Iterator[Fault]:
        """Return the faults."""
        yield from _check_thresholds(("thresholds",), self.thresholds)
        yield from _check_utilization(self.number_of_nodes, self.evictable_namespaces)


@dataclass(frozen=True, kw_only=True, slots=True)
class LowNodeUtilizationArgs:
    """Pods move from nodes with many requests to those with few."""

    use_deviation_thresholds: bool = False  # thresholds are distances from the mean of the nodes
    thresholds: Percents | None = None  # percent of allocatable; below all of them a node is low
    target_thresholds: Percents | None = None  # percent; above one of them a node is overutilized
    number_of_nodes: Int32 = 0  # act only while more nodes than this are low
    metrics_utilization: MetricsUtilization | None = None  # has no effect; usage is requests
    evictable_namespaces: Namespaces | None = None  # only exclude; not set: all
    eviction_limits: CycleLimits | None = None  # limits of one cycle

    def validate(self) -> Iterator[Fault]:
        """Return the faults, and warnings."""
        yield from _check_thresholds(("thresholds",), self.thresholds)
        yield from _check_thresholds(("targetThresholds",), self.target_thresholds)
        low, high = self.thresholds or {}, self.target_thresholds or {}
        if low and high and low.keys() != high.keys():
            wanted = "thresholds and targetThresholds must be of the same resources"
            yield invalid(("targetThresholds",), sorted(high), wanted)
        if not self.use_deviation_thresholds:
            for name in low.keys() & high.keys():
                if low[name] > high[name]:
                    wanted = "must be less than or equal to targetThresholds"
                    yield invalid(("thresholds", Key(name)), low[name], wanted)
        if self.metrics_utilization is not None:
            yield warning(("metricsUtilization",), "has no effect; usage is the pods' requests")
        yield from _check_utilization(self.number_of_nodes, self.evictable_namespaces)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoveDuplicatesArgs:
    """Of several pods of one owner on one node all but one leave."""

    namespaces: Namespaces | None = None  # pods that may go; not set: all
    exclude_owner_kinds: tuple[str, ...] = ()  # pods of such owners stay

    def validate(self) -> Iterator[Fault]:
        """Return the faults."""
        yield from check_namespaces(("namespaces",), self.namespaces)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovePodsViolatingTopologySpreadConstraintArgs:
    """Pods leave domains that have too many of them."""

    namespaces: Namespaces | None = None  # pods that may go; not set: all
    label_selector: LabelSelector | None = None  # pods that may go; not set: all
    constraints: tuple[SpreadConstraint, ...] = (
        SpreadConstraint.DO_NOT_SCHEDULE,
    )  # kinds that count
    topology_balance_node_fit: bool = True  # a pod goes only if a node of another domain fits

    def validate(self) -> Iterator[Fault]:
        """Return the faults."""
        yield from _check_pods(self.namespaces, self.label_selector)


@dataclass(frozen=True, kw_only=True, slots=True)
class PodLifeTimeArgs:
    """Old pods leave; all conditions that are set must hold."""

    namespaces: Namespaces | None = None  # pods that may go; not set: all
    label_selector: LabelSelector | None = None  # pods that may go; not set: all
    owner_kinds: OwnerKinds | None = None  # kinds of the owners of pods that may go
    max_pod_life_time_seconds: UInt | None = None  # older pods go
    states: tuple[str, ...] = ()  # phases of pods, or reasons of their containers
    conditions: tuple[PodCondition, ...] = ()  # one of them holds
    exit_codes: tuple[Int32, ...] = ()  # of containers
    including_init_containers: bool = False  # states and exit codes of init containers count, too
    including_ephemeral_containers: bool = False  # and those of ephemeral ones

    def validate(self) -> Iterator[Fault]:
        """Return the faults."""
        yield from _check_pods(self.namespaces, self.label_selector)
        if self.owner_kinds and self.owner_kinds.include and self.owner_kinds.exclude:
            yield invalid(("ownerKinds",), "both", "only one of include and exclude can be set")
        has_age = self.max_pod_life_time_seconds is not None
        if not (has_age or self.states or self.conditions or self.exit_codes):
            hint = "or states, conditions or exitCodes"
            yield required(("maxPodLifeTimeSeconds",), hint)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoveFailedPodsArgs:
    """Failed pods leave."""

    namespaces: Namespaces | None = None  # pods that may go; not set: all
    label_selector: LabelSelector | None = None  # pods that may go; not set: all
    exclude_owner_kinds: tuple[str, ...] = ()  # pods of such owners stay
    min_pod_lifetime_seconds: UInt = 3600  # younger pods stay
    reasons: tuple[str, ...] = ()  # of the failure; none: any
    exit_codes: tuple[Int32, ...] = ()  # of containers; none: any
    including_init_containers: bool = False  # reasons and exit codes of init containers count, too

    def validate(self) -> Iterator[Fault]:
        """Return the faults."""
        yield from _check_pods(self.namespaces, self.label_selector)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovePodsHavingTooManyRestartsArgs:
    """Pods leave whose containers restart too often."""

    namespaces: Namespaces | None = None  # pods that may go; not set: all
    label_selector: LabelSelector | None = None  # pods that may go; not set: all
    pod_restart_threshold: Int32 = 0  # restarts of all containers; must be set, 1 or more
    including_init_containers: bool = False  # restarts of init containers count, too
    states: tuple[RestartState, ...] = ()  # pods that may go; none: all

    def validate(self) -> Iterator[Fault]:
        """Return the faults."""
        yield from _check_pods(self.namespaces, self.label_selector)
        if self.pod_restart_threshold < 1:
            yield invalid(("podRestartThreshold",), self.pod_restart_threshold, "wanted 1 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovePodsViolatingInterPodAntiAffinityArgs:
    """Pods leave nodes where another pod's anti-affinity forbids them."""

    namespaces: Namespaces | None = None  # pods that may go; not set: all
    label_selector: LabelSelector | None = None  # pods that may go; not set: all

    def validate(self) -> Iterator[Fault]:
        """Return the faults."""
        yield from _check_pods(self.namespaces, self.label_selector)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovePodsViolatingNodeAffinityArgs:
    """Pods leave nodes that their node affinity no longer allows."""

    namespaces: Namespaces | None = None  # pods that may go; not set: all
    label_selector: LabelSelector | None = None  # pods that may go; not set: all
    node_affinity_type: tuple[NodeAffinityType, ...] = ()  # kinds that count; must be set

    def validate(self) -> Iterator[Fault]:
        """Return the faults."""
        yield from _check_pods(self.namespaces, self.label_selector)
        if not self.node_affinity_type:
            yield required(("nodeAffinityType",), f"for example {NodeAffinityType.REQUIRED}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovePodsViolatingNodeTaintsArgs:
    """Pods leave nodes with taints that they do not tolerate."""

    namespaces: Namespaces | None = None  # pods that may go; not set: all
    label_selector: LabelSelector | None = None  # pods that may go; not set: all
    include_prefer_no_schedule: bool = False  # taints of effect PreferNoSchedule count, too
    excluded_taints: tuple[str, ...] = ()  # "key" or "key=value"; do not count
    included_taints: tuple[str, ...] = ()  # "key" or "key=value"; only these count; none: all

    def validate(self) -> Iterator[Fault]:
        """Return the faults."""
        yield from _check_pods(self.namespaces, self.label_selector)
        if self.excluded_taints and self.included_taints:
            wanted = "only one of excludedTaints and includedTaints can be set"
            yield invalid(("includedTaints",), self.included_taints, wanted)


class PodProtection(StrEnum):
    """A kind of pods that DefaultEvictor keeps."""

    LOCAL_STORAGE = "PodsWithLocalStorage"  # by default
    DAEMON_SET = "DaemonSetPods"  # by default
    SYSTEM_CRITICAL = "SystemCriticalPods"  # by default
    FAILED_BARE = "FailedBarePods"  # by default
    PVC = "PodsWithPVC"
    WITHOUT_PDB = "PodsWithoutPDB"
    RESOURCE_CLAIMS = "PodsWithResourceClaims"


DEFAULT_PROTECTIONS = (
    PodProtection.LOCAL_STORAGE,
    PodProtection.DAEMON_SET,
    PodProtection.SYSTEM_CRITICAL,
    PodProtection.FAILED_BARE,
)
EXTRA_PROTECTIONS = tuple(one for one in PodProtection if one not in DEFAULT_PROTECTIONS)


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageClass:
    """A storage class."""

    name: str = ""  # of the class


@dataclass(frozen=True, kw_only=True, slots=True)
class PVCProtection:
    """The protection PodsWithPVC."""

    protected_storage_classes: tuple[StorageClass, ...] = ()  # only these; none: all


@dataclass(frozen=True, kw_only=True, slots=True)
class ProtectionConfig:
    """Settings of single protections."""

    pods_with_pvc: PVCProtection | None = wire("PodsWithPVC", None)  # what it protects


@dataclass(frozen=True, kw_only=True, slots=True)
class PodProtections:
    """Protections of pods beyond the defaults, by name."""

    extra_enabled: tuple[str, ...] = ()  # PodsWithPVC, PodsWithoutPDB, PodsWithResourceClaims
    default_disabled: tuple[str, ...] = ()  # PodsWithLocalStorage, DaemonSetPods and so on
    config: ProtectionConfig | None = None  # of single protections


@dataclass(frozen=True, kw_only=True, slots=True)
class DefaultEvictorArgs:
    """Which pods DefaultEvictor lets go."""

    node_selector: str = ""  # nodes that nodeFit looks at, as a text like "a=b,c in (d,e)"
    label_selector: LabelSelector | None = None  # pods that may go; not set: all
    namespace_label_selector: LabelSelector | None = None  # namespaces of such pods; not set: all
    priority_threshold: PriorityThreshold | None = None  # pods of this priority and above stay
    node_fit: bool = False  # a pod goes only if another node can take it
    min_replicas: UInt = 0  # pods of an owner with fewer stay
    min_pod_age: Seconds | None = None  # seconds; younger pods stay
    no_eviction_policy: NoEvictionPolicy = NoEvictionPolicy.PREFERRED  # a pod's annotation
    pod_protections: PodProtections | None = None  # which pods stay
    evict_local_storage_pods: bool = False  # pods with hostPath or emptyDir volumes may go
    evict_daemon_set_pods: bool = False  # pods of DaemonSets may go
    evict_system_critical_pods: bool = False  # pods of any priority may go
    ignore_pvc_pods: bool = False  # pods with a PersistentVolumeClaim stay
    ignore_pods_without_pdb: bool = wire(  # pods without PodDisruptionBudget stay
        "ignorePodsWithoutPDB", False
    )
    evict_failed_bare_pods: bool = False  # failed pods without owner may go

    def validate(self) -> Iterator[Fault]:
        """Return the faults."""
        yield from check_selector_text(("nodeSelector",), self.node_selector)
        yield from check_label_selector(("labelSelector",), self.label_selector)
        path: FieldPath = ("namespaceLabelSelector",)
        yield from check_label_selector(path, self.namespace_label_selector)
        if self.min_pod_age is not None and self.min_pod_age < 0:
            yield invalid_duration(("minPodAge",), self.min_pod_age, "wanted 0s or more")
        named = self.pod_protections or PodProtections()
        for key, names, known in (
            ("extraEnabled", named.extra_enabled, EXTRA_PROTECTIONS),
            ("defaultDisabled", named.default_disabled, DEFAULT_PROTECTIONS),
        ):
            for index, name in enumerate(names):
                if name not in known:
                    yield unsupported(("podProtections", key, index), name, known)

    @property
    def protections(self) -> frozenset[PodProtection]:
        """The protections that count; podProtections with any name wins over the older fields."""
        named = self.pod_protections or PodProtections()
        if named.extra_enabled or named.default_disabled:
            kept = set(DEFAULT_PROTECTIONS) - {PodProtection(one) for one in named.default_disabled}
            return frozenset(kept | {PodProtection(one) for one in named.extra_enabled})
        older = {
            PodProtection.LOCAL_STORAGE: not self.evict_local_storage_pods,
            PodProtection.DAEMON_SET: not self.evict_daemon_set_pods,
            PodProtection.SYSTEM_CRITICAL: not self.evict_system_critical_pods,
            PodProtection.FAILED_BARE: not self.evict_failed_bare_pods,
            PodProtection.PVC: self.ignore_pvc_pods,
            PodProtection.WITHOUT_PDB: self.ignore_pods_without_pdb,
        }
        return frozenset(one for one, counts in older.items() if counts)


def _check_pods(namespaces: Namespaces | None, selector: LabelSelector | None) -> Iterator[Fault]:
    yield from check_namespaces(("namespaces",), namespaces)
    yield from check_label_selector(("labelSelector",), selector)


def _check_thresholds(path: FieldPath, thresholds: Percents | None) -> Iterator[Fault]:
    if not thresholds:
        yield required(path, "a percentage for at least one resource")
    yield from check_percents(path, thresholds or {})


def _check_utilization(nodes: int, namespaces: Namespaces | None) -> Iterator[Fault]:
    if nodes < 0:
        yield invalid(("numberOfNodes",), nodes, "wanted 0 or more")
    if namespaces is not None and namespaces.include:
        wanted = "only exclude is supported"
        yield invalid(("evictableNamespaces", "include"), namespaces.include, wanted)
