"""Devices and CPUs that pods hold, and what is free of them on nodes, as columns."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from koord.api.annotations import (
    DEVICE_ALLOCATED,
    MAX_DEVICES,
    RESOURCE_SPEC,
    RESOURCE_STATUS,
    annotation_fields,
)
from koord.api.annotations import device_allocations as read_devices
from koord.api.devices.layout import (
    ISOLATION_PROVIDER,
)
from koord.api.devices.requests import HINT_ANNOTATIONS, InvalidRequest, PodDevices, pod_devices
from koord.api.machine import parse_cpulist
from koord.api.nodetopology import (
    CPU_TOPOLOGY,
    NUMA_TOPOLOGY_SPEC,
    BindPolicy,
    NUMATopologyPolicy,
    policy_of,
    withheld_cpus,
)
from koord.api.qos import may_bind_cpus
from koord.api.quantity import Quantity
from koord.cluster.facts import ClusterPod
from koord.cluster.keptfields import KeptFields
from koord.util.errors import InvalidObject
from koord_descheduler.rules.evictorfilter import annotation

GPU, RDMA, FPGA = "gpu", "rdma", "fpga"
_PREFIX, _OLD_PREFIX = "koordinator.sh/", "kubernetes.io/"
CORE, RATIO, MEMORY = (
    f"{_PREFIX}{name}" for name in ("gpu-core", "gpu-memory-ratio", "gpu-memory")
)
_SHARED, _PERCENT = f"{_PREFIX}gpu.shared", f"{_PREFIX}gpu"
_CARDS = ("nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu")
AMOUNTS = {GPU: (CORE, RATIO, MEMORY), RDMA: (f"{_PREFIX}rdma",), FPGA: (f"{_PREFIX}fpga",)}
_WHOLE = 100  # percent of one device
MAX_CPUS = 4096  # of one node
_MAX_AMOUNT = 2**62

HARDWARE_FIELDS = KeptFields(
    pod_annotations={
        DEVICE_ALLOCATED: 65_536,
        RESOURCE_STATUS: 16_384,
        RESOURCE_SPEC: 4_096,
        NUMA_TOPOLOGY_SPEC: 4_096,
        **dict.fromkeys(HINT_ANNOTATIONS, 32_768),
    }
)
"""Fields of pods that need_of and HardwareTable read, for plugins to declare."""

Object = Mapping[str, Any]
Each = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HardwareNeed:
    """The devices and CPUs that a pod's successor must be given on one node."""

    devices: tuple[tuple[str, int, Each], ...] = ()
    """By type: how many, and of each at least the amounts of that type, in their order."""
    cpus: int = 0  # of its own; 0: none
    wanted: PodDevices | None = field(default=None, compare=False)
    """The same devices with all rules of the scheduler; None: the requests are malformed."""
    single_numa_node: bool = False  # the pod itself says that all must be of one
    bind: BindPolicy | None = None  # that the pod requires of its CPUs


def need_of(pod: ClusterPod) -> HardwareNeed | None:
    """Return what a pod has been given and requests; None: nothing, as nearly all pods.

    A pod without Koordinator's annotations has its devices from others, such as a device plugin,
    and its CPUs from the kubelet: of these nothing is known of other nodes.
    """
    given = {key: text for key, text in pod.annotations if key in _ANNOTATIONS}
    if not given:
        return None
    kinds = _allocated(given.get(DEVICE_ALLOCATED, ""))
    requested = requested_devices(pod.spec.requests)
    devices = tuple((kind, *requested[kind]) for kind in requested if kinds.get(kind))
    cpus = _own_cpus(pod, given.get(RESOURCE_STATUS, ""))
    if not devices and not cpus:
        return None
    hints = tuple([pair for pair in pod.annotations if pair[0] in HINT_ANNOTATIONS])
    isolation = pod.labels.get(ISOLATION_PROVIDER, "")
    wanted = _wanted(pod.spec.requests, hints, isolation) if devices else None
    single = _single_numa_node(annotation(pod, NUMA_TOPOLOGY_SPEC) or "")
    bind = None
    if cpus and may_bind_cpus(pod.labels, pod.priority):
        bind = _required_bind(annotation(pod, RESOURCE_SPEC) or "")
    return HardwareNeed(devices, len(cpus), wanted, single, bind)


