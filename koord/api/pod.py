"""Pod: identity, QoS class, containers, requests and limits, and access to the host."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from koord.api.fields import Fields
from koord.api.qos import (
    KoordPriorityClass,
    KubeQoS,
    QoSClass,
    compute_kube_qos,
    priority_class_with_default,
    priority_with_default,
    qos_with_default,
    raw_priority_class,
    raw_qos,
)
from koord.api.quantity import Quantity
from koord.util.errors import InvalidObject

_CGROUPS = PurePosixPath("/sys/fs/cgroup")


def reaches_host(spec: Fields) -> bool:
    """Return whether a pod sees the host's pids, is privileged, or mounts the host's cgroups.

    Kubernetes' Pod Security Standards allow none of that below "privileged".

    Raises:
        InvalidObject: a field has the wrong type.
    """
    return spec.boolean("hostPID") or _is_privileged(spec) or any(map(_shows_cgroups, _paths(spec)))


def _is_privileged(spec: Fields) -> bool:
    return any(
        container.nested("securityContext").boolean("privileged")
        for kind in ("containers", "initContainers")
        for container in spec.objects(kind)
    )


def _paths(spec: Fields) -> Iterator[str]:
    for volume in spec.objects("volumes"):
        if volume.get("hostPath") is not None:
            yield volume.nested("hostPath").text("path")


def _shows_cgroups(path: str) -> bool:
    """Whether a directory of the host is part of the cgroup file system, or holds it."""
    plain = PurePosixPath("/", *(part for part in path.split("/") if part not in ("", ".")))
    return ".." in plain.parts or plain.is_relative_to(_CGROUPS) or _CGROUPS.is_relative_to(plain)


_FINISHED_PHASES = frozenset({"Succeeded", "Failed"})
_ACTIVE_PHASES = frozenset({"Pending", "Running"})
_DEFAULT_GRACE = 30  # seconds
_MAX_IPS = 4  # Kubernetes gives a pod one of each IP version
_KOORDINATOR = "koordinator.sh/"  # in the names of labels that decide something
_KUBE_QOS = frozenset(KubeQoS)
MAX_LABEL_CHARS = 64 << 10  # of names and values; ordinary pods have 500
_SOURCE, _MIRROR = "kubernetes.io/config.source", "kubernetes.io/config.mirror"  # the kubelet's own


@dataclass(frozen=True, slots=True)
class Container:
    """A container of the pod's spec. Quantities are the texts found; each one is valid."""

    name: str
    requests: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)
    restart_policy: str = ""  # "Always" makes an init container a sidecar
    image: str = ""  # as the spec names it


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """The kubelet's status of a container."""

    name: str
    container_id: str = ""  # "containerd://<64 hex>"; empty until it was created
    running: bool = False


@dataclass(frozen=True, slots=True)
class Controller:
    """The controller of a pod, which replaces it when it is gone, for example a DaemonSet."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of this node."""

    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    phase: str = ""
    qos: KubeQoS = KubeQoS.BEST_EFFORT  # Kubernetes' class; qos_class is Koordinator's
    priority: int | None = None
    node_name: str = ""
    host_network: bool = False
    ips: tuple[str, ...] = ()  # of its network namespace, as the status has them; not checked
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    statuses: tuple[ContainerStatus, ...] = ()
    init_statuses: tuple[ContainerStatus, ...] = ()
    created: float | None = None  # Unix seconds, by the API server; None: not known
    start_time: float | None = None  # Unix seconds; None until the kubelet saw the pod
    gone_by: float | None = None  # Unix seconds, when its grace period is over; None: not deleted
    grace_seconds: int = _DEFAULT_GRACE  # that its containers get to end by themselves
    requests: Mapping[str, str] = field(default_factory=dict)  # of the pod as a whole
    limits: Mapping[str, str] = field(default_factory=dict)  # of the pod as a whole
    overhead: Mapping[str, str] = field(default_factory=dict)  # what its sandbox takes in addition
    controller: Controller | None = None  # None: it has none, for example a static pod
    runtime_class: str = ""
    reaches_host: bool = False  # may act on the node itself; see reaches_host
    # By the name of a volume: the name of its PersistentVolumeClaim; "" for an inline CSI volume.
    # Volumes of other kinds are not here.
    claims: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()  # parts that were not understood, or are too large

    @property
    def finished(self) -> bool:
        """Whether all containers have ended for good."""
        return self.phase in _FINISHED_PHASES

    @property
    def active(self) -> bool:
        """Whether it runs, or is about to."""
        return self.phase in _ACTIVE_PHASES

    @property
    def static(self) -> bool:
        """Whether the kubelet has it from elsewhere than the API server, where it has a mirror."""
        return self.annotations.get(_SOURCE, "api") != "api" or _MIRROR in self.annotations

    @property
    def raw_qos_class(self) -> QoSClass:
        """Koordinator's class by the label alone; may be NONE."""
        return raw_qos(self.labels)

    @property
    def qos_class(self) -> QoSClass:
        """Koordinator's class, by default that of the Kubernetes class; never NONE."""
        return qos_with_default(self.labels, self.qos)

    @property
    def raw_priority_class(self) -> KoordPriorityClass:
        """The class of the label, else of the priority's band; may be NONE."""
        return raw_priority_class(self.labels, self.priority)

    @property
    def priority_class(self) -> KoordPriorityClass:
        """The priority class, by default that of the QoS class."""
        return priority_class_with_default(self.labels, self.priority, self.qos_class)

    @property
    def effective_priority(self) -> int:
        """The pod's priority or, when that is absent or 0, the default of its class."""
        return priority_with_default(self.labels, self.priority, self.qos_class)


