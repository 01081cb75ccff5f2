"""Node: the v1 object, and the reservations of its administrator."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from koord.api.annotations import annotation_fields
from koord.api.fields import Fields
from koord.api.machine import CpuTopology, format_cpulist, parse_cpulist, take_by_topology
from koord.api.quantity import Quantity
from koord.util.errors import InvalidObject

_ADDRESS = re.compile(r"[0-9A-Za-z._:-]{1,253}", re.ASCII)  # an IP address or a host's name


class AddressType(StrEnum):
    """The type of a node's address."""

    HOSTNAME = "Hostname"
    EXTERNAL_IP = "ExternalIP"
    EXTERNAL_DNS = "ExternalDNS"
    INTERNAL_IP = "InternalIP"
    INTERNAL_DNS = "InternalDNS"


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """An address of a node. type may be one that AddressType does not have.

    address looks like an IP address or a host's name; others of the Node's are left out.
    """

    type: str
    address: str


@dataclass(frozen=True, slots=True)
class Node:
    """A v1 Node. Quantities are the texts found; each one is valid.

    uid is that of the object in the cluster; empty where none is known.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    addresses: tuple[NodeAddress, ...] = ()
    kubelet_port: int | None = None  # None: the kubelet has not said yet
    uid: str = ""


def parse_node(obj: object) -> Node:
    """Return the node of a v1 Node object as JSON.

    Raises:
        InvalidObject: a field this module reads is missing or has the wrong type.
    """
    root = Fields(obj, "node")
    meta, status = root.nested("metadata"), root.nested("status")
    return Node(
        name=meta.required_text("name"),
        labels=meta.texts("labels"),
        annotations=meta.texts("annotations"),
        capacity=status.quantities("capacity"),
        allocatable=status.quantities("allocatable"),
        addresses=tuple(_addresses(status)),
        kubelet_port=_kubelet_port(status),
        uid=meta.text("uid"),
    )


def _addresses(status: Fields) -> Iterator[NodeAddress]:
    for item in status.objects("addresses"):
        address = item.text("address")
        if _ADDRESS.fullmatch(address):
            yield NodeAddress(item.text("type"), address)


def _kubelet_port(status: Fields) -> int | None:
    port = status.nested("daemonEndpoints").nested("kubeletEndpoint").integer("Port")
    return port if port is not None and 0 < port < 65536 else None


NODE_RESERVATION = "node.koordinator.sh/reservation"  # annotation of a Node
SYSTEM_QOS_RESOURCE = "node.koordinator.sh/system-qos-resource"  # annotation of a Node


@dataclass(frozen=True, slots=True)
class NodeReservation:
    """Resources reserved on a node for what runs there outside of Kubernetes."""

    resources: Mapping[str, Quantity] = field(default_factory=dict)
    cpus: frozenset[int] = frozenset()
    apply_policy: str = ""

    def to_json(self) -> dict[str, object]:
        """The object as on the wire; what is empty is left out."""
        return {
            key: value
            for key, value in (
                ("resources", {name: str(self.resources[name]) for name in sorted(self.resources)}),
                ("reservedCPUs", format_cpulist(self.cpus)),
                ("applyPolicy", self.apply_policy),
            )
            if value
        }


@dataclass(frozen=True, slots=True)
class SystemQoS:
    """CPUs for pods of class SYSTEM and for host applications."""

    cpuset: str = ""
    exclusive: bool | None = None  # None: not said, which means yes

    @property
    def cpus(self) -> frozenset[int]:
        """The CPUs of the list; empty: none are set aside. Raises ValueError."""
        return parse_cpulist(self.cpuset)

    @property
    def exclusive_cpus(self) -> frozenset[int]:
        """The CPUs that nothing else may use; as in Koordinator, a malformed list names none."""
        if self.exclusive is False:
            return frozenset()
        try:
            return self.cpus
        except ValueError:
            return frozenset()

    def to_json(self) -> dict[str, object]:
        """The object as on the wire; what is empty is left out."""
        found: dict[str, object] = {"cpuset": self.cpuset} if self.cpuset else {}
        return found if self.exclusive is None else {**found, "cpusetExclusive": self.exclusive}


def effective_reservation(
    annotations: Mapping[str, str], topology: CpuTopology
) -> tuple[NodeReservation, InvalidObject | None]:
    """Return a node's reservation, with CPUs allocated where only their number is given.

    Also what is wrong with it: a malformed annotation reserves nothing, a malformed list or more
    CPUs than there are reserve none.
    """
    text = annotations.get(NODE_RESERVATION)
    if text is None:
        return NodeReservation(), None
    try:
        found = annotation_fields(text, NODE_RESERVATION)
        texts = found.quantities("resources")
        cpuset, policy = found.text("reservedCPUs"), found.text("applyPolicy")
    except InvalidObject as err:
        return NodeReservation(), err
    resources = {name: Quantity.parse(text) for name, text in texts.items()}
    try:
        return NodeReservation(resources, _cpus(cpuset, resources, topology), policy), None
    except ValueError as err:
        problem = InvalidObject(NODE_RESERVATION, wanted="CPUs of this machine", found=str(err))
        return NodeReservation(resources, apply_policy=policy), problem


def reserved_amounts(annotations: Mapping[str, str]) -> Mapping[str, Quantity]:
    """Return how much of each resource a node's reservation keeps; nothing when it is malformed.

    Where it lists CPUs, their number is the amount of "cpu".
    """
    text = annotations.get(NODE_RESERVATION)
    if text is None:
        return {}
    try:
        found = annotation_fields(text, NODE_RESERVATION)
        texts, cpuset = found.quantities("resources"), found.text("reservedCPUs")
        amounts = {name: Quantity.parse(text) for name, text in texts.items()}
        listed = len(parse_cpulist(cpuset))
    except (InvalidObject, ValueError):
        return {}
    return {**amounts, "cpu": Quantity.of_milli(listed * 1000)} if cpuset else amounts


def system_qos(annotations: Mapping[str, str]) -> SystemQoS:
    """Return what a node sets aside for system daemons.

    Raises:
        InvalidObject: the annotation is malformed.
    """
    text = annotations.get(SYSTEM_QOS_RESOURCE)
    if text is None:
        return SystemQoS()
    fields = annotation_fields(text, SYSTEM_QOS_RESOURCE)
    given = fields.get("cpusetExclusive") is not None
    return SystemQoS(fields.text("cpuset"), fields.boolean("cpusetExclusive") if given else None)


def set_aside_cpus(annotations: Mapping[str, str], topology: CpuTopology) -> frozenset[int]:
    """Return the CPUs of a node that are no pod's: reserved, or for system daemons alone.

    What is malformed sets none aside.
    """
    reservation, _ = effective_reservation(annotations, topology)
    try:
        return reservation.cpus | system_qos(annotations).exclusive_cpus
    except InvalidObject:
        return reservation.cpus


def _cpus(cpuset: str, resources: Mapping[str, Quantity], topology: CpuTopology) -> frozenset[int]:
    if cpuset:
        return parse_cpulist(cpuset)
    count = resources.get("cpu", Quantity(0)).integer
    return take_by_topology(topology, topology.numbers, count)
