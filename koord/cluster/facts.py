"""Objects of the cluster as decisions need them: slim, slotted, immutable."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import count, repeat
from typing import overload

from msgspec import Struct

from koord.api.labelselector import Requirement

PODS = "pods"  # the resource of which each pod takes one
PREFER_NO_SCHEDULE = "PreferNoSchedule"  # the effect of a taint that forbids nothing

Selector = tuple[Requirement, ...]
"""A conjunction of requirements on labels; without any it matches everything."""


def selects(selector: Selector | None, labels: Mapping[str, str]) -> bool:
    """Whether a selector matches labels; None, which is no selector at all, matches nothing."""
    return selector is not None and all(one.matches(labels) for one in selector)


class Taint(Struct, frozen=True, gc=False):
    """A taint of a node."""

    key: str
    effect: str
    value: str = ""


class Toleration(Struct, frozen=True, gc=False):
    """A toleration of a pod; "" in key or effect stands for all of them."""

    key: str = ""
    operator: str = ""  # "" is Equal
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Source: Kubernetes, core/v1 Toleration.ToleratesTaint."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        if self.operator in ("", "Equal"):
            return self.value == taint.value
        return self.operator == "Exists"


class NodeTerm(Struct, frozen=True, gc=False):
    """A term of a node selector: requirements on labels (Gt and Lt too) and on the node's name."""

    labels: tuple[Requirement, ...] = ()
    names: tuple[Requirement, ...] = ()


class PreferredTerm(Struct, frozen=True, gc=False):
    """A preference for the nodes that a term matches."""

    weight: int
    term: NodeTerm


class AffinityTerm(Struct, frozen=True, gc=False):
    """Pods that an affinity selects, and the node label whose values are the domains."""

    topology_key: str
    selector: Selector | None
    namespaces: tuple[str, ...] = ()  # the pod's own where the term named none
    namespace_selector: Selector | None = None


class PreferredAffinityTerm(Struct, frozen=True, gc=False):
    """A preference for, or against, the domains of the pods that a term means."""

    weight: int  # 1 to 100
    term: AffinityTerm


class SpreadConstraint(Struct, frozen=True, gc=False):
    """A topology spread constraint."""

    topology_key: str
    max_skew: int
    selector: Selector | None
    min_domains: int = 1
    honor_affinity: bool = True  # only nodes that the pod's node affinity allows are counted
    honor_taints: bool = False  # only nodes whose taints the pod tolerates are counted
    match_label_keys: tuple[str, ...] = ()


class HostPort(Struct, frozen=True, gc=False):
    """A port of the node that a pod takes; 0.0.0.0 is every address."""

    port: int
    protocol: str = "TCP"
    address: str = "0.0.0.0"  # noqa: S104 - as Kubernetes writes it; nothing is bound to it

    def conflicts(self, other: "HostPort") -> bool:
        """Source: Kubernetes, framework.HostPortInfo.CheckConflict."""
        if (self.port, self.protocol) != (other.port, other.protocol):
            return False
        every = "0.0.0.0"  # noqa: S104
        return self.address == other.address or every in (self.address, other.address)


class Disk(Struct, frozen=True, gc=False):
    """A disk that a pod names itself, without a claim."""

    kind: (
        str  # the field of the volume: "gcePersistentDisk", "awsElasticBlockStore", "iscsi", "rbd"
    )
    name: str  # of it among those of its kind
    read_only: bool = False
    monitors: tuple[str, ...] = ()  # of an rbd: where it is found

    def conflicts(self, other: "Disk") -> bool:
        """Whether pods with these two cannot be on one node.

        Source: Kubernetes, plugins/volumerestrictions isVolumeConflict.
        """
        if (self.kind, self.name) != (other.kind, other.name):
            return False
        if self.kind == "awsElasticBlockStore":
            return True
        if self.kind == "rbd" and not set(self.monitors) & set(other.monitors):
            return False
        return not (self.read_only and other.read_only)


class ContainerKind(StrEnum):
    """The part that a container has in its pod."""

    REGULAR = "regular"
    INIT = "init"
    EPHEMERAL = "ephemeral"


class ContainerResources(Struct, frozen=True, gc=False, kw_only=True):
    """Requests and limits of one container. Amounts are as in PodSpec."""

    name: str
    kind: ContainerKind = ContainerKind.REGULAR
    sidecar: bool = False  # an init container that runs as long as the pod
    requests: tuple[tuple[str, int], ...] = ()
    limits: tuple[tuple[str, int], ...] = ()

    @property
    def lasting(self) -> bool:
        """Whether it runs as long as the pod."""
        return self.sidecar or self.kind is not ContainerKind.INIT


