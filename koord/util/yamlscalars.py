"""The value of a plain YAML scalar as Kubernetes reads it, which is not how PyYAML does.

Source: sigs.k8s.io/yaml v1.6, which kubectl and the kubelet use: YAML 1.1 without its base 60.
"""

import math
import re

YamlScalar = str | int | float | bool | None

_MEANINGS: dict[YamlScalar, tuple[str, ...]] = {
    True: ("y", "yes", "true", "on"),
    False: ("n", "no", "false", "off"),
    None: ("null", "~", ""),
}
_WORDS: dict[str, YamlScalar] = {
    spelling: value
    for value, words in _MEANINGS.items()
    for word in words
    for spelling in (word, word.capitalize(), word.upper())
}
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INTEGER = re.compile(
    r"(?P<sign>[-+]?)"
    r"(0[xX](?P<hex>[0-9a-fA-F]+)|0[bB](?P<bin>[01]+)|0[oO]?(?P<oct>[0-7]+)"
    r"|(?P<dec>0|[1-9][0-9]{0,19}))"
)
_BASES = {"hex": 16, "bin": 2, "oct": 8, "dec": 10}
_EXACT = 2**53  # up to here a whole float is written by Go as the integer that it is


def resolve(text: str) -> YamlScalar:
    """Return the value of a scalar without quotes and tag; a text that is nothing else is itself.

    Integers beyond 64 bits are floats, and beyond those texts. Dates stay texts.

    Raises:
        ValueError: it is an infinity or no number, which JSON cannot say.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789":
        return text
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"the number {text}")
    plain = text if text[0] == "." else text.replace("_", "")
    number: YamlScalar = _integer(plain)
    if number is None and _FLOAT.fullmatch(plain):
        number = _float(plain)
    return text if number is None else number


def resolve_key(text: str) -> str | None:
    """Return the key that a plain scalar is in JSON; None: it is none.

    A key of 1.5 is "1.5", yes is "true" and 0x1F is "31". Raises as resolve does.
    """
    found = resolve(text)
    if isinstance(found, bool):
        return str(found).lower()
    if isinstance(found, int):
        return str(found)
    return None if found is None else text


def _integer(text: str) -> int | None:
    """The whole number of 64 bits; None: it is none."""
    found = _INTEGER.fullmatch(text)
    if found is None:
        return None
    base = next(base for base in _BASES if found[base])
    number = int(found[base], _BASES[base])
    most = 2**64 if not found["sign"] else 2**63 + (found["sign"] == "-")
    if number >= most:
        return None
    return -number if found["sign"] == "-" else number


def _float(text: str) -> float | int | None:
    """The number, as an integer if it is one in JSON; None: it is too large."""
    number = float(text)
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) <= _EXACT else number