_ANNOTATIONS = frozenset({DEVICE_ALLOCATED, RESOURCE_STATUS})


@lru_cache(maxsize=1024)
def _wanted(
    requests: tuple[tuple[str, int], ...], hints: tuple[tuple[str, str], ...], isolation: str
) -> PodDevices | None:
    try:
        return pod_devices(requests, dict(hints), isolation)
    except InvalidRequest:
        return None


@lru_cache(maxsize=1024)
def _single_numa_node(text: str) -> bool:
    try:
        policy = (
            annotation_fields(text, NUMA_TOPOLOGY_SPEC).text("numaTopologyPolicy") if text else ""
        )
    except InvalidObject:
        return False
    return policy_of(policy) is NUMATopologyPolicy.SINGLE_NUMA_NODE


@lru_cache(maxsize=1024)
def _required_bind(text: str) -> BindPolicy | None:
    """Return what an annotation resource-spec requires; Default is the scheduler's to say."""
    try:
        found = annotation_fields(text, RESOURCE_SPEC).text("requiredCPUBindPolicy") if text else ""
    except InvalidObject:
        return None
    return BindPolicy(found) if found in set(BindPolicy) else None


@lru_cache(maxsize=4096)
def requested_devices(requests: tuple[tuple[str, int], ...]) -> Mapping[str, tuple[int, Each]]:
    """Return, by type, how many devices are requested at least, and how much of each.

    Of interfaces and FPGAs one is what is certain: hints may ask for a part of each.
    """
    amounts: dict[str, int] = {}
    for name, amount in requests:
        now = name.replace(_OLD_PREFIX, _PREFIX, 1) if name.startswith(_OLD_PREFIX) else name
        amounts[now] = amounts.get(now, 0) + amount
    found: dict[str, tuple[int, Each]] = {}
    cards = sum(amounts.get(name, 0) for name in _CARDS)
    percent = cards * _WHOLE or amounts.get(_PERCENT, 0)
    gpu = (percent, percent, 0) if percent else tuple(amounts.get(one, 0) for one in AMOUNTS[GPU])
    if any(gpu):
        most = gpu[1] or gpu[0]
        count = amounts.get(_SHARED, 0) or (most // _WHOLE if most > _WHOLE else 1)
        found[GPU] = count, tuple(amount // count for amount in gpu)
    for kind in (RDMA, FPGA):
        share = amounts.get(AMOUNTS[kind][0], 0)
        if share > 0:
            found[kind] = 1, (min(share, _WHOLE),)
    return found


@lru_cache(maxsize=4096)
def _allocated(text: str) -> Mapping[str, tuple[tuple[int, Each], ...]]:
    """Return minors and amounts by type; nothing of an annotation that is malformed."""
    try:
        given = read_devices(text) if text else {}
        return {
            kind: tuple(
                (one.minor, tuple(amount_of(one.resources.get(name)) for name in AMOUNTS[kind]))
                for one in devices
            )
            for kind, devices in given.items()
            if kind in AMOUNTS
        }
    except (InvalidObject, ValueError):
        return {}


@lru_cache(maxsize=4096)
def _cpus(text: str) -> frozenset[int]:
    try:
        found = parse_cpulist(annotation_fields(text, RESOURCE_STATUS).text("cpuset"))
    except (InvalidObject, ValueError):
        return frozenset()
    return found if len(found) <= MAX_CPUS else frozenset()


def _own_cpus(pod: ClusterPod, text: str) -> frozenset[int]:
    """Return the CPUs of a pod; none where they are more than it requests: it made them up."""
    cpus = _cpus(text) if text else frozenset[int]()
    requests = next((amount for name, amount in pod.spec.requests if name == "cpu"), 0)
    return cpus if len(cpus) * 1000 <= requests else frozenset()


def amount_of(value: object) -> int:
    return 0 if value is None else min(Quantity.parse(value).integer, _MAX_AMOUNT)


def devices_of(device: Object) -> dict[tuple[str, int], Each]:
    """Return the amounts of a Device's healthy devices by type and minor.

    A device that is malformed, or negative in an amount, is none; of a minor twice neither is.
    """
    found: dict[tuple[str, int], Each] = {}
    twice: set[tuple[str, int]] = set()
    for one in _list(_dict(device.get("spec")).get("devices"))[: MAX_DEVICES * len(AMOUNTS)]:
        fields = _dict(one)
        kind, minor = fields.get("type"), fields.get("minor") or 0
        names = AMOUNTS.get(kind) if isinstance(kind, str) else None
        if names is None or not isinstance(minor, int) or not 0 <= minor < 2**31:
            continue
        if (str(kind), minor) in found:
            twice.add((str(kind), minor))
        resources = {
            str(name).replace(_OLD_PREFIX, _PREFIX, 1): amount
            for name, amount in _dict(fields.get("resources")).items()
        }
        try:
            amounts = tuple(amount_of(resources.get(name)) for name in names)
        except ValueError:
            continue
        if fields.get("health") is True and min(amounts) >= 0:
            found[str(kind), minor] = amounts
    return {key: amounts for key, amounts in found.items() if key not in twice}


def cpus_of(topology: Object) -> frozenset[int]:
    """Return the CPUs of a node that pods can have; none where the object is malformed.

    Those that the kubelet or the system keeps, or the kubelet has given to pods, are not among
    them.
    """
    return frozenset(numa_nodes_of(topology))


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def free_devices(
    total: Mapping[tuple[str, int], Each], pods: Iterable[ClusterPod]
) -> dict[tuple[str, int], Each]:
    """Return what pods of a node leave of its devices.

    An annotation counts for no more devices than the pod requests, and takes no more of one than
    the device has.
    """
    free = dict(total)
    for pod in pods:
        if pod.finished or not pod.annotations:
            continue
        text = annotation(pod, DEVICE_ALLOCATED) or ""
        requested = requested_devices(pod.spec.requests)
        for kind, given in _allocated(text).items():
            if kind not in requested:
                continue
            most = requested[kind][0] if kind == GPU else MAX_DEVICES
            for minor, amounts in given[:most]:
                left = free.get((kind, minor))
                if left is not None:
                    free[kind, minor] = tuple(
                        max(one - max(taken, 0), 0)
                        for one, taken in zip(left, amounts, strict=True)
                    )
    return free


def free_cpus(total: frozenset[int], pods: Iterable[ClusterPod]) -> int:
    """Return how many CPUs of a node no pod has for its own."""
    return len(total - held_cpus(pods))


def held_cpus(pods: Iterable[ClusterPod]) -> set[int]:
    """Return the CPUs that pods have for their own."""
    held: set[int] = set()
    for pod in pods:
        if not pod.finished and pod.annotations:
            text = annotation(pod, RESOURCE_STATUS) or ""
            held |= _own_cpus(pod, text)
    return held


NUMA_NODE = "numaNode"
PART_KINDS = (GPU, NUMA_NODE)


@dataclass(frozen=True, slots=True)
class HardwarePart:
    """A GPU or a NUMA node, and the pods that have something of it."""

    free: Each  # of a GPU percent of its cores, percent and bytes of its memory; or CPUs
    holders: frozenset[str]  # keys of pods

    @property
    def is_broken(self) -> bool:
        """Whether pods have a part of it, and not all."""
        return bool(self.holders) and any(self.free)

    def fits(self, each: Each) -> bool:
        """Whether as much is free."""
        return all(have >= wanted for have, wanted in zip(self.free, each, strict=True))

    def with_pod(self, key: str, each: Each) -> "HardwarePart":
        """The same with one more pod."""
        left = zip(self.free, each, strict=True)
        free = tuple(max(have - taken, 0) for have, taken in left)
        return HardwarePart(free, self.holders | {key})


Parts = Mapping[int, HardwarePart]
"""The GPUs of a node by minor, or its NUMA nodes by id."""


def gpu_parts(device: Object, pods: Iterable[ClusterPod]) -> Parts:
    """Return the healthy GPUs of a Device."""
    total, pods = devices_of(device), tuple(pods)
    free, holders = free_devices(total, pods), dict[int, set[str]]()
    for pod in pods:
        if not pod.finished:
            for minor in _minors(pod):
                holders.setdefault(minor, set()).add(pod.key)
    return {
        minor: HardwarePart(left, frozenset(holders.get(minor, ())))
        for (kind, minor), left in free.items()
        if kind == GPU
    }


def numa_parts(topology: Object, pods: Iterable[ClusterPod]) -> Parts:
    """Return the NUMA nodes of a NodeResourceTopology with the CPUs that no pod has for its own.

    Pods that have amounts of a NUMA node are holders, too.
    """
    nodes = numa_nodes_of(topology)
    free = {node: set[int]() for node in nodes.values()}
    for cpu, node in nodes.items():
        free[node].add(cpu)
    holders: dict[int, set[str]] = {}
    for pod in pods:
        if pod.finished or not pod.annotations:
            continue
        text = annotation(pod, RESOURCE_STATUS) or ""
        for cpu in _own_cpus(pod, text):
            if cpu in nodes:
                free[nodes[cpu]].discard(cpu)
                holders.setdefault(nodes[cpu], set()).add(pod.key)
        for node in _amounts_of(text) if text else ():
            holders.setdefault(node, set()).add(pod.key)
    return {
        node: HardwarePart((len(cpus),), frozenset(holders.get(node, ())))
        for node, cpus in free.items()
    }


def parts_wanted(pod: ClusterPod, kind: str) -> tuple[int, Each] | None:
    """Return of how many parts a pod's successor needs something, and how much of each.

    None: of none, or of CPUs that are on several NUMA nodes now.
    """
    need = need_of(pod)
    if need is None:
        return None
    if kind == NUMA_NODE:
        return (1, (need.cpus,)) if need.cpus else None
    return next(((count, each) for of, count, each in need.devices if of == GPU), None)


class CpuPlace(NamedTuple):
    """Where a CPU is, and whether pods can have it."""

    numa_node: int
    core: tuple[int, int]  # its socket, and its number there
    withheld: bool


def cpu_places(topology: Object) -> dict[int, CpuPlace]:
    """Return the CPUs of a node; none where the object is malformed."""
    annotations = annotations_of(topology)
    if CPU_TOPOLOGY not in annotations:
        return {}
    try:
        withheld = withheld_cpus(annotations)
        fields = annotation_fields(annotations[CPU_TOPOLOGY], CPU_TOPOLOGY)
        found = {}
        for one in islice(fields.objects("detail"), MAX_CPUS):
            cpu, core = one.integer("id") or 0, one.integer("core") or 0
            place = one.integer("node") or 0, (one.integer("socket") or 0, core)
            found[cpu] = CpuPlace(*place, cpu in withheld)
    except InvalidObject:
        return {}
    return found


def annotations_of(topology: Object) -> dict[str, str]:
    """Return the annotations of an object that are texts."""
    found = _dict(_dict(topology.get("metadata")).get("annotations"))
    return {key: text for key, text in found.items() if isinstance(text, str)}


def numa_nodes_of(topology: Object) -> dict[int, int]:
    """Return the NUMA node of each CPU that pods can have; as cpus_of."""
    places = cpu_places(topology).items()
    return {cpu: place.numa_node for cpu, place in places if not place.withheld}


@lru_cache(maxsize=4096)
def _amounts_of(text: str) -> frozenset[int]:
    """Ids of the NUMA nodes of which an annotation names amounts."""
    try:
        every = annotation_fields(text, RESOURCE_STATUS).objects("numaNodeResources")
        return frozenset(one.integer("node") or 0 for one in islice(every, MAX_CPUS))
    except InvalidObject:
        return frozenset()


def _minors(pod: ClusterPod) -> Iterator[int]:
    """GPUs of a pod, no more than it requests."""
    text = annotation(pod, DEVICE_ALLOCATED) or ""
    wanted = requested_devices(pod.spec.requests).get(GPU)
    if text and wanted is not None:
        for minor, _ in _allocated(text).get(GPU, ())[: wanted[0]]:
            yield minor
