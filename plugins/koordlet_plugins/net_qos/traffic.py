"""Traffic classes at the roots of interfaces, from rates, limits and addresses. Pure."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple
from zlib import crc32

from koord.api.pod import Pod
from koord.plugin import InvalidObject
from koordlet.plugin.network import (
    BE,
    LINK,
    LS,
    MIN_RATE,
    SYSTEM,
    Address,
    AddressMatch,
    CgroupMatch,
    ClassRates,
    TrafficClass,
    TrafficTree,
)

NAMES = {SYSTEM: "system", LS: "ls", BE: "be"}
LEAF = 3  # from the number of a class to that of its leaf
DEFAULT = SYSTEM + LEAF
FIRST, LAST = 16, 0xFFFE  # numbers of pods' classes
MAX_PODS = 1000  # whose packets are distinguished: with 4 addresses each u32 can have no more


class PodTraffic(NamedTuple):
    """The traffic of a pod: its class, addresses and limit."""

    uid: str
    minor: int  # SYSTEM, LS or BE
    addresses: tuple[Address, ...]  # that are its own
    limit: int  # bytes/s; 0: none
    group: tuple[int, int] | None = None  # level and number of the cgroup that tells its sockets


def node_tree(
    rates: Sequence[ClassRates], pods: Sequence[PodTraffic], numbers: Mapping[str, int]
) -> TrafficTree:
    """Return the desired tree of the node's interface.

    rates: those of network_qos.classes, not empty. pods: MAX_PODS at most, no address twice. A pod
    whose class has no rates belongs to SYSTEM. numbers: of the pods with a limit, by UID.
    """
    known = {each.minor: each for each in rates}
    members: dict[int, list[PodTraffic]] = {minor: [] for minor in known if minor != LINK}
    for pod in pods:
        members[pod.minor if pod.minor in members else SYSTEM].append(pod)
    found = [_class(each) for each in rates]
    matches: list[AddressMatch] = []
    sockets: list[CgroupMatch] = []
    for minor, of_class in members.items():
        found += _leaves(known[minor], of_class, numbers)
    for pod in pods:
        leaf = leaf_of(pod, known, numbers)
        if leaf != DEFAULT:
            matches += [AddressMatch("from", address, leaf) for address in pod.addresses]
            sockets += [CgroupMatch(*pod.group, leaf)] if pod.group else []
    return TrafficTree.of(DEFAULT, found, matches, sockets)


def leaf_of(pod: PodTraffic, known: Container[int], numbers: Mapping[str, int]) -> int:
    """Return the class of a pod's packets. known: the classes that there are."""
    if pod.limit:
        return numbers[pod.uid]
    return (pod.minor if pod.minor in known else SYSTEM) + LEAF


def pod_tree(limit: int) -> TrafficTree:
    """Return what shall be at the root of the node's end of a pod's interface: what it receives."""
    return TrafficTree.of(1, [TrafficClass(1, 0, limit, limit, 0)], [])


def _class(each: ClassRates) -> TrafficClass:
    return TrafficClass(each.minor, each.below, each.rate, each.ceil, each.prio)


def _leaves(
    above: ClassRates, pods: Sequence[PodTraffic], numbers: Mapping[str, int]
) -> Iterator[TrafficClass]:
    """Yield the classes below one, which share its rate.

    A pod's part depends on the power of two above the count of pods, so that it seldom changes. The
    sum is more than the rate only where each pod would have less than MIN_RATE.
    """
    part = max(above.rate >> len(pods).bit_length(), MIN_RATE)
    left = above.rate
    for pod in pods:
        if pod.limit:
            ceil = max(min(pod.limit, above.ceil), MIN_RATE)
            rate = min(part, ceil)
            left -= rate
            yield TrafficClass(numbers[pod.uid], above.minor, rate, ceil, above.prio)
    rest = max(left, MIN_RATE)
    yield TrafficClass(above.minor + LEAF, above.minor, rest, above.ceil, above.prio)


def numbered(uids: Iterable[str], before: Mapping[str, int]) -> dict[str, int]:
    """Return a class number for each of these pods, LAST - FIRST of them at most.

    It is that of before, else one that follows from the UID: the same after a restart, unless
    another pod has it.
    """
    wanted = sorted(set(uids))
    found = {uid: before[uid] for uid in wanted if uid in before}
    taken = set(found.values())
    for uid in wanted:
        if uid not in found:
            number = crc32(uid.encode())
            while (found_number := FIRST + number % (LAST + 1 - FIRST)) in taken:
                number += 1
            found[uid] = found_number
            taken.add(found_number)
    return found


def recovered(tree: TrafficTree, owners: Mapping[Address, str]) -> dict[str, int]:
    """Return the class numbers that pods have in a tree that is there, by UID, each once."""
    found: dict[int, str] = {}
    for match in tree.matches:
        uid = owners.get(match.address)
        if match.minor >= FIRST and uid is not None and uid not in found.values():
            found.setdefault(match.minor, uid)
    return {uid: number for number, uid in found.items()}


IpAddress = IPv4Address | IPv6Address

_LATE = float("inf")


class PodAddresses(NamedTuple):
    """A pod with the addresses of its network namespace."""

    pod: Pod
    addresses: tuple[IpAddress, ...]


def addresses_of(pod: Pod) -> tuple[IpAddress, ...]:
    """Return a pod's own addresses; none for a pod in the node's network namespace.

    Raises:
        InvalidObject: one is none, or none that packets of one pod come from.
    """
    if pod.host_network:
        return ()
    where = f"pod {pod.namespace}/{pod.name}: status.podIPs"
    return tuple(dict.fromkeys(_address(text, where) for text in pod.ips))


def _address(text: str, where: str) -> IpAddress:
    try:
        found = ip_address(text)
    except ValueError:
        found = None
    if found is None or not _is_own(found):
        raise InvalidObject(where, wanted="addresses of one pod alone", found=text)
    return found


def _is_own(address: IpAddress) -> bool:
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


def owners(pods: Iterable[PodAddresses], of_node: Iterable[IpAddress] = ()) -> dict[IpAddress, str]:
    """Return the UID of the pod that has each address, but those of the node itself.

    Of several pods with one address it is the one that was started last: a network plugin gives an
    address again as soon as a sandbox is gone, which may be before the pod is.
    """
    found: dict[IpAddress, Pod] = {}
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