PodList = tuple[tuple[Pod, ...], tuple[InvalidObject, ...]]
"""The pods of a node, and what was wrong with those that were left out."""


def parse_pod(obj: object, where: str = "pod") -> Pod:
    """Return the pod of a v1 Pod object as JSON.

    Raises:
        InvalidObject: a field this module reads is missing or has the wrong type; the message
            begins with its JSON path below where.
    """
    root = Fields(obj, where)
    meta, spec, status = root.nested("metadata"), root.nested("spec"), root.nested("status")
    containers = _containers(spec, "containers")
    init_containers = _containers(spec, "initContainers")
    left_out: list[str] = []
    return Pod(
        namespace=meta.text("namespace") or "default",
        name=meta.required_text("name"),
        uid=meta.required_text("uid"),
        labels=_labels(meta, left_out),
        annotations=meta.texts("annotations"),
        phase=status.text("phase"),
        qos=_kube_qos(status, containers + init_containers, left_out),
        priority=spec.integer("priority"),
        node_name=spec.text("nodeName"),
        host_network=spec.boolean("hostNetwork"),
        ips=_ips(status),
        containers=containers,
        init_containers=init_containers,
        statuses=_statuses(status, "containerStatuses"),
        init_statuses=_statuses(status, "initContainerStatuses"),
        created=meta.time("creationTimestamp"),
        start_time=status.time("startTime"),
        gone_by=meta.time("deletionTimestamp"),
        grace_seconds=_grace_seconds(spec),
        requests=spec.nested("resources").quantities("requests"),
        limits=spec.nested("resources").quantities("limits"),
        overhead=spec.quantities("overhead"),
        controller=_controller(meta),
        runtime_class=spec.text("runtimeClassName"),
        reaches_host=reaches_host(spec),
        claims=_claims(spec, meta),
        left_out=tuple(left_out),
    )


def _labels(meta: Fields, left_out: list[str]) -> dict[str, str]:
    """Return the labels; of too many, those of Koordinator first, then others up to the limit."""
    labels = meta.texts("labels")
    if sum(map(len, labels)) + sum(map(len, labels.values())) <= MAX_LABEL_CHARS:
        return labels
    kept, left = {}, MAX_LABEL_CHARS
    for key in sorted(labels, key=lambda key: _KOORDINATOR not in key):
        left -= len(key) + len(labels[key])
        if left < 0:
            break
        kept[key] = labels[key]
    wanted, found = f"at most {MAX_LABEL_CHARS} characters", f"more; {len(kept)} labels are kept"
    left_out.append(str(InvalidObject(meta.path("labels"), wanted=wanted, found=found)))
    return kept


def _claims(spec: Fields, meta: Fields) -> dict[str, str]:
    claims = {}
    for volume in spec.objects("volumes"):
        name = volume.text("name")
        if volume.get("persistentVolumeClaim") is not None:
            claims[name] = volume.nested("persistentVolumeClaim").text("claimName")
        elif volume.get("ephemeral") is not None:  # Kubernetes makes the claim, and so names it
            claims[name] = f"{meta.required_text('name')}-{name}"
        elif volume.get("csi") is not None:
            claims[name] = ""
    return claims


