"""Floating-point numbers as Go programs read them: "1.25", "1_000.5", "0x1p-2", "inf"."""

import math
import re

_DIGITS = "[0-9](?:_?[0-9])*"
_HEX_DIGITS = "[0-9a-f](?:_?[0-9a-f])*"
_DECIMAL = re.compile(
    rf"[+-]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:e[+-]?{_DIGITS})?",
    re.IGNORECASE | re.ASCII,
)
_HEXADECIMAL = re.compile(
    rf"[+-]?0x(?:_?{_HEX_DIGITS}(?:\.(?:{_HEX_DIGITS})?)?|\.{_HEX_DIGITS})p[+-]?{_DIGITS}",
    re.IGNORECASE | re.ASCII,
)
_SPECIAL = re.compile(r"[+-]?inf(?:inity)?|nan", re.IGNORECASE | re.ASCII)


def parse(text: str) -> float:
    """Return a number, which may be infinite or NaN.

    Raises:
        ValueError: the text is no number, or one that is too large.

    Source: Go, strconv.ParseFloat.
    """
    if _SPECIAL.fullmatch(text):
        return float(text)
    digits = text.replace("_", "")
    if _DECIMAL.fullmatch(text):
        number = float(digits)
    elif _HEXADECIMAL.fullmatch(text):
        number = _from_hexadecimal(digits)
    else:
        raise ValueError(f"not a number: {text[:80]!r}")
    if math.isinf(number):
        raise ValueError(f"too large a number: {text[:80]!r}")
    return number


def _from_hexadecimal(digits: str) -> float:
    try:
        return float.fromhex(digits)
    except OverflowError:
        return math.inf
