"""Claimed values for `koordletctl explain`: what is in force, its owners, and why. Pure."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from koord.api.nodemetric import time_text
from koordlet.executor.claims.claim import Claim, ClaimState, Key
from koordlet.executor.claims.desired import ApplyResult
from koordlet.executor.claims.target import Level
from koordlet.host.cgroups.cpuvalues import QUOTA_PERIOD_US
from koordlet.host.resource import Resource
from koordlet.host.resources import CPU_QUOTA, CPUSET_CPUS_WANTED


@dataclass(slots=True)
class ValueInForce:
    """One claimed value: what is desired, the apply result, and since when."""

    desired: Any
    applied: ApplyResult
    owners: tuple[str, ...]
    since: float  # Unix seconds of the latest change
    tried: float  # monotonic seconds of the latest attempt
    dry_run: bool


class ClaimedValue(NamedTuple):
    """A value with the claims on it, by plugin: a snapshot for any thread."""

    key: Key
    value: ValueInForce
    claims: tuple[tuple[str, Claim], ...]


class Seen(NamedTuple):
    """The value in the kernel, and when it was read."""

    value: Any  # None: it cannot be read
    at: float  # Unix seconds


def is_about(key: Key, place: str, groups: Collection[str] = ()) -> bool:
    """Whether a value concerns a pod (namespace/name, name or UID) or a cgroup; "": any does.

    That are its own, and those of cgroups below and above it, whose limits hold for it as well.
    groups: the cgroups that the place means, beside the place itself.
    """
    target = key.target
    if not place or place in (target.uid, target.pod, target.pod.partition("/")[2]):
        return True
    if not target.level.is_cgroup:
        return place == target.place != "" and target.level is not Level.PROCESS
    return any(_in_line(target.place, group) for group in (place.strip("/"), *groups))


def as_json(claimed: ClaimedValue, seen: Seen) -> dict[str, object]:
    """A value as `koordletctl explain --output json` has it: what is there, what is desired."""
    key, value, claims = claimed
    target = key.target
    return {
        "target": str(target),
        "level": target.level.value,
        "pod": target.pod,
        "uid": target.uid,
        "resource": key.resource.name,
        "unit": key.resource.unit,
        "value": _plain(seen.value),
        "valueAt": time_text(seen.at),
        "wanted": _plain(value.desired),
        "original": _plain(value.applied.original),
        "state": value.applied.state.value,
        "message": value.applied.message,
        "since": time_text(value.since),
        "dryRun": value.dry_run,
        "claims": [
            {
                "plugin": plugin,
                "part": claim.part.value,
                "value": _plain(claim.value),
                "reason": claim.reason,
                "inputs": dict(claim.inputs),
            }
            for plugin, claim in claims
        ],
    }


def cpu_limits(values: Iterable[ClaimedValue]) -> dict[str, float]:
    """Cores that QoS classes are held to by claims in force, by cgroup."""
    limits: dict[str, float] = {}
    for (target, resource), value, _ in values:
        applied = value.applied
        in_force = applied.state is ClaimState.IN_FORCE and applied.value != applied.original
        if target.level is Level.QOS and in_force and resource in _CORES:
            cores = _CORES[resource](applied.value)
            limits[target.place] = min(cores, limits.get(target.place, math.inf))
    return {place: cores for place, cores in limits.items() if cores < math.inf}


def _quota_cores(quota: int) -> float:
    return quota / QUOTA_PERIOD_US if quota > 0 else math.inf


_CORES: Mapping[Resource[Any], Callable[[Any], float]] = {
    CPU_QUOTA: _quota_cores,
    CPUSET_CPUS_WANTED: len,
}


def _in_line(one: str, other: str) -> bool:
    """Whether a cgroup is the other one, or above or below it."""
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    return sorted(value) if isinstance(value, set | frozenset) else value
