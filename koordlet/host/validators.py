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


def class_id(text: str) -> bool:
    """Accept a network class: a decimal 31-bit number, or "0x" and up to eight decimal digits."""
    high = MAX_HEX_CLASSID if text.startswith("0x") else INT32_MAX
    number = _int64(text.removeprefix("0x"))
    return number is not None and 0 <= number <= high


def _int64(text: str) -> int | None:
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > len(str(INT64_MAX)):
        return None
    return int(text)