class PodSpec(Struct, frozen=True, eq=False, weakref=True):
    """Rules and requests of a pod. Equal pods share one; it is compared by identity."""

    requests: tuple[tuple[str, int], ...] = ()  # by name of the resource, without zeros
    limits: tuple[tuple[str, int], ...] = ()  # as requests; a container without one adds nothing
    overhead: tuple[tuple[str, int], ...] = ()  # of its sandbox; requests and limits include it
    containers: tuple[ContainerResources, ...] | None = None
    """Requests by container, init containers first; None: no plugin declares that it reads them."""
    nonzero_cpu: int = 0  # milli-cores; requests, with a default for containers that have none
    nonzero_memory: int = 0  # bytes; as nonzero_cpu
    tolerations: tuple[Toleration, ...] = ()
    node_selector: Selector = ()
    node_terms: tuple[NodeTerm, ...] | None = None  # one must match; None: no required affinity
    affinity: tuple[AffinityTerm, ...] = ()  # required
    preferred_nodes: tuple[PreferredTerm, ...] = ()  # preferred node affinity
    anti_affinity: tuple[AffinityTerm, ...] = ()  # required
    preferred_affinity: tuple[PreferredAffinityTerm, ...] = ()
    preferred_anti_affinity: tuple[PreferredAffinityTerm, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()  # with DoNotSchedule
    soft_spread: tuple[SpreadConstraint, ...] = ()  # with ScheduleAnyway
    host_ports: tuple[HostPort, ...] = ()
    images: tuple[str, ...] = ()  # of the regular containers, sorted
    other_images: tuple[str, ...] = ()  # of init containers and volumes that are images, sorted
    resource_claims: bool = False  # it has claims of dynamic resources
    ephemeral_volumes: tuple[str, ...] = ()  # names of volumes whose claims are made for each pod
    disks: tuple[Disk, ...] = ()
    has_huge: bool = False  # one of its requests is so large that sums need care; see placement
    unread: tuple[str, ...] = ()  # parts that could not be read; with any, it fits no node
    faults: tuple[str, ...] = ()  # all that was left out of it or cut, the unread parts too

    @property
    def has_affinity_terms(self) -> bool:
        """Whether it has affinity or anti-affinity to other pods, required or preferred."""
        return bool(
            self.affinity
            or self.anti_affinity
            or self.preferred_affinity
            or self.preferred_anti_affinity
        )


class LabelSet(Struct, frozen=True, eq=False, weakref=True):
    """Namespace and labels of pods. Equal pods share one; it is compared by identity."""

    namespace: str
    labels: Mapping[str, str]


class Owner(Struct, frozen=True, gc=False):
    """An owner reference."""

    kind: str
    name: str
    uid: str
    controller: bool = False


class ContainerState(Struct, frozen=True, gc=False):
    """The state of a container. It waits, has ended, or, with neither set, runs."""

    kind: ContainerKind
    restarts: int = 0
    waiting: str | None = None  # its reason, which may be ""; None: it does not wait
    ended: str | None = None  # its reason, which may be ""; None: it has not ended
    exit_code: int = 0  # of one that has ended


class Condition(Struct, frozen=True, gc=False):
    """A condition in a pod's status, without its time."""

    type: str
    status: str
    reason: str = ""


class ClusterPod(Struct, frozen=True, gc=False, kw_only=True):
    """A pod. Two are equal when all their facts are."""

    name: str
    uid: str
    label_set: LabelSet
    spec: PodSpec
    node: str = ""  # "": bound to none
    phase: str = ""
    qos: str = ""  # Kubernetes' class as its status has it; "": not known
    priority: int | None = None
    preemption_policy: str = ""  # Never; PreemptLowerPriority, which "" is, too
    scheduling_gates: tuple[str, ...] = ()  # names; with any, it is not to be scheduled yet
    workload_group: str = (
        ""  # its workloadRef as name:podGroup[:podGroupReplicaKey]; "": it has none
    )
    nominated_node: str = ""  # where preemption frees resources for it; "": nowhere
    created: float | None = None  # Unix seconds
    started: float | None = None  # Unix seconds; when its kubelet accepted it
    ready: bool = False
    status_reason: str = ""  # a word, such as "Evicted"
    scheduler_name: str = ""  # after the label that replaces the spec's
    containers: tuple[ContainerState, ...] = ()  # but those that run and never restarted
    conditions: tuple[Condition, ...] = ()
    condition_times: tuple[float | None, ...] = ()  # Unix seconds; last transition of each
    deleting: bool = False  # it has a deletion timestamp
    overdue_at: float | None = None  # Unix seconds; deletion timestamp plus grace, None: unknown
    local_storage: bool = False  # it has an emptyDir or hostPath volume
    claims: tuple[str, ...] = ()  # names of persistent volume claims in its namespace
    owners: tuple[Owner, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()  # those that plugins declare to read, sorted

    @property
    def namespace(self) -> str:
        return self.label_set.namespace

    @property
    def labels(self) -> Mapping[str, str]:
        return self.label_set.labels

    @property
    def key(self) -> str:
        """namespace/name: of several pods in the cluster at a time none has the same."""
        return f"{self.label_set.namespace}/{self.name}"

    @property
    def finished(self) -> bool:
        """Whether its containers have ended for good: it takes no resources any more."""
        return self.phase in ("Succeeded", "Failed")


class Workload(Struct, frozen=True, kw_only=True):
    """A controller of pods, or of other controllers, as a Deployment is."""

    kind: str  # "ReplicaSet" and so on
    namespace: str
    name: str
    uid: str
    replicas: int  # wanted
    controller: Owner | None = None  # of itself; None: nothing controls it
    selector: Selector | None = None  # of its pods; None: it has none

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class ClusterService(Struct, frozen=True):
    """A Service, as far as it says which pods belong together."""

    namespace: str
    name: str
    selector: Selector | None = None  # None: it selects no pods

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class PriorityClass(Struct, frozen=True):
    """A priority class."""

    name: str
    value: int
    is_default: bool = False  # of pods that name none

    @property
    def key(self) -> str:
        return self.name


class Image(Struct, frozen=True, gc=False):
    """An image that a node has."""

    names: tuple[str, ...]
    size: int  # bytes


class ImageSet(Struct, frozen=True, weakref=True):
    """The images of a node. Nodes with equal ones share one."""

    images: tuple[Image, ...] = ()


NO_IMAGES = ImageSet()


class ClusterNode(Struct, frozen=True, kw_only=True):
    """A node. Its labels are read-only."""

    name: str
    uid: str = ""
    labels: Mapping[str, str]
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True
    allocatable: tuple[tuple[str, int], ...] = ()  # by name of the resource
    raw_allocatable: tuple[tuple[str, int], ...] | None = None  # unamplified; None: as allocatable
    unreserved: tuple[tuple[str, int], ...] | None = None
    """allocatable of cpu and memory before the node reservation was subtracted; None: the same."""
    capacity: tuple[tuple[str, int], ...] = ()  # of cpu and memory
    conditions: tuple[tuple[str, str], ...] = ()  # types with their status
    images: ImageSet = NO_IMAGES
    annotations: tuple[tuple[str, str], ...] = ()  # those that plugins declare to read, sorted
    internal_ip: str = ""  # the first one of its addresses; "": it has none

    @property
    def key(self) -> str:
        return self.name


class ClusterNamespace(Struct, frozen=True):
    """A namespace, which affinity terms select by its labels."""

    name: str
    labels: Mapping[str, str]

    @property
    def key(self) -> str:
        return self.name


class DisruptionBudget(Struct, frozen=True):
    """A PodDisruptionBudget: how many of its pods may be evicted now."""

    namespace: str
    name: str
    selector: Selector | None  # None matches no pod
    allowed: int = 0
    disrupted: frozenset[str] = frozenset()  # names of pods whose eviction is counted already

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def covers(self, pod: ClusterPod) -> bool:
        """Whether an eviction of the pod counts against this budget."""
        return pod.namespace == self.namespace and selects(self.selector, pod.labels)


class ReportedUsage(Struct, frozen=True, gc=False):
    """CPU and memory in use, and whatever else is counted."""

    cores: float
    memory_bytes: float
    others: tuple[tuple[str, int], ...] = ()  # further resources by name; whole units


class ReportedAggregate(Struct, frozen=True, gc=False):
    """Usage over one window by aggregation. All are None while the window is cold."""

    duration: float  # seconds
    avg: ReportedUsage | None = None
    p50: ReportedUsage | None = None
    p90: ReportedUsage | None = None
    p95: ReportedUsage | None = None
    p99: ReportedUsage | None = None


class ReportedHostUsage(Struct, frozen=True, gc=False):
    """Usage of one host application, and its priority class; "": no class."""

    usage: ReportedUsage
    priority: str = ""


class ReportedPodUsage(Struct, frozen=True, gc=False):
    """Usage of one pod, its priority class and its QoS class; "": no class."""

    name: str
    namespace: str
    usage: ReportedUsage
    priority: str = ""
    qos: str = ""


class ReportedPods(Sequence[ReportedPodUsage]):
    """Usages of the pods of a NodeMetric, as columns: 90 bytes a pod in place of 240.

    Each entry is made when it is asked for.
    """

    __slots__ = ("_figures", "_kinds", "_names", "_others")

    def __init__(self, pods: Iterable[ReportedPodUsage]) -> None:
        names, kinds, figures = list[str](), list[tuple[str, str, str]](), list[float]()
        others: dict[int, tuple[tuple[str, int], ...]] = {}
        for one in pods:
            usage = one.usage
            if usage.others:
                others[len(names)] = usage.others
            names.append(one.name)
            kinds.append(kind_of_pod(one.namespace, one.priority, one.qos))
            figures += (usage.cores, usage.memory_bytes)
        self._take(names, kinds, figures, others)

    @classmethod
    def of_columns(
        cls,
        names: Iterable[str],
        kinds: Iterable[tuple[str, str, str]],
        figures: Iterable[float],
        others: dict[int, tuple[tuple[str, int], ...]],
    ) -> "ReportedPods":
        """Return what __init__ makes of entries.

        kinds are those of kind_of_pod. figures: cores and bytes of each. others: by the number of
        the pod.
        """
        found = cls.__new__(cls)
        found._take(names, kinds, figures, others)
        return found

    def _take(
        self,
        names: Iterable[str],
        kinds: Iterable[tuple[str, str, str]],
        figures: Iterable[float],
        others: dict[int, tuple[tuple[str, int], ...]],
    ) -> None:
        self._names, self._kinds = tuple(names), tuple(kinds)
        self._figures, self._others = array("d", figures), others

    def keys(self) -> list[str]:
        """namespace/name of each, in order."""
        pairs = zip(self._kinds, self._names, strict=True)
        return [f"{kind[0]}/{name}" for kind, name in pairs]

    def who(self) -> tuple[tuple[str, ...], tuple[tuple[str, str, str], ...]]:
        """The names; and namespace, priority class and QoS class; of each, in order."""
        return self._names, self._kinds

    def share(self, earlier: "ReportedPods") -> None:
        """Share the names of an earlier report, if they are equal: they take most of it."""
        if self.who() == earlier.who():
            self._names, self._kinds = earlier.who()

    def cores(self) -> "array[float]":
        """Return the usage of each, in order."""
        return self._figures[::2]

    def memory_bytes(self) -> "array[float]":
        """Return the usage of each, in order."""
        return self._figures[1::2]

    def figures(self) -> dict[tuple[str, str], tuple[str, float, float]]:
        """Priority class, cores and bytes of each, by namespace and name; no entry is made."""
        figures = iter(self._figures)
        columns = zip(self._kinds, self._names, figures, figures, strict=False)
        return {(kind[0], name): (kind[1], cores, memory) for kind, name, cores, memory in columns}

    def largest(self) -> tuple[float, float]:
        """The most cores and the most bytes that one of them uses."""
        figures = self._figures
        return max(figures[::2], default=0.0), max(figures[1::2], default=0.0)

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, at: int) -> ReportedPodUsage: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[ReportedPodUsage, ...]: ...
    def __getitem__(self, at: int | slice) -> ReportedPodUsage | tuple[ReportedPodUsage, ...]:
        if isinstance(at, slice):
            return tuple(self)[at]
        at = range(len(self._names))[at]
        (namespace, priority, qos), figures = self._kinds[at], self._figures
        usage = ReportedUsage(figures[2 * at], figures[2 * at + 1], self._others.get(at, ()))
        return ReportedPodUsage(self._names[at], namespace, usage, priority, qos)

    def __iter__(self) -> Iterator[ReportedPodUsage]:
        figures = iter(self._figures)
        others = repeat(()) if not self._others else map(self._others.get, count(), repeat(()))
        columns = zip(self._names, self._kinds, figures, figures, others, strict=False)
        for name, (namespace, priority, qos), cores, memory, more in columns:
            usage = ReportedUsage(cores, memory, more)
            yield ReportedPodUsage(name, namespace, usage, priority, qos)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"ReportedPods({list(self)})"


@lru_cache(maxsize=16_384)  # pods of a namespace and class share theirs
def kind_of_pod(namespace: str, priority: str, qos: str) -> tuple[str, str, str]:
    """Return the three, for ReportedPods."""
    return namespace, priority, qos
