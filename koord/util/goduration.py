"""Durations as Go programs write them: "300ms", "1h30m", "5m0s"."""

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


def parse(text: str) -> float:
    """Return a duration in seconds.

    Raises:
        ValueError: the text is not a Go duration; a bare number other than 0 is none.

    Source: Go, time.ParseDuration.
    """
    return parse_ns(text) / 1e9


def parse_ns(text: str) -> int:
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


def format(seconds: float) -> str:
    """Return the canonical text, for example "5m0s", "1.5s", "20ms" or "0s".

    Source: Go, time.Duration.String.
    """
    return format_ns(round(seconds * 1e9))


def format_ns(nanoseconds: int) -> str:
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
