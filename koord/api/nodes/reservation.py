"""Reservations on a node by its administrator: resources or CPUs, and CPUs for system daemons.

Source: Koordinator, apis/extension: GetNodeReservation, GetReservedCPUs, GetSystemQOSResource.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from koord.api.decoding.annotation import annotation_fields
from koord.api.nodes.cpuallocator import take_by_topology
from koord.api.nodes.machine import CpuTopology
from koord.api.quantity import Quantity
from koord.util.cpulist import format_cpulist, parse_cpulist
from koord.util.errors import InvalidObject

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
