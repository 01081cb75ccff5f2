"""Which packets are a pod's, by its addresses. Pure."""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

from koord.api.pods.pod import Pod
from koordlet.plugin import InvalidObject

Address = IPv4Address | IPv6Address

_LATE = float("inf")


class Addressed(NamedTuple):
    """A pod with the addresses of its network namespace."""

    pod: Pod
    addresses: tuple[Address, ...]


def addresses_of(pod: Pod) -> tuple[Address, ...]:
    """Return a pod's own addresses; none for a pod in the node's network namespace.

    Raises:
        InvalidObject: one is none, or none that packets of one pod come from.
    """
    if pod.host_network:
        return ()
    where = f"pod {pod.namespace}/{pod.name}: status.podIPs"
    return tuple(dict.fromkeys(_address(text, where) for text in pod.ips))


def _address(text: str, where: str) -> Address:
    try:
        found = ip_address(text)
    except ValueError:
        found = None
    if found is None or not _is_own(found):
        raise InvalidObject(where, wanted="addresses of one pod alone", found=text)
    return found


def _is_own(address: Address) -> bool:
    if isinstance(address, IPv6Address) and (
        address.scope_id is not None or address.ipv4_mapped is not None
    ):
        return False
    return not (
        address.is_unspecified
        or address.is_loopback
        or address.is_multicast
        or address.is_link_local
        or address.is_reserved
    )


def owners(pods: Iterable[Addressed], of_node: Iterable[Address] = ()) -> dict[Address, str]:
    """Return the UID of the pod that has each address, but those of the node itself.

    Of several pods with one address it is the one that was started last: a network plugin gives an
    address again as soon as a sandbox is gone, which may be before the pod is.
    """
    found: dict[Address, Pod] = {}
    for pod, addresses in pods:
        for address in addresses:
            other = found.get(address)
            if other is None or _age(other) < _age(pod):
                found[address] = pod
    taken = set(of_node)
    return {address: pod.uid for address, pod in found.items() if address not in taken}


def _age(pod: Pod) -> tuple[bool, float, str]:
    start = _LATE if pod.start_time is None else pod.start_time
    return (pod.gone_by is None, start, pod.uid)
