"""Text forms of Go programs: durations, floating-point numbers, network addresses."""

import ipaddress
import math
import re

_UNITS_NS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,  # U+00B5, the micro sign
    "μs": 10**3,  # U+03BC, the Greek letter: Go takes both
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_PIECE = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)")
_LARGEST_NS = 2**63 - 1
_LONGEST = 128  # characters


def parse_duration(text: str) -> float:
    """Return a duration in seconds.

    Raises:
        ValueError: the text is not a Go duration; a bare number other than 0 is none.

    Source: Go, time.ParseDuration.
    """
    return parse_duration_ns(text) / 1e9


def parse_duration_ns(text: str) -> int:
    """Return a duration in nanoseconds, exactly. Raises as parse does."""
    sign = -1 if text.startswith("-") else 1
    rest = text[1:] if text[:1] in ("+", "-") else text
    if rest == "0":
        return 0
    if not rest or len(text) > _LONGEST:
        raise ValueError(_message(text))
    total, end = 0, 0
    while end < len(rest):
        piece = _PIECE.match(rest, end)
        if piece is None or not (piece[1] or piece[2]):
            raise ValueError(_message(text))
        total += _piece_ns(piece[1], piece[2] or "", _UNITS_NS[piece[3]])
        end = piece.end()
    if total > _LARGEST_NS:
        raise ValueError(f"{text!r} is longer than 292 years")
    return sign * total


def format_duration(seconds: float) -> str:
    """Return the canonical text, for example "5m0s", "1.5s", "20ms" or "0s".

    Source: Go, time.Duration.String.
    """
    return format_duration_ns(round(seconds * 1e9))


def format_duration_ns(nanoseconds: int) -> str:
    """Return the canonical text of so many nanoseconds."""
    sign = "-" if nanoseconds < 0 else ""
    size = abs(nanoseconds)
    if size == 0:
        return "0s"
    for unit, below in (("ns", 10**3), ("µs", 10**6), ("ms", 10**9)):
        if size < below:
            return f"{sign}{_decimal(size, _UNITS_NS[unit])}{unit}"
    minutes, rest = divmod(size, 60 * 10**9)
    text = f"{_decimal(rest, 10**9)}s"
    if minutes:
        hours, minutes = divmod(minutes, 60)
        text = f"{minutes}m{text}" if not hours else f"{hours}h{minutes}m{text}"
    return sign + text


def _piece_ns(whole: str, part: str, unit: int) -> int:
    scale: int = 10 ** len(part)
    return int(whole or "0") * unit + int(part or "0") * unit // scale


def _decimal(amount: int, unit: int) -> str:
    """Return amount / unit without trailing zeros."""
    whole, part = divmod(amount, unit)
    if not part:
        return str(whole)
    digits = str(part).rjust(len(str(unit)) - 1, "0").rstrip("0")
    return f"{whole}.{digits}"


def _message(text: str) -> str:
    return f"{text[:_LONGEST]!r} is not a duration: write it like 300ms, 10s or 1h30m"


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


def parse_float(text: str) -> float:
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


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of ":9316", "127.0.0.1:9316" or "[::1]:9316".

    An empty host means every interface.

    Raises:
        ValueError: there is no port, it is out of range, or an IPv6 host lacks its brackets.
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or (":" in host and not bracketed):
        raise ValueError("wanted HOST:PORT, with an IPv6 host in brackets")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise ValueError("wanted a port from 0 to 65535 after the last colon")
    return host[1:-1] if bracketed else host, int(port)


def is_loopback(address: str) -> bool:
    """Whether an IP address is one of loopback, also as IPv4 mapped into IPv6."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback
