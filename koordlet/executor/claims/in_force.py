"""Claimed values for `koordletctl explain`: in force, owners, reasons, kernel's value."""

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from koord.api.nodemetric import time_text
from koord.util.clock import Clock
from koord.util.stop import first_completed
from koordlet.executor.claims.claim import ApplyResult, Claim, ClaimState, Key
from koordlet.executor.kernel.view import Kernel
from koordlet.host.cgroups.cgroupfiles import QUOTA_PERIOD_US
from koordlet.host.resource import Level, Resource
from koordlet.host.resources import CPU_QUOTA, CPUSET_CPUS_WANTED, PROCESS_START


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


class ObservedValue(NamedTuple):
    """The value in the kernel, and when it was read."""

    value: Any  # None: it cannot be read
    at: float  # Unix seconds


def concerns(key: Key, place: str, groups: Collection[str] = ()) -> bool:
    """Whether a value concerns a pod (namespace/name, name or UID) or a cgroup; "": any does.

    These are its own values, and those of cgroups below and above it, whose limits apply to it too.
    groups: the cgroups that the place means, in addition to the place itself.
    """
    target = key.target
    if not place or place in (target.uid, target.pod, target.pod.partition("/")[2]):
        return True
    if not target.level.is_cgroup:
        return place == target.place != "" and target.level is not Level.PROCESS
    return any(_on_one_path(target.place, group) for group in (place.strip("/"), *groups))


def claimed_value_json(claimed: ClaimedValue, seen: ObservedValue) -> dict[str, object]:
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
        "value": _plain_value(seen.value),
        "valueAt": time_text(seen.at),
        "wanted": _plain_value(value.desired),
        "original": _plain_value(value.applied.original),
        "state": value.applied.state.value,
        "message": value.applied.message,
        "since": time_text(value.since),
        "dryRun": value.dry_run,
        "claims": [
            {
                "plugin": plugin,
                "part": claim.part.value,
                "value": _plain_value(claim.value),
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


def _on_one_path(one: str, other: str) -> bool:
    """Whether a cgroup is the other one, or above or below it."""
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")


def _plain_value(value: Any) -> Any:
    """A value as JSON has it."""
    return sorted(value) if isinstance(value, set | frozenset) else value


MAX_LOOKUPS = 2000  # values that one question reads; 5 us each while their files are held open
LOOKUP_SLICE = 200  # in one go of the thread that also looks for the plugins
LOOKUP_TIMEOUT = 2.0  # seconds that a question waits for the kernel


async def read_claimed_values(
    kernel: Kernel, clock: Clock, keys: Sequence[Key]
) -> dict[Key, ObservedValue]:
    """Return what the kernel holds now; a value of None cannot be read.

    Off the event loop; only the first MAX_LOOKUPS values, and only those that could be read
    within LOOKUP_TIMEOUT.
    """
    seen: dict[Key, ObservedValue] = {}
    reading = asyncio.create_task(
        _read_slice(kernel, clock, keys[:MAX_LOOKUPS], seen), name="explain"
    )
    await first_completed(reading, clock.sleep(LOOKUP_TIMEOUT))
    if not reading.done():  # a kernel file hangs; what is there by now has to do
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
    else:
        reading.result()
    return seen


async def _read_slice(
    kernel: Kernel, clock: Clock, keys: Sequence[Key], seen: dict[Key, ObservedValue]
) -> None:
    for start in range(0, len(keys), LOOKUP_SLICE):
        some = keys[start : start + LOOKUP_SLICE]
        processes = [key for key in some if key.target.level is Level.PROCESS]
        reads = [(key.resource, _group(key)) for key in some]
        reads += [(PROCESS_START, key.target.place) for key in processes]
        readings = await kernel.read_many(reads)
        values = [None if reading is None else reading.value for reading in readings]
        starts = dict(zip(processes, values[len(some) :], strict=True))
        for key, value in zip(some, values[: len(some)], strict=True):
            other = key in starts and starts[key] != key.target.start_time
            seen[key] = ObservedValue(None if other else value, clock.wall())


def _group(key: Key) -> str:
    return "" if key.target.level is Level.NODE else key.target.place
