"""Combines the claims of several plugins on one kernel value into one value. Pure."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from koordlet.executor.claims.claim import Claim, Part
from koordlet.host.cgroups.cpuvalues import MIN_QUOTA_US
from koordlet.host.resource import Resource
from koordlet.host.resources import (
    CPU_QUOTA,
    CPUSET_CPUS_WANTED,
    RESCTRL_GROUP,
    RESCTRL_L3,
    RESCTRL_MB,
    RESCTRL_TASKS,
    SCHED_GROUP_IDENTITY,
)

NO_LIMIT = -1

Parts = Mapping[Part, Claim]


def combine(resource: Resource[Any], parts: Parts) -> Any:
    """Return the value that the claims on it, by part, ask for together."""
    rule = _RULES.get(resource)
    return rule[1](parts) if rule else parts[Part.VALUE].value


def combinable(resource: Resource[Any]) -> frozenset[Part]:
    """The parts that claims on a resource may have."""
    rule = _RULES.get(resource)
    return rule[0] if rule else frozenset({Part.VALUE})


def original(parts: Parts) -> Any:
    """The original that a claim states, to be restored; None: what was found."""
    return next((claim.original for claim in parts.values() if claim.original is not None), None)


def scaled_quota(quota: int, ratio: float) -> int:
    """Return a CPU quota in us for a CPU that is ratio times as fast as the usual one.

    Source: Koordinator, ScaleQuota; never below the kernel's minimum.
    """
    if quota <= 0 or ratio <= 1.0:
        return quota
    return max(math.ceil(quota / ratio), MIN_QUOTA_US)


def _quota(parts: Parts) -> int:
    """Base quota, divided by the ratio, and the burst on top of it."""
    base: int = parts[Part.VALUE].value if Part.VALUE in parts else original(parts)
    if base <= 0:
        return NO_LIMIT
    if Part.RATIO in parts:
        base = scaled_quota(base, parts[Part.RATIO].value)
    if Part.EXTRA in parts:
        base += parts[Part.EXTRA].value
    return max(base, MIN_QUOTA_US)


def _switch(parts: Parts) -> Any:
    """The administrator's value wins over that of a plugin, a pod's own over that of its class."""
    claim = parts.get(Part.PIN) or parts[Part.VALUE]
    return claim.value


def _cpuset(parts: Parts) -> frozenset[int]:
    """CPUs that were allocated win over those of a pool."""
    claim = parts.get(Part.PIN) or parts[Part.VALUE]
    return frozenset(claim.value)


_RULES: dict[Resource[Any], tuple[frozenset[Part], Callable[[Parts], Any]]] = {
    CPU_QUOTA: (frozenset({Part.VALUE, Part.RATIO, Part.EXTRA}), _quota),
    CPUSET_CPUS_WANTED: (frozenset({Part.VALUE, Part.PIN}), _cpuset),
    **dict.fromkeys(
        (SCHED_GROUP_IDENTITY, RESCTRL_GROUP, RESCTRL_L3, RESCTRL_MB, RESCTRL_TASKS),
        (frozenset({Part.VALUE, Part.PIN}), _switch),
    ),
}
