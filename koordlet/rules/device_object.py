"""Device v1alpha1 on the wire: this agent's part of it, and patches that correct it."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from koord.api.fields import Fields
from koord.api.gojson import Json
from koord.api.node import Node
from koord.api.nodemetric import time_text
from koord.api.quantity import Quantity
from koordlet.rules.devices import (
    HEALTHY,
    PARTITIONS,
    UNHEALTHY,
    Device,
    DeviceTopology,
    NodeDevices,
)
from koordlet.rules.object_patch import (
    Operation,
    add_operation,
    annotation_operations,
    new_metadata,
    precondition,
)

API_VERSION = "scheduling.koordinator.sh/v1alpha1"
_HEALTHY, _WELL = "Healthy", "DeviceHealthy"
_FOREIGN_FIELDS = ("labels", "moduleID")  # of a device; this agent does not know them
_ANY_SOCKET, _ANY_GROUP = -1, -1


@dataclass(frozen=True, slots=True)
class PublishedDevices:
    """The object as it is on the server. None: the object has no annotations, or no labels."""

    uid: str
    version: str
    annotations: Mapping[str, str] | None
    labels: Mapping[str, str] | None
    devices: object  # as found
    has_spec: bool


def parse_published_devices(obj: object) -> PublishedDevices:
    """Return the relevant part of a Device object as JSON.

    Raises:
        InvalidObject: its metadata is malformed; other malformed fields will be overwritten.
    """
    root = Fields(obj, "device")
    meta = root.nested("metadata")
    spec = root.raw.get("spec")
    return PublishedDevices(
        uid=meta.required_text("uid"),
        version=meta.required_text("resourceVersion"),
        annotations=meta.texts("annotations") if meta.raw.get("annotations") else None,
        labels=meta.texts("labels") if meta.raw.get("labels") else None,
        devices=spec.get("devices") if isinstance(spec, Mapping) else None,
        has_spec=isinstance(spec, Mapping),
    )


def new_device_object(name: str, node: Node, wanted: NodeDevices, now: float) -> Json:
    """Return the object to create. now: Unix seconds, the time of all conditions."""
    labels = {key: text for key, text in wanted.labels.items() if text}
    annotations = {PARTITIONS: wanted.partitions} if wanted.partitions else {}
    return {
        "apiVersion": API_VERSION,
        "kind": "Device",
        "metadata": new_metadata(name, node, labels, annotations),
        "spec": {"devices": merged_devices([], wanted, now)},
    }


def device_patch(published: PublishedDevices, wanted: NodeDevices, now: float) -> list[Operation]:
    """Return the operations that correct this agent's part of the object; none when it is right.

    They apply to exactly the version that was read, as the list is replaced as a whole. now: Unix
    seconds, the time of conditions that have changed.
    """
    operations = [*annotation_operations("labels", published.labels, wanted.labels)]
    if wanted.labels:  # what GPUs there are is known
        texts = {PARTITIONS: wanted.partitions}
        operations += annotation_operations("annotations", published.annotations, texts)
    devices = merged_devices(published.devices, wanted, now)
    if not _is_equal(published.devices, devices):
        whole = add_operation("/spec", {"devices": devices})
        operations.append(add_operation("/spec/devices", devices) if published.has_spec else whole)
    return precondition(published.uid, published.version, operations)


def merged_devices(published: object, wanted: NodeDevices, now: float) -> list[Json]:
    """Return the list with the devices of known types replaced, by type and minor.

    Devices of other types stay, and those of a type of which not all may be known; so do, for a
    device that stays, the time of a condition with the
    same status, and the fields that others write.
    """
    found = [each for each in _items(published) if isinstance(each, Mapping)]
    known = {each.value for each in wanted.known}
    earlier = {(each.get("type"), each.get("id")): each for each in found if _has_names(each)}
    partial = {each.value for each in wanted.partial}
    ours = {(device.type.value, device.id) for device in wanted.devices}
    merged = [
        dict(each)
        for each in found
        if not _matches_any(each.get("type"), known)
        or (
            _matches_any(each.get("type"), partial)
            and _has_names(each)
            and (each.get("type"), each.get("id")) not in ours
        )
    ]
    merged += [
        _device(device, earlier.get((device.type.value, device.id), {}), now)
        for device in wanted.devices
        if device.type.value in known
    ]
    return sorted(merged, key=_topology_json)


def _device(device: Device, earlier: Mapping[str, object], now: float) -> Json:
    made: Json = {
        **{key: earlier[key] for key in _FOREIGN_FIELDS if key in earlier},
        "type": device.type.value,
        "id": device.id,
        "minor": device.minor,
        "health": not device.error,
        "resources": dict(device.resources),
        "conditions": [_condition(device, earlier, now)],
    }
    if device.topology is not None:
        made["topology"] = _topology(device.topology)
    if device.functions:
        functions = [{"minor": _ANY_GROUP, "busID": bus} for bus in sorted(device.functions)]
        made["vfGroups"] = [{"vfs": functions}]
    return made


def _topology(topology: DeviceTopology) -> Json:
    bus = {"busID": topology.bus} if topology.bus else {}
    return {
        "socketID": _ANY_SOCKET,
        "nodeID": topology.numa_node,
        "pcieID": topology.pcie,
        **bus,
    }


def _condition(device: Device, earlier: Mapping[str, object], now: float) -> Json:
    status = "False" if device.error else "True"
    since = time_text(now)
    for condition in _items(earlier.get("conditions")):
        if isinstance(condition, Mapping) and condition.get("type") == _HEALTHY:
            time = condition.get("lastTransitionTime")
            if condition.get("status") == status and isinstance(time, str) and time:
                since = time
    return {
        "type": _HEALTHY,
        "status": status,
        "reason": device.error or _WELL,
        "message": device.message or (UNHEALTHY if device.error else HEALTHY),
        "lastTransitionTime": since,
    }


def _is_equal(found: object, wanted: list[Json]) -> bool:
    """Whether two lists say the same, however quantities are written."""
    if not isinstance(found, list):
        return found is None and not wanted
    return list(map(_plain, found)) == list(map(_plain, wanted))


def _plain(device: object) -> object:
    if not isinstance(device, Mapping):
        return device
    resources = device.get("resources")
    if not isinstance(resources, Mapping):
        return device
    return {**device, "resources": dict(_amounts(resources))}


def _amounts(resources: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in resources.items():
        try:
            yield name, Quantity.parse(value)
        except ValueError:
            yield name, value


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _matches_any(name: object, names: Set[str]) -> bool:
    return isinstance(name, str) and name in names


def _has_names(device: Mapping[str, object]) -> bool:
    return isinstance(device.get("type"), str) and isinstance(device.get("id"), str)


def _topology_json(device: Json) -> tuple[str, int, str]:
    minor = device.get("minor")
    number = minor if isinstance(minor, int) else -1
    return str(device.get("type", "")), number, str(device.get("id", ""))
