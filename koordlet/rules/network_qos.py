"""Network QoS: rates of classes, limits of single pods, files of terway-qos. Pure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from koord.api.pod import Pod
from koord.api.qos import KubeQoS, QoSClass
from koord.api.qosstrategy import NetQoSPolicy, NetworkQoS, ResourceQoS
from koord.api.quantity import Quantity
from koord.util.errors import InvalidObject

NODE_FILE, PODS_FILE = "global_bps_config", "pod.json"  # of the agent terway-qos
ANNOTATION = "koordinator.sh/networkQOS"  # of a pod
MIN_RATE, MAX_RATE = 1000, 1 << 42  # bytes/s that the kernel is asked for
MAX_BITS = MAX_RATE * 8
_MAX_TEXT_LENGTH = 1024  # characters of an annotation
LINK, SYSTEM, LS, BE = 1, 2, 3, 4  # classes, as minor ids; SYSTEM is that of all other packets

Problems = tuple[InvalidObject, ...]


@dataclass(frozen=True, slots=True)
class ClassRates:
    """A class: what it gets in any case, and the most it may borrow, in bytes/s."""

    minor: int
    below: int  # the class above; 0: the root
    rate: int
    ceil: int
    prio: int  # the lowest number borrows first


@dataclass(frozen=True, slots=True)
class PodLimits:
    """The most a pod may receive and send, in bytes/s; 0: no limit of its own."""

    ingress: int = 0
    egress: int = 0


def pod_limits(
    annotations: Mapping[str, str], where: str = ANNOTATION, least: int = MIN_RATE
) -> PodLimits:
    """Return the limits in a pod's annotations, which may be written by anyone.

    where: what messages call the annotation. least: bytes/s, by default the least of the kernel.

    Raises:
        InvalidObject: the text is no object of quantities of bits/s, or one is negative, or less
            than least, or more than any link.
    """
    text = annotations.get(ANNOTATION)
    if text is None:
        return PodLimits()
    try:
        found = json.loads(text) if len(text) <= _MAX_TEXT_LENGTH else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        wanted = 'an object like {"ingressLimit": "10M", "egressLimit": "20M"}'
        raise InvalidObject(where, wanted=wanted, found=text)
    ingress, egress = (
        _pod_limit(found, key, where, least) for key in ("ingressLimit", "egressLimit")
    )
    return PodLimits(ingress, egress)


def _pod_limit(found: Mapping[str, object], key: str, annotation: str, least: int) -> int:
    value = found.get(key)
    if value is None:
        return 0
    where = f"{annotation}: {key}"
    try:
        bits = Quantity.parse(value).integer
    except ValueError:
        bits = -1
    if bits and not least * 8 <= bits <= MAX_BITS:
        wanted = f"0, or a quantity of bits/s from {least * 8} to {MAX_BITS}"
        raise InvalidObject(where, wanted=wanted, found=value)
    return bits // 8


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


def bytes_per_second(value: int | str, most: int, where: str, problems: list[InvalidObject]) -> int:
    """Return percent of the bandwidth, or a quantity of bits/s, in bytes/s; 0: not set."""
    if isinstance(value, int):
        if not isinstance(value, bool) and 0 <= value <= 100:
            return most * value // 100
        bits = -1
    else:
        try:
            bits = Quantity.parse_text(value).integer
        except ValueError:
            bits = -1
    if bits < 0:
        wanted = "percent from 0 to 100, or a quantity of bits/s"
        problems.append(InvalidObject(where, wanted=wanted, found=value))
        return 0
    if bits > most * 8:
        wanted = f"at most the bandwidth ({most * 8} bits/s)"
        problems.append(InvalidObject(where, wanted=wanted, found=value))
    return min(-(-bits // 8), most)  # not 0, which is no limit


_OF_LABEL = {
    QoSClass.SYSTEM: 0,
    QoSClass.LSE: 1,
    QoSClass.LSR: 1,
    QoSClass.LS: 1,
    QoSClass.BE: 2,
}
_OF_STATUS = {KubeQoS.GUARANTEED: 1, KubeQoS.BURSTABLE: 1, KubeQoS.BEST_EFFORT: 2}


class TerwayPod(NamedTuple):
    """A pod, the directory of its cgroup, and its limits."""

    pod: Pod
    directory: str
    limits: PodLimits


def node_file(qos: ResourceQoS, total: Quantity) -> tuple[str, Problems]:
    """Return the rates in bytes/s, a line each, and what of the NodeSLO could not be used.

    total is systemStrategy.totalNetworkBandwidth in bits/s.
    """
    problems: list[InvalidObject] = []
    bits = total.integer
    if not 0 <= bits <= MAX_BITS:
        wanted = f"a quantity of bits/s from 0 to {MAX_BITS}"
        where = "systemStrategy.totalNetworkBandwidth"
        problems.append(InvalidObject(where, wanted=wanted, found=str(total)))
        return "", tuple(problems)
    most = -(-bits // 8)
    rates = {"hw_tx_bps_max": bits // 8, "hw_rx_bps_max": bits // 8}
    for level, name, settings in (
        ("l1", "lsClass", qos.ls.network),
        ("l2", "beClass", qos.be.network),
    ):
        fields = {
            "tx_bps_min": ("egressRequest", settings.egress_request),
            "tx_bps_max": ("egressLimit", settings.egress_limit),
            "rx_bps_min": ("ingressRequest", settings.ingress_request),
            "rx_bps_max": ("ingressLimit", settings.ingress_limit),
        }
        for field, (key, value) in fields.items():
            where = f"{name}.networkQOS.{key}"
            rates[f"offline_{level}_{field}"] = (
                bytes_per_second(value, most, where, problems) if settings.enable else 0
            )
    return "".join(f"{key} {rate}\n" for key, rate in rates.items()), tuple(problems)


def pods_file(pods: Iterable[TerwayPod]) -> str:
    """Return the pods by UID, as JSON."""
    entries = {each.pod.uid: _entry(each) for each in pods}
    return json.dumps(dict(sorted(entries.items())), separators=(",", ":"))


def _entry(each: TerwayPod) -> dict[str, object]:
    pod = each.pod
    return {
        "podName": pod.name,
        "podNamespace": pod.namespace,
        "podUID": pod.uid,
        "prio": _OF_LABEL.get(pod.raw_qos_class, _OF_STATUS[pod.qos]),
        "cgroupDir": each.directory,
        "qosConfig": {
            "ingressBandwidth": each.limits.ingress,
            "egressBandwidth": each.limits.egress,
        },
    }


def is_terway_file(name: str) -> bool:
    """Whether a file is one of the two; no other one is read or written."""
    return name in (NODE_FILE, PODS_FILE)
