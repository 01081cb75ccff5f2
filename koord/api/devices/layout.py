"""The devices of a node, as its Device object says: totals, topology, partitions.

Source: Koordinator, apis/scheduling/v1alpha1 (Device), apis/extension/device_share.go.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import MappingProxyType

from koord.api.annotations import MAX_DEVICES
from koord.api.fields import Fields
from koord.api.gojson import parse_json
from koord.api.quantity import Quantity
from koord.util.errors import InvalidObject

GPU, RDMA, FPGA = "gpu", "rdma", "fpga"
TYPES = (FPGA, GPU, RDMA)
"""Types of devices, in the order in which they are named."""

PREFIX, OLD_PREFIX = "koordinator.sh/", "kubernetes.io/"
GPU_CORE, GPU_MEMORY = f"{PREFIX}gpu-core", f"{PREFIX}gpu-memory"
GPU_MEMORY_RATIO, RDMA_SHARE = f"{PREFIX}gpu-memory-ratio", f"{PREFIX}rdma"
FPGA_SHARE = f"{PREFIX}fpga"
WHOLE = 100  # percent of one device

PARTITIONS = "scheduling.koordinator.sh/gpu-partitions"  # annotation of a Device
PARTITION_POLICY = "node.koordinator.sh/gpu-partition-policy"  # label of a Device, or of a Node
VENDOR, MODEL = "node.koordinator.sh/gpu-vendor", "node.koordinator.sh/gpu-model"  # of both
WELL_PLANNED = "node.koordinator.sh/secondary-device-well-planned"  # label of a Device
HONOR = "Honor"

ANY_NUMA = -1  # of a device that is as near to all NUMA nodes
MAX_FUNCTIONS = 256  # of one device
MAX_PARTITIONS = 1024  # of one node
_LARGEST_MINOR = 2**31 - 1
_MAX_TEXT = 256  # characters of an id, an address or a label

Amounts = Mapping[str, int]
"""By name of the resource: percent, bytes, or units of what it is."""
NOTHING: Amounts = MappingProxyType({})

_OLD_NAMES = {
    f"{OLD_PREFIX}{name}": f"{PREFIX}{name}"
    for name in ("gpu", "gpu-core", "gpu-memory", "gpu-memory-ratio", "rdma", "fpga")
}


def present_name(resource: str) -> str:
    """Return the name of a resource that Koordinator uses now, of one that it has used before."""
    return _OLD_NAMES.get(resource, resource)


@dataclass(frozen=True, slots=True)
class FunctionGroup:
    """Virtual functions of a device, by their PCI addresses."""

    labels: tuple[tuple[str, str], ...]
    functions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeDevice:
    """One device of a node. It has no amounts while it is not healthy."""

    type: str
    minor: int
    total: tuple[tuple[str, int], ...] = ()
    numa_node: int | None = None  # ANY_NUMA: near to all; None: its topology is not known
    pcie: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    groups: tuple[FunctionGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class Partition:
    """GPUs that may be given to one pod together."""

    minors: frozenset[int]
    score: int = 1  # the higher, the better
    bandwidth: int | None = None  # bits a second of the ring bus; None: not known


Partitions = Mapping[int, tuple[tuple[Partition, ...], ...]]
"""By number of GPUs: groups of one score, the highest first, each in the order of the table."""


@dataclass(frozen=True, slots=True)
class Scope:
    """A part of the topology with its GPUs: the node, a NUMA node, or a PCIe switch."""

    level: int
    minors: tuple[int, ...]  # ascending
    children: tuple["Scope", ...] = ()


@dataclass(frozen=True)
class DeviceLayout:
    """The devices of a node. Nodes with the same ones have equal layouts."""

    devices: tuple[NodeDevice, ...] = ()  # by type and minor, each pair once
    table: tuple[tuple[int, Partition], ...] | None = None  # None: there is no partition table
    honor: bool = False  # only partitions of the table are given

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.devices, self.table, self.honor))

    @cached_property
    def by_type(self) -> Mapping[str, Mapping[int, NodeDevice]]:
        """Devices by type and minor; a type is absent where there is none."""
        found: dict[str, dict[int, NodeDevice]] = {}
        for each in self.devices:
            found.setdefault(each.type, {})[each.minor] = each
        return found

    @cached_property
    def totals(self) -> Mapping[str, Mapping[int, Amounts]]:
        """Amounts by type and minor; empty for a device that is not healthy."""
        return {
            kind: {minor: dict(one.total) for minor, one in devices.items()}
            for kind, devices in self.by_type.items()
        }

    @cached_property
    def partitions(self) -> Partitions | None:
        """The partition table; None: there is none."""
        return None if self.table is None else _grouped(self.table)

    @cached_property
    def scopes(self) -> Scope | None:
        """The topology of the GPUs; None: there are none, or that of one is not known."""
        gpus = self.by_type.get(GPU, {})
        if not gpus or any(one.numa_node is None for one in gpus.values()):
            return None
        numa: dict[int, dict[str, list[int]]] = {}
        for minor, one in gpus.items():
            assert one.numa_node is not None  # noqa: S101 - as just checked
            numa.setdefault(one.numa_node, {}).setdefault(one.pcie, []).append(minor)
        parts = []
        for _, switches in sorted(numa.items()):
            leaves = [
                Scope(LEVELS["PCIe"], tuple(sorted(each))) for _, each in sorted(switches.items())
            ]
            inside = tuple(sorted(minor for leaf in leaves for minor in leaf.minors))
            parts.append(Scope(LEVELS["NUMANode"], inside, tuple(leaves)))
        return Scope(LEVELS["Node"], tuple(sorted(gpus)), tuple(parts))

    @cached_property
    def numa_nodes(self) -> tuple[int, ...]:
        """The NUMA nodes that have devices, ascending."""
        known = {one.numa_node for one in self.devices}
        return tuple(sorted(one for one in known if one is not None and one != ANY_NUMA))


LEVELS: Mapping[str, int] = MappingProxyType({"Node": 1, "NUMANode": 2, "PCIe": 3, "Device": 4})
"""Required topology scopes of GPUs; the higher, the nearer to each other."""


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """A Device object."""

    name: str  # of the node
    layout: DeviceLayout
    ids: Mapping[tuple[str, int], str] = field(default_factory=dict)  # by type and minor
    vendor: str = ""
    model: str = ""
    well_planned: str = ""  # "true", "false", or "": not known
    faults: tuple[str, ...] = ()  # why some devices, or the partition table, do not count


NO_DEVICES = DeviceLayout()


def read_devices(found: Mapping[str, object]) -> NodeDevices:
    """Return what a Device object says.

    A device that cannot be as it is described counts as not healthy: one with a negative amount,
    and those that have a minor twice.

    Raises:
        InvalidObject: it is malformed, or has more devices of a type than a node can have.
    """
    meta = Fields(found.get("metadata") or {}, "metadata")
    name, labels = meta.required_text("name"), meta.texts("labels")
    faults: list[str] = []
    devices: dict[tuple[str, int], NodeDevice] = {}
    ids: dict[tuple[str, int], str] = {}
    for fields in Fields(found, f"Device {name}").nested("spec").objects("devices"):
        device, fault = _device(fields)
        if device.type not in TYPES:
            continue
        key = device.type, device.minor
        if key in devices:
            fault, device = f"{fields.where}: minor {device.minor} twice", _broken(device)
        if fault:
            faults.append(fault)
        devices[key] = device
        ids[key] = fields.text("id")[:_MAX_TEXT]
    for kind in TYPES:
        count = sum(1 for each in devices if each[0] == kind)
        if count > MAX_DEVICES:
            wanted = f"at most {MAX_DEVICES} devices of type {kind}"
            raise InvalidObject(f"Device {name}: spec.devices", wanted=wanted, found=count)
    text, table = meta.texts("annotations").get(PARTITIONS), None
    if text is not None:
        try:
            table = tuple(_partitions(text))
        except InvalidObject as err:
            faults.append(str(err))
    ordered = tuple(devices[key] for key in sorted(devices))
    layout = DeviceLayout(ordered, table, labels.get(PARTITION_POLICY) == HONOR)
    return NodeDevices(
        name=name,
        layout=layout,
        ids=ids,
        vendor=labels.get(VENDOR, ""),
        model=labels.get(MODEL, ""),
        well_planned=labels.get(WELL_PLANNED, ""),
        faults=tuple(faults),
    )


def _device(fields: Fields) -> tuple[NodeDevice, str]:
    """A device, and why it does not count as it is; "": it does."""
    minor = fields.integer("minor") or 0
    if not 0 <= minor <= _LARGEST_MINOR:
        raise InvalidObject(fields.path("minor"), wanted="0 or more, of 31 bits", found=minor)
    total: dict[str, int] = {}
    fault = ""
    for name, text in fields.quantities("resources").items():
        amount = Quantity.parse(text).integer
        if amount < 0:
            fault = f"{fields.path('resources')}: {name} is {text}"
        total[present_name(name)] = amount
    numa_node, pcie = None, ""
    if fields.get("topology") is not None:
        topology = fields.nested("topology")
        numa_node = topology.integer("nodeID") or 0
        pcie = topology.text("pcieID")[:_MAX_TEXT]
        if numa_node < ANY_NUMA:
            numa_node = ANY_NUMA
    groups = tuple(_group(each) for each in fields.objects("vfGroups"))
    if sum(len(each.functions) for each in groups) > MAX_FUNCTIONS:
        wanted = f"at most {MAX_FUNCTIONS} functions"
        raise InvalidObject(fields.path("vfGroups"), wanted=wanted, found="more")
    device = NodeDevice(
        type=fields.text("type"),
        minor=minor,
        total=tuple(sorted(total.items())),
        numa_node=numa_node,
        pcie=pcie,
        labels=_labels(fields),
        groups=groups,
    )
    return (device if fields.boolean("health") and not fault else _broken(device)), fault


def _broken(device: NodeDevice) -> NodeDevice:
    """The device without anything that could be given away."""
    return NodeDevice(
        type=device.type,
        minor=device.minor,
        numa_node=device.numa_node,
        pcie=device.pcie,
        labels=device.labels,
    )


def _group(fields: Fields) -> FunctionGroup:
    names = {each.text("busID")[:_MAX_TEXT] for each in fields.objects("vfs")} - {""}
    return FunctionGroup(_labels(fields), tuple(sorted(names, key=address_order)))


def _labels(fields: Fields) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(fields.texts("labels").items()))


@lru_cache(maxsize=4096)
def address_order(address: str) -> tuple[tuple[int, ...], str]:
    """The place of a PCI address among others, by its numbers: …00.2 is before …00.10."""
    parts = address.replace(".", ":").split(":")
    try:
        return tuple(int(one, 16) for one in parts), address
    except ValueError:
        return (), address


def _partitions(text: str) -> Iterator[tuple[int, Partition]]:
    """The rows of a partition table, by the number of GPUs. Raises InvalidObject."""
    fields = Fields(parse_json(text, PARTITIONS) or {}, PARTITIONS)
    count = 0
    for size in fields.raw:
        if not (size.isascii() and size.isdigit() and 0 < len(size) <= 3):
            raise InvalidObject(PARTITIONS, wanted="numbers of GPUs", found=size)
        for each in fields.objects(size):
            count += 1
            if count > MAX_PARTITIONS:
                wanted = f"at most {MAX_PARTITIONS} partitions"
                raise InvalidObject(PARTITIONS, wanted=wanted, found="more")
            minors = each.list_of("minors", _minor, "a number of 31 bits")
            score = each.integer("allocationScore") or 0
            quantity = each.quantity("ringBusBandwidth")
            bandwidth = None if quantity is None else quantity.integer
            if len(set(minors)) == int(size):  # another row could never be given
                yield int(size), Partition(frozenset(minors), score, bandwidth)


def _minor(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_MINOR:
        return value
    raise ValueError(value)


@lru_cache(maxsize=1024)
def _grouped(table: tuple[tuple[int, Partition], ...]) -> Partitions:
    sizes: dict[int, dict[int, list[Partition]]] = {}
    for size, one in table:
        sizes.setdefault(size, {}).setdefault(one.score, []).append(one)
    return {
        size: tuple(tuple(scores[score]) for score in sorted(scores, reverse=True))
        for size, scores in sizes.items()
    }


def _built_in() -> Iterator[tuple[int, Partition]]:
    for size in (1, 2, 4, 8):
        for first in range(0, 8, size):
            yield size, Partition(frozenset(range(first, first + size)))


_NVLINK_MODELS = frozenset({"H100", "H800", "H20"})
_NVLINK = _grouped(tuple(_built_in()))


@dataclass(frozen=True, slots=True)
class NodeTraits:
    """The labels of a Node that matter for its devices."""

    vendor: str = ""
    model: str = ""
    honor: bool = False  # its partition policy, where the Device has no table
    isolation: str = ""  # its isolation provider

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> "NodeTraits":
        return cls(
            labels.get(VENDOR, ""),
            labels.get(MODEL, ""),
            labels.get(PARTITION_POLICY) == HONOR,
            labels.get(ISOLATION_PROVIDER, ""),
        )

    @property
    def vendor_model(self) -> str:
        """The name of the model in the templates."""
        return f"{self.vendor}-{self.model}"


ISOLATION_PROVIDER = "koordinator.sh/gpu-isolation-provider"  # label of pods and Nodes
NODE_LABELS = (VENDOR, MODEL, PARTITION_POLICY, ISOLATION_PROVIDER)
"""Labels of Nodes that matter."""


CAMBRICON_LOCK, METAX_LOCK = "cambricon.com/dsmlu.lock", "hami.io/mutex.lock"
NODE_LOCKS = (CAMBRICON_LOCK, METAX_LOCK)
"""Annotations of Nodes: a pod is being given devices there, and others have to wait."""


def partitions_of(layout: DeviceLayout, node: NodeTraits) -> tuple[Partitions | None, bool]:
    """Return the partitions of a node, None without a table, and whether only they are given."""
    if layout.partitions is not None:
        return layout.partitions, layout.honor
    if node.vendor in ("", "nvidia") and node.model in _NVLINK_MODELS:
        return _NVLINK, node.honor
    return None, node.honor


def used_key(kind: str, minor: int, name: str) -> str:
    """Return the name in the account of an amount of a device, or of a function of it."""
    return f"{kind}/{minor}/{name}"


FUNCTION = "function:"  # begins the name of a function, before its address


class DeviceTable:
    """Totals, and used and free amounts, of the devices of a node at one moment.

    What is used of a device that has gone or shrunk stays used; no free amount is below 0.
    """

    def __init__(
        self, layout: DeviceLayout, node: NodeTraits, used: Iterable[tuple[str, int]] = ()
    ) -> None:
        """used: amounts by used_key."""
        self.layout = layout
        self.node = node
        self.used: dict[str, dict[int, dict[str, int]]] = {}
        self.functions: dict[tuple[str, int], set[str]] = {}
        """Addresses of virtual functions in use, by type and minor."""
        for key, amount in used:
            kind, minor, name = key.split("/", 2)
            if name.startswith(FUNCTION):
                address = name.removeprefix(FUNCTION)
                self.functions.setdefault((kind, int(minor)), set()).add(address)
            else:
                self.used.setdefault(kind, {}).setdefault(int(minor), {})[name] = amount
        self._free: dict[str, dict[int, Amounts]] = {}
        self._sums: dict[str, tuple[Amounts, Amounts]] = {}

    def free(self, kind: str) -> Mapping[int, Amounts]:
        """Return the free amounts of each device of a type."""
        found = self._free.get(kind)
        if found is None:
            used = self.used.get(kind, {})
            found = self._free[kind] = {
                minor: _less(total, used[minor]) if minor in used else total
                for minor, total in self.layout.totals.get(kind, {}).items()
            }
        return found

    def total(self, kind: str) -> Mapping[int, Amounts]:
        """The amounts of each device of a type."""
        return self.layout.totals.get(kind, {})

    def sums(self, kind: str, only: Collection[int] | None = None) -> tuple[Amounts, Amounts]:
        """Total and free amounts of all devices of a type together, or of some by their minors."""
        if only is not None:
            every = (self.total(kind), self.free(kind))
            total, free = (_sum(each[one] for one in only if one in each) for each in every)
            return total, free
        found = self._sums.get(kind)
        if found is None:
            found = _sum(self.total(kind).values()), _sum(self.free(kind).values())
            self._sums[kind] = found
        return found

    def devices(self, kind: str) -> Mapping[int, NodeDevice]:
        """The devices of a type by minor; empty: the node has none."""
        return self.layout.by_type.get(kind, {})

    def is_used(self, kind: str, minor: int) -> bool:
        """Whether pods have something of a device."""
        return minor in self.used.get(kind, ()) or (kind, minor) in self.functions

    @cached_property
    def used_gpus(self) -> frozenset[int]:
        """Minors of GPUs of which pods have something."""
        return frozenset(self.used.get(GPU, ()))


def _sum(every: Iterable[Amounts]) -> Amounts:
    found: dict[str, int] = {}
    for amounts in every:
        for name, amount in amounts.items():
            found[name] = found.get(name, 0) + amount
    return found


def _less(total: Amounts, used: Amounts) -> Amounts:
    return {name: max(amount - used.get(name, 0), 0) for name, amount in total.items()}


def fits(request: Amounts, free: Amounts) -> bool:
    """Whether a device has as much free; what it does not have counts as 0."""
    for name, amount in request.items():  # noqa: SIM110 - asked for each device, three times as fast
        if free.get(name, 0) < amount:
            return False
    return True
