"""The node this daemon runs on, as the cluster (or a file, or the host itself) describes it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from koord.api.decoding.fields import Fields

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
