"""Validators of what is written into kernel files, as predicates on the text.

Source: Koordinator's resource validators.
"""

from collections.abc import Callable
from dataclasses import dataclass

from koord.util.cpulist import parse_cpulist

INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1
MAX_HEX_CLASSID = 99_999_999
Validator = Callable[[str], bool]

_COST_QOS_LIMITS = ("rpct=", "rlat=", "wpct=", "wlat=")
_COST_QOS_START = 3  # after the device, enable= and ctrl=
_COST_MODEL_LIMITS = ("rbps=", "rseqiops=", "rrandiops=", "wbps=", "wseqiops=", "wrandiops=")
_COST_MODEL_START = 2  # after the device and ctrl=


@dataclass(frozen=True, slots=True)
class InRange:
    """Accepts a decimal number from low to high; "max" is 2^63-1."""

    low: int
    high: int

    def __call__(self, text: str) -> bool:
        number = INT64_MAX if text == "max" else _int64(text)
        return number is not None and self.low <= number <= self.high

    def __str__(self) -> str:
        return f"{self.low} or more" if self.high == INT64_MAX else f"{self.low} to {self.high}"


def in_range(low: int, high: int = INT64_MAX) -> Validator:
    """Accept a decimal number from low to high; "max" is 2^63-1."""
    return InRange(low, high)


def cpu_list(text: str) -> bool:
    """Accept what the list parser accepts; the empty list too."""
    try:
        parse_cpulist(text)
    except ValueError:
        return False
    return True


def device_value(low: int, high: int = INT64_MAX) -> Validator:
    """Accept "<major>:<minor> <number>" with a number in the range; other shapes are let pass."""
    number = in_range(low, high)

    def valid(text: str) -> bool:
        items = text.split(" ")
        return bool(text) and (len(items) != 2 or number(items[1]))

    return valid


def io_cost_qos(text: str) -> bool:
    """Accept a line of blkio.cost.qos; its four limits must be numbers from 0, if it has them."""
    return _settings(text, _COST_QOS_START, _COST_QOS_LIMITS, in_range(0))


def io_cost_model(text: str) -> bool:
    """Accept a line of blkio.cost.model; its six limits must be numbers from 1, if it has them."""
    return _settings(text, _COST_MODEL_START, _COST_MODEL_LIMITS, in_range(1))


def class_id(text: str) -> bool:
    """Accept a network class: a decimal 31-bit number, or "0x" and up to eight decimal digits."""
    high = MAX_HEX_CLASSID if text.startswith("0x") else INT32_MAX
    number = _int64(text.removeprefix("0x"))
    return number is not None and 0 <= number <= high


def _settings(text: str, start: int, names: tuple[str, ...], number: Validator) -> bool:
    items = text.split(" ")
    if len(items) != start + len(names):
        return bool(text)
    return all(number(item[len(name) :]) for item, name in zip(items[start:], names, strict=True))


def _int64(text: str) -> int | None:
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > len(str(INT64_MAX)):
        return None
    return int(text)
