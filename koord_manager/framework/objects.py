"""Objects of a node besides the Node: its NUMA zones and its devices, as far as they decide."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from koord.api.annotations import annotation_fields
from koord.api.fields import Fields
from koord.api.pod import amount
from koord.api.slocontroller import CPU_BASIC_INFO
from koord.kube.transport import Object
from koord.util.errors import InvalidObject

MAX_ZONES = 64  # of a node
MAX_ZONE_RESOURCES = 64
MAX_DEVICES = 256  # of a node


@dataclass(frozen=True, slots=True)
class Zone:
    """A NUMA zone: its allocatable, and the names and texts of its resources as they are stored."""

    name: str
    milli_cores: int
    memory_bytes: int
    names: tuple[str, ...]  # of its resources, in their order
    texts: tuple[tuple[str, str, str], ...]  # capacity, allocatable and available of each


@dataclass(frozen=True, slots=True)
class CpuModel:
    """The CPU model of a node."""

    model: str
    hyper_threading: bool = False
    turbo: bool = False


@dataclass(frozen=True, slots=True)
class NodeTopology:
    """A NodeResourceTopology."""

    uid: str
    version: str
    zones: tuple[Zone, ...] = ()  # empty: none has CPU or memory
    cpu: CpuModel | None = None  # None: not said


def read_topology(item: Object) -> NodeTopology:
    """Return what is kept of a NodeResourceTopology.

    Raises:
        InvalidObject: it is malformed, or has more zones or resources than any machine.
    """
    root = Fields(item, "NodeResourceTopology")
    meta = root.nested("metadata")
    items = root.objects("zones")
    zones = tuple(map(_zone, _bounded(items, MAX_ZONES, "zones")))
    decides = any(zone.milli_cores or zone.memory_bytes for zone in zones)
    return NodeTopology(
        meta.text("uid"),
        meta.text("resourceVersion"),
        zones if decides else (),
        _cpu_model(meta.texts("annotations").get(CPU_BASIC_INFO)),
    )


def _zone(fields: Fields) -> Zone:
    resources = _bounded(fields.objects("resources"), MAX_ZONE_RESOURCES, "resources")
    names = tuple([one.text("name") for one in resources])
    texts = tuple(
        [
            (_text(one, "capacity"), _text(one, "allocatable"), _text(one, "available"))
            for one in resources
        ]
    )
    allocatable = {name: each[1] for name, each in zip(names, texts, strict=True)}
    cpu = amount("cpu", allocatable.get("cpu") or "0")
    memory = amount("memory", allocatable.get("memory") or "0")
    return Zone(fields.text("name"), max(cpu, 0), max(memory, 0), names, texts)


def _text(fields: Fields, key: str) -> str:
    found = fields.quantity(key)
    return "0" if found is None else str(found)


def _cpu_model(text: str | None) -> CpuModel | None:
    if text is None:
        return None
    try:
        found = annotation_fields(text, CPU_BASIC_INFO)
        return CpuModel(
            found.text("cpuModel"),
            bool(found.boolean("hyperThreadEnabled")),
            bool(found.boolean("turboEnabled")),
        )
    except InvalidObject:
        return None


@dataclass(frozen=True, slots=True)
class NodeDevice:
    """One device. Amounts by name of the resource, in whole units."""

    type: str  # "gpu", "rdma", "fpga", "xpu"
    is_healthy: bool
    resources: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """A Device object: all devices of one node."""

    devices: tuple[NodeDevice, ...]
    labels: Mapping[str, str]


def read_devices(item: Object) -> NodeDevices:
    """Return what is kept of a Device object.

    Raises:
        InvalidObject: it is malformed, or has more devices than any machine.
    """
    root = Fields(item, "Device")
    items = _bounded(root.nested("spec").objects("devices"), MAX_DEVICES, "devices")
    return NodeDevices(tuple(map(_device, items)), root.nested("metadata").texts("labels"))


def _device(fields: Fields) -> NodeDevice:
    amounts = {name: amount(name, text) for name, text in fields.quantities("resources").items()}
    healthy = fields.get("health") is not None and bool(fields.boolean("health"))
    return NodeDevice(fields.text("type"), healthy, amounts)


def _bounded(items: Iterable[Fields], most: int, what: str) -> list[Fields]:
    found = list(items)
    if len(found) > most:
        raise InvalidObject(what, wanted=f"at most {most}", found=f"{len(found)}")
    return found
