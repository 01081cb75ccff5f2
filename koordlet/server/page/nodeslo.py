"""The effective NodeSLO, value by value, each with its origin."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from koord.api.slo.defaults import (
    CPU_BURST,
    RESOURCE_QOS,
    SYSTEM,
    THRESHOLD,
    effective_cpu_burst,
    effective_resource_qos,
    effective_system,
    effective_threshold,
)
from koord.api.slo.nodeslo import NodeSLO
from koord.util.errors import InvalidObject

MOST_VALUES = 500
LONGEST_TEXT = 300  # characters


class Origin(StrEnum):
    """Where a value comes from."""

    NODESLO = "NodeSLO"
    DEFAULT = "default"
    LAST_GOOD = "last good NodeSLO"  # the present one has a wrong field in this section
    OFF = "block is off"  # the NodeSLO has one, but its block is not enabled


@dataclass(frozen=True, slots=True)
class _Section:
    key: str
    dump: Callable[[NodeSLO], Any]
    check: Callable[[object, str], object]


_SECTIONS = (
    _Section(
        "resourceUsedThresholdWithBE",
        lambda slo: THRESHOLD.dump(slo.threshold),
        effective_threshold,
    ),
    _Section(
        "resourceQOSStrategy",
        lambda slo: RESOURCE_QOS.dump(slo.resource_qos),
        effective_resource_qos,
    ),
    _Section("cpuBurstStrategy", lambda slo: CPU_BURST.dump(slo.cpu_burst), effective_cpu_burst),
    _Section("systemStrategy", lambda slo: SYSTEM.dump(slo.system), effective_system),
)


def effective(slo: NodeSLO | None) -> Mapping[str, object]:
    """The values with their origin, and what is wrong with the object; slo None: there is none."""
    if slo is None:
        return {"known": False, "values": [], "problems": []}
    values: list[Mapping[str, object]] = []
    problems: list[str] = []
    for section in _SECTIONS:
        received = slo.spec.get(section.key)
        try:
            section.check(received, section.key)
            refused = False
        except InvalidObject as err:
            refused = True
            problems.append(str(err)[:LONGEST_TEXT])
        for path, value in _leaves(section.dump(slo)):
            origin = Origin.LAST_GOOD if refused else _origin(received, path, value)
            values.append(
                {
                    "path": ".".join((section.key, *path)),
                    "value": value if isinstance(value, bool | int | float) else _text(value),
                    "origin": origin.value,
                }
            )
    return {"known": True, "values": values[:MOST_VALUES], "problems": problems}


def _origin(received: object, path: tuple[str, ...], value: object) -> Origin:
    """The origin of a value of a section without a mistake."""
    found = received
    above: Mapping[str, object] = {}
    for step in path:
        if not isinstance(found, Mapping) or found.get(step) is None:
            return Origin.DEFAULT
        above, found = found, found[step]
    is_off = path[-1] != "enable" and "enable" in above and above["enable"] is False
    return Origin.OFF if is_off and found != value else Origin.NODESLO


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values below, with their path; a list is one value, and what is not set is left out."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _leaves(each, (*path, str(name)))
    elif value is not None:
        yield path, value


def _text(value: object) -> str:
    return str(value)[:LONGEST_TEXT]