def parse_pod_list(obj: object) -> PodList:
    """Return the pods of a v1 PodList; see read_item and pod_list.

    Raises:
        InvalidObject: this is no list of pods at all.
    """
    root = Fields(obj, "podList")
    check_pod_list(root.raw)
    items = root.list_of("items", lambda item: item, "a pod")
    return pod_list(read_item(item, f"items[{index}]") for index, item in enumerate(items))


def check_pod_list(obj: Mapping[str, object]) -> None:
    """Raise InvalidObject when this is no list of pods. Without items, it must say that it is."""
    items = obj.get("items")
    if items is None and obj.get("kind") != "PodList":
        raise InvalidObject("podList", wanted="a PodList with items", found=obj)
    if items is not None and not isinstance(items, list):
        raise InvalidObject("podList.items", wanted="a list", found=items)


def read_item(item: object, unnamed: str) -> Pod | InvalidObject:
    """Return the pod of an item of a list, or what is wrong with it: a bad pod costs only itself.

    unnamed: how errors call it if it has no name.
    """
    try:
        return parse_pod(item, _label(item) or unnamed)
    except InvalidObject as err:
        return err


def pod_list(items: Iterable[Pod | InvalidObject]) -> PodList:
    """Return the pods, and what is wrong with those that are left out; of twins one is kept."""
    found = list(items)
    pods, twins = distinct(item for item in found if isinstance(item, Pod))
    return pods, (*(item for item in found if isinstance(item, InvalidObject)), *twins)


def distinct(pods: Iterable[Pod]) -> PodList:
    """Return the pods in order of their uids, and what is wrong with those that are left out.

    Pods of one uid would share cgroups and series, so only the first by namespace and name is kept:
    the same one in whatever order they are listed.
    """
    kept: dict[str, Pod] = {}
    twins: list[InvalidObject] = []
    for pod in sorted(pods, key=lambda pod: (pod.uid, pod.namespace, pod.name)):
        first = kept.setdefault(pod.uid, pod)
        if first is not pod:
            where = f"pod {pod.namespace}/{pod.name}.metadata.uid"
            found = f"{pod.uid}, also used by {first.namespace}/{first.name}"
            twins.append(InvalidObject(where, wanted="a uid of its own", found=found))
    return tuple(kept.values()), tuple(twins)


def _label(item: object) -> str:
    """The name of an item, by which errors call it: the kubelet's order differs each time."""
    meta = item.get("metadata") if isinstance(item, Mapping) else None
    name = meta.get("name") if isinstance(meta, Mapping) else None
    if not isinstance(meta, Mapping) or not name or not isinstance(name, str):
        return ""
    return f"pod {meta.get('namespace')}/{name}"


def _grace_seconds(spec: Fields) -> int:
    seconds = spec.integer("terminationGracePeriodSeconds")
    return _DEFAULT_GRACE if seconds is None else max(seconds, 0)


def _controller(meta: Fields) -> Controller | None:
    for owner in meta.objects("ownerReferences"):
        if owner.boolean("controller"):
            return Controller(owner.text("kind"), owner.text("name"), owner.text("uid"))
    return None


def _containers(spec: Fields, key: str) -> tuple[Container, ...]:
    return tuple(
        Container(
            name=item.required_text("name"),
            requests=item.nested("resources").quantities("requests"),
            limits=item.nested("resources").quantities("limits"),
            restart_policy=item.text("restartPolicy"),
            image=item.text("image"),
        )
        for item in spec.objects(key)
    )


def _statuses(status: Fields, key: str) -> tuple[ContainerStatus, ...]:
    return tuple(
        ContainerStatus(
            name=item.required_text("name"),
            container_id=item.text("containerID"),
            running=item.nested("state").raw.get("running") is not None,
        )
        for item in status.objects(key)
    )


def _ips(status: Fields) -> tuple[str, ...]:
    found = [item.text("ip") for item in status.objects("podIPs")] or [status.text("podIP")]
    return tuple(filter(None, found[:_MAX_IPS]))


def _kube_qos(status: Fields, containers: tuple[Container, ...], left_out: list[str]) -> KubeQoS:
    """Kubernetes' class, by requests and limits where the status has none that is known."""
    named = status.get("qosClass")
    if isinstance(named, str) and named in _KUBE_QOS:
        return KubeQoS(named)
    if named:
        path, wanted = status.path("qosClass"), " or ".join(KubeQoS)
        left_out.append(str(InvalidObject(path, wanted=wanted, found=named)))
    return compute_kube_qos((item.requests, item.limits) for item in containers)


