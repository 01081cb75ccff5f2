"""Network QoS: limits of pods by their annotation, and rates of a NodeSLO. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from koord.api.quantity import Quantity
from koord.util.errors import InvalidObject

ANNOTATION = "koordinator.sh/networkQOS"  # of a pod
MIN_RATE, MAX_RATE = 1000, 1 << 42  # bytes/s that the kernel is asked for
MAX_BITS = MAX_RATE * 8
_MAX_TEXT_LENGTH = 1024  # characters of an annotation

Problems = tuple[InvalidObject, ...]


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
