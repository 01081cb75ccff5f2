"""Kubernetes quantities: exact values, and the canonical text that Go programs write."""

import math
import re
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

_NANO = 10**9
_MAX = (2**63 - 1) * _NANO  # Kubernetes caps larger quantities
_DECIMAL_SUFFIXES = {
    "n": -9,
    "u": -6,
    "m": -3,
    "": 0,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
    "E": 18,
}
_BINARY_SUFFIXES = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_NAMES = {exponent: suffix for suffix, exponent in _DECIMAL_SUFFIXES.items()}
_BINARY_NAMES = ("", *_BINARY_SUFFIXES)
_SYNTAX = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?"
    r"(?:(?P<suffix>[numkMGTPE]?|[KMGTPE]i)|[eE](?P<exponent>[+-]?[0-9]{1,9}))"
)
_BLANKS = (  # of Go, without those that JSON strings cannot hold
    " \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_LONGEST = 256  # characters; a longer text is no quantity anyone means


class Format(Enum):
    """The family of suffixes a quantity is written with."""

    DECIMAL = "DecimalSI"
    BINARY = "BinarySI"
    EXPONENT = "DecimalExponent"


@dataclass(frozen=True, slots=True)
class Quantity:
    """An exact amount, in billionths of the unit. Two quantities are equal when amounts are.

    Source: Kubernetes, apimachinery resource.Quantity.
    """

    nano: int
    format: Format = field(default=Format.DECIMAL, compare=False)

    @classmethod
    def parse(cls, value: object) -> "Quantity":
        """Read a quantity from a JSON string, which may have blanks around it, or number.

        Raises:
            ValueError: it is neither, or its text is not a quantity.

        Source: Kubernetes, Quantity.UnmarshalJSON.
        """
        if isinstance(value, str):
            return _parse(value.strip(_BLANKS))
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return _parse(str(value))
        raise ValueError(f"not a quantity: {value!r}")

    @classmethod
    def parse_text(cls, text: str) -> "Quantity":
        """Read a quantity from a text that is not JSON: it has no blanks. Raises as parse does."""
        return _parse(text)

    @classmethod
    def of_milli(cls, milli: int) -> "Quantity":
        """A DecimalSI quantity of so many thousandths: CPU on the wire."""
        return cls(milli * 10**6)

    @classmethod
    def of_bytes(cls, count: int) -> "Quantity":
        """A BinarySI quantity of so many bytes: memory on the wire."""
        return cls(count * _NANO, Format.BINARY)

    @property
    def milli(self) -> int:
        """Thousandths of the unit, rounded up."""
        return -(-self.nano // 10**6)

    @property
    def integer(self) -> int:
        """Whole units, rounded up."""
        return -(-self.nano // _NANO)

    def __str__(self) -> str:
        """Return the canonical text: the largest suffix that leaves an integer."""
        if (
            self.format is Format.BINARY
            and abs(self.nano) >= 1024 * _NANO
            and not self.nano % _NANO
        ):
            return _binary_text(self.nano // _NANO)
        return _decimal_text(self.nano, exponent_form=self.format is Format.EXPONENT)


def cpu_text(cores: float) -> str:
    """Return the canonical quantity of so many cores, cut to whole thousandths."""
    return str(Quantity.of_milli(math.trunc(cores * 1000)))


def memory_text(count: float) -> str:
    """Return the canonical quantity of so many bytes, cut to whole ones."""
    return str(Quantity.of_bytes(math.trunc(count)))


@lru_cache(maxsize=4096)  # a node's pods repeat the same few requests at every sync
def _parse(text: str) -> Quantity:
    match = _SYNTAX.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None or not (match["whole"] or match["part"]):
        raise ValueError(f"not a quantity: {text[:80]!r}")
    part = match["part"] or ""
    digits = int((match["whole"] + part) or "0")
    exponent, binary, form = _scale(match["suffix"], match["exponent"])
    nano = _nano(digits << binary, exponent - len(part))
    if form is Format.BINARY and 0 < nano < _NANO:
        form = Format.DECIMAL
    return Quantity(-nano if match["sign"] == "-" else nano, form)


def _scale(suffix: str | None, exponent: str | None) -> tuple[int, int, Format]:
    """Return the decimal exponent, the binary exponent and the format of a suffix."""
    if exponent is not None:
        return int(exponent), 0, Format.EXPONENT
    if suffix in _BINARY_SUFFIXES:
        return 0, _BINARY_SUFFIXES[suffix], Format.BINARY
    return _DECIMAL_SUFFIXES[suffix or ""], 0, Format.DECIMAL


def _nano(digits: int, exponent: int) -> int:
    """Return digits times 10^exponent in billionths, rounded up and capped."""
    exponent += 9
    if exponent >= 0:
        # Beyond the cap the exact exponent no longer matters; it may be a billion.
        return min(digits * _power_of_ten(min(exponent, 40)), _MAX)
    return min(-(-digits // _power_of_ten(min(-exponent, _LONGEST + 1))), _MAX)


def _power_of_ten(exponent: int) -> int:
    return int(10**exponent)


def _decimal_text(nano: int, *, exponent_form: bool) -> str:
    if nano == 0:
        return "0"
    exponent = -9
    while exponent < 18 and nano % 1000 == 0:
        nano //= 1000
        exponent += 3
    if exponent_form:
        return f"{nano}e{exponent}" if exponent else str(nano)
    return f"{nano}{_DECIMAL_NAMES[exponent]}"


def _binary_text(count: int) -> str:
    power = 0
    while power < len(_BINARY_NAMES) - 1 and count % 1024 == 0:
        count //= 1024
        power += 1
    return f"{count}{_BINARY_NAMES[power]}"
