"""What shall be at the roots of interfaces, from rates of classes and limits of pods. Pure.

The node's interface has a class for the link and one below it for each QoS class, as Koordinator.
Packets go to leaves below these: one of all pods of a class that have no limit, and one of each pod
that has. Leaves are there also while no pod has a limit: the kernel makes no parent of a leaf.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

from koordlet.plugin.network import (
    BE,
    LEAST_RATE,
    LINK,
    LS,
    SYSTEM,
    Address,
    ClassRates,
    Match,
    SocketMatch,
    TrafficClass,
    Tree,
)

NAMES = {SYSTEM: "system", LS: "ls", BE: "be"}
LEAF = 3  # from the number of a class to that of its leaf
DEFAULT = SYSTEM + LEAF
FIRST, LAST = 16, 0xFFFE  # numbers of pods' classes
MOST_PODS = 1000  # whose packets are distinguished: with 4 addresses each u32 can have no more


class PodTraffic(NamedTuple):
    """What a pod sends."""

    uid: str
    minor: int  # SYSTEM, LS or BE
    addresses: tuple[Address, ...]  # that are its own
    limit: int  # bytes/s; 0: none
    group: tuple[int, int] | None = None  # level and number of the cgroup that tells its sockets


def node_tree(
    rates: Sequence[ClassRates], pods: Sequence[PodTraffic], numbers: Mapping[str, int]
) -> Tree:
    """Return what shall be at the root of the node's interface.

    rates: those of networkqos.classes, not empty. pods: MOST_PODS at most, no address twice. A pod
    of a class that there is none of belongs to SYSTEM. numbers: of the pods with a limit, by UID.
    """
    known = {each.minor: each for each in rates}
    members: dict[int, list[PodTraffic]] = {minor: [] for minor in known if minor != LINK}
    for pod in pods:
        members[pod.minor if pod.minor in members else SYSTEM].append(pod)
    found = [_class(each) for each in rates]
    matches: list[Match] = []
    sockets: list[SocketMatch] = []
    for minor, of_class in members.items():
        found += _leaves(known[minor], of_class, numbers)
    for pod in pods:
        leaf = leaf_of(pod, known, numbers)
        if leaf != DEFAULT:
            matches += [Match("from", address, leaf) for address in pod.addresses]
            sockets += [SocketMatch(*pod.group, leaf)] if pod.group else []
    return Tree.of(DEFAULT, found, matches, sockets)


def leaf_of(pod: PodTraffic, known: Container[int], numbers: Mapping[str, int]) -> int:
    """Return the class of a pod's packets. known: the classes that there are."""
    if pod.limit:
        return numbers[pod.uid]
    return (pod.minor if pod.minor in known else SYSTEM) + LEAF


def pod_tree(limit: int) -> Tree:
    """Return what shall be at the root of the node's end of a pod's interface: what it receives."""
    return Tree.of(1, [TrafficClass(1, 0, limit, limit, 0)], [])


def _class(each: ClassRates) -> TrafficClass:
    return TrafficClass(each.minor, each.below, each.rate, each.ceil, each.prio)


def _leaves(
    above: ClassRates, pods: Sequence[PodTraffic], numbers: Mapping[str, int]
) -> Iterator[TrafficClass]:
    """Yield the classes below one, which share its rate.

    A pod's part depends on the power of two above the count of pods, so that it seldom changes. The
    sum is more than the rate only where each pod would have less than LEAST_RATE.
    """
    part = max(above.rate >> len(pods).bit_length(), LEAST_RATE)
    left = above.rate
    for pod in pods:
        if pod.limit:
            ceil = max(min(pod.limit, above.ceil), LEAST_RATE)
            rate = min(part, ceil)
            left -= rate
            yield TrafficClass(numbers[pod.uid], above.minor, rate, ceil, above.prio)
    rest = max(left, LEAST_RATE)
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


def recovered(tree: Tree, owners: Mapping[Address, str]) -> dict[str, int]:
    """Return the class numbers that pods have in a tree that is there, by UID, each once."""
    found: dict[int, str] = {}
    for match in tree.matches:
        uid = owners.get(match.address)
        if match.minor >= FIRST and uid is not None and uid not in found.values():
            found.setdefault(match.minor, uid)
    return {uid: number for number, uid in found.items()}