@dataclass(frozen=True, slots=True)
class Share:
    """The addition of one init container, in any unit."""

    amount: int
    sidecar: bool


def is_sidecar(container: Container) -> bool:
    """Whether an init container runs as long as the pod."""
    return container.restart_policy == "Always"


def running_total(regular: Iterable[int], init: Iterable[Share]) -> int:
    """Return the most that is needed at a time.

    Init containers run one after the other before the regular ones, each next to the sidecars that
    were started before it.
    """
    started = peak = 0
    for share in init:
        if share.sidecar:
            started += share.amount
        peak = max(peak, started if share.sidecar else started + share.amount)
    return max(sum(regular) + started, peak)


def pod_total(pod: Pod, amount: Callable[[Container], int]) -> int:
    """Return the total over all containers of a pod, given the amount of one."""
    shares = (Share(amount(one), is_sidecar(one)) for one in pod.init_containers)
    return running_total(map(amount, pod.containers), shares)


def pod_limit(pod: Pod, resource: str) -> Quantity | None:
    """Return the limit of a pod as a whole, overhead included.

    None: it has none, as one of its containers has none. A limit of the pod itself comes before
    those of its containers.
    """
    if resource in pod.limits:
        total = Quantity.parse(pod.limits[resource]).nano
    else:
        containers = pod.containers + pod.init_containers
        if not containers or any(_limit(one, resource) <= 0 for one in containers):
            return None
        total = pod_total(pod, lambda one: _limit(one, resource))
    return Quantity(total + _nano(pod.overhead.get(resource)))


def _limit(container: Container, resource: str) -> int:
    """Return a limit in billionths of the unit."""
    return _nano(container.limits.get(resource))


def _nano(text: str | None) -> int:
    return Quantity.parse(text).nano if text else 0


BATCH_CPU = "kubernetes.io/batch-cpu"  # milli-cores, as a plain number
BATCH_MEMORY = "kubernetes.io/batch-memory"  # bytes
EXTENDED_RESOURCES = "node.koordinator.sh/extended-resource-spec"  # annotation of a pod
MID_CPU = "kubernetes.io/mid-cpu"
MID_MEMORY = "kubernetes.io/mid-memory"

_CPU_BY_TIER = {KoordPriorityClass.BATCH: BATCH_CPU, KoordPriorityClass.MID: MID_CPU}
_MEMORY_BY_TIER = {KoordPriorityClass.BATCH: BATCH_MEMORY, KoordPriorityClass.MID: MID_MEMORY}


def cpu_resource(tier: KoordPriorityClass) -> str:
    """Return the name of the CPU that pods of this priority class ask for."""
    return _CPU_BY_TIER.get(tier, "cpu")


def memory_resource(tier: KoordPriorityClass) -> str:
    """Return the name of the memory that pods of this priority class ask for."""
    return _MEMORY_BY_TIER.get(tier, "memory")


def amount(name: str, text: str) -> int:
    """Return a quantity of this resource: milli-cores, bytes, or whole units of what it is."""
    quantity = Quantity.parse(text)
    return quantity.milli if name == "cpu" else quantity.integer


def pod_request(pod: Pod, name: str) -> int:
    """Return what a pod asks for; cpu in milli-cores, others as `amount`.

    Extended resources are those of containers and sidecars, without anything below zero.

    Source: Kubernetes, resourcehelpers.PodRequests; Koordinator, GetPodBEMilliCPURequest.
    """
    if "/" in name:
        return sum(max(_request(container, name), 0) for container in _lasting(pod))
    if name in pod.requests:
        asked = amount(name, pod.requests[name])
    else:
        asked = pod_total(pod, lambda container: _request(container, name))
    return asked + _of(pod.overhead, name)


def _lasting(pod: Pod) -> Iterator[Container]:
    """Regular containers and sidecars."""
    yield from pod.containers
    yield from (c for c in pod.init_containers if is_sidecar(c))


def _request(container: Container, name: str) -> int:
    return _of(container.requests, name)


def _of(quantities: Mapping[str, str], name: str) -> int:
    text = quantities.get(name)
    return amount(name, text) if text else 0
