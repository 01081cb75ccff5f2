"""Amounts as short text for tables: at most five or six characters, and "-" for what is absent."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from koord.api.machine import format_cpulist
from koord.component.terminal import ABSENT


def cores(value: float | None) -> str:
    """0.04, 1.25, 12.5, 128."""
    if value is None:
        return ABSENT
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f}"


def size(value: float | None) -> str:
    """Bytes by powers of 1024, as Kubernetes writes them: 512, 3.8Gi, 502Mi."""
    return _scaled(value, 1024, ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))


def rate(value: float | None) -> str:
    """Bytes per second by powers of 1000, as for network links: 980, 1.2M, 35k."""
    return _scaled(value, 1000, ("", "k", "M", "G", "T", "P", "E"))


def percent(value: float | None) -> str:
    """A figure that is in percent already: 0, 0.5, 12, 100."""
    if value is None:
        return ABSENT
    text = f"{value:.1f}" if abs(value) < 9.95 else f"{value:.0f}"
    return "0" if text == "0.0" else text


def share(value: float | None) -> str:
    """A figure from 0 to 1, in percent."""
    return percent(None if value is None else value * 100)


def span(seconds: float) -> str:
    """A time in its two largest units: 42s, 5m 12s, 3h 0m, 12d 7h."""
    left = int(seconds)
    days, hours, minutes = left // 86400, left // 3600 % 24, left // 60 % 60
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m {left % 60}s" if minutes else f"{left}s"


def kernel_value(value: Any, unit: str) -> str:
    """A value as claims have it: CPUs as a list, bytes by powers of 1024, -1 by its meaning.

    What is set by device is listed with its numbers as they are.
    """
    if isinstance(value, list):
        return format_cpulist(value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_settings(each)}" for name, each in value.items()) or "none"
    meaning = unit.partition("-1 for ")[2]
    if value == -1 and meaning:
        return meaning
    if value is None or isinstance(value, str):
        return str(value or ABSENT)
    return (
        size(value) if unit.startswith("bytes") else f"{value:g}" if value % 1 else f"{value:.0f}"
    )


def _settings(value: Any) -> str:
    """The setting of one device: a number, or numbers by name."""
    if not isinstance(value, dict):
        return str(value)
    return " ".join(f"{name}={number}" for name, number in value.items())


def formatter(unit: str) -> Callable[[float | None], str]:
    """Return the form of a metric kind's figures, by its unit."""
    return _BY_UNIT.get(unit, number)


def number(value: float | None) -> str:
    """Any other figure, with four significant digits."""
    return ABSENT if value is None else f"{value:.4g}"


def _scaled(value: float | None, base: int, suffixes: Sequence[str]) -> str:
    if value is None or not math.isfinite(value):
        return ABSENT
    power = 0
    while abs(value) >= 999.5 and power < len(suffixes) - 1:
        value /= base
        power += 1
    digits = 1 if power and abs(value) < 9.95 else 0
    return f"{value:.{digits}f}{suffixes[power]}"


_BY_UNIT: dict[str, Callable[[float | None], str]] = {
    "cores": cores,
    "bytes": size,
    "bytes per second": rate,
    "percent": percent,
    "ratio": cores,
}
