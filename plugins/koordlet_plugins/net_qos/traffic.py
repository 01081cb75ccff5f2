"""Traffic classes at the roots of interfaces, from rates, limits and addresses. Pure."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple
from zlib import crc32

from koord.api.networkqos import MAX_RATE, MIN_RATE, Problems, bytes_per_second
from koord.api.pod import Pod
from koord.api.qosstrategy import NetQoSPolicy, NetworkQoS, ResourceQoS
from koord.api.quantity import Quantity
from koord.plugin import InvalidObject
from koordlet.plugin.network import (
    Address,
    AddressMatch,
    CgroupMatch,
    TrafficClass,
    TrafficTree,
)

LINK, SYSTEM, LS, BE = 1, 2, 3, 4  # classes, as minor ids; SYSTEM is that of all other packets
NAMES = {SYSTEM: "system", LS: "ls", BE: "be"}
LEAF = 3  # from the number of a class to that of its leaf
DEFAULT = SYSTEM + LEAF
FIRST, LAST = 16, 0xFFFE  # numbers of pods' classes
MAX_PODS = 1000  # whose packets are distinguished: with 4 addresses each u32 can have no more


@dataclass(frozen=True, slots=True)
class ClassRates:
    """A class: what it gets in any case, and the most it may borrow, in bytes/s."""

    minor: int
    below: int  # the class above; 0: the root
    rate: int
    ceil: int
    prio: int  # the lowest number borrows first


class PodTraffic(NamedTuple):
    """The traffic of a pod: its class, addresses and limit."""

    uid: str
    minor: int  # SYSTEM, LS or BE
    addresses: tuple[Address, ...]  # that are its own
    limit: int  # bytes/s; 0: none
    group: tuple[int, int] | None = None  # level and number of its sockets' cgroup


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


def classes(
    qos: ResourceQoS, total: Quantity, link: int | None
) -> tuple[tuple[ClassRates, ...], Problems]:
    """Return the classes of the node's interface, and what of the NodeSLO could not be used.

    None at all where another agent is to do it, or nobody knows what the interface can send.
    total is systemStrategy.totalNetworkBandwidth in bits/s, 0 for unknown; link the speed of the
    interface in bytes/s, None for unknown. A class without enable is none: its pods' packets go
    to SYSTEM.
    """
    if qos.policies.network is not NetQoSPolicy.TC:
        return (), ()
    problems: list[InvalidObject] = []
    most = _total(total, link, problems)
    if most < 4 * MIN_RATE:
        return (), tuple(problems)
    left = most - MIN_RATE  # what SYSTEM has in any case
    found = []
    for minor, name, settings in ((LS, "lsClass", qos.ls.network), (BE, "beClass", qos.be.network)):
        if settings.enable:
            where = f"{name}.networkQOS"
            rate, ceil = _rates(settings, most, where, problems)
            room = max(left, MIN_RATE)
            if rate > room:
                wanted = f"an egressRequest that is left of the bandwidth ({room * 8} bits/s)"
                problems.append(InvalidObject(where, wanted=wanted, found=rate * 8))
            rate = min(rate, room)
            left -= rate
            found.append(ClassRates(minor, LINK, rate, ceil, minor - 1))
    rest = max(most - sum(each.rate for each in found), MIN_RATE)
    first = (ClassRates(LINK, 0, most, most, 0), ClassRates(SYSTEM, LINK, rest, most, 1))
    return (*first, *found), tuple(problems)


def _total(total: Quantity, link: int | None, problems: list[InvalidObject]) -> int:
    """Return the bandwidth in bytes/s, 0 for unknown: at most that of the link."""
    where, bits = "systemStrategy.totalNetworkBandwidth", total.integer
    most = min(link or MAX_RATE, MAX_RATE)
    if bits < 0 or (link and bits > most * 8):
        wanted = f"a quantity of bits/s, at most the link's {most * 8}"
        problems.append(InvalidObject(where, wanted=wanted, found=str(total)))
    if bits <= 0:
        return most if link else 0
    return min(bits // 8, most)


def _rates(
    settings: NetworkQoS, most: int, where: str, problems: list[InvalidObject]
) -> tuple[int, int]:
    """Return rate and ceil in bytes/s, MIN_RATE <= rate <= ceil <= most."""
    ceil = bytes_per_second(settings.egress_limit, most, f"{where}.egressLimit", problems) or most
    rate = bytes_per_second(settings.egress_request, most, f"{where}.egressRequest", problems)
    if rate > ceil:
        wanted = f"at most egressLimit ({ceil * 8} bits/s)"
        problems.append(InvalidObject(f"{where}.egressRequest", wanted=wanted, found=rate * 8))
    ceil = max(ceil, MIN_RATE)
    return min(max(rate, MIN_RATE), ceil), ceil
