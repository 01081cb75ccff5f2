"""The table of claims: what may be claimed, and how claims on one value combine. Pure."""

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from koord.api.nodemetric import time_text
from koord.api.qos import KubeQoS, QoSClass
from koord.util.clock import Clock
from koord.util.errors import OptionError
from koord.util.stop import first_completed
from koord.util.text import nearest
from koordlet.executor.claims.claim import (
    ApplyResult,
    Claim,
    ClaimScope,
    ClaimState,
    Key,
    Part,
    Target,
    levels_of_root,
)
from koordlet.executor.kernel.view import Kernel
from koordlet.host.cgroups.cgroupfiles import MIN_QUOTA_US, QUOTA_PERIOD_US
from koordlet.host.kernelfile import KernelFile
from koordlet.host.resource import Level, Resource
from koordlet.host.resources import (
    BY_NAME,
    CPU_QUOTA,
    CPUSET_CPUS_WANTED,
    PROCESS_START,
    RESCTRL_GROUP,
    RESCTRL_L3,
    RESCTRL_MB,
    RESCTRL_TASKS,
    SCHED_GROUP_IDENTITY,
)


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


def combined_original(parts: Parts) -> Any:
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
    base: int = parts[Part.VALUE].value if Part.VALUE in parts else combined_original(parts)
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


def is_writable(resource: Resource[Any]) -> bool:
    """Whether any kernel lets the value be set."""
    return any(file.text is not None for file in resource.files.values())


def claimable_levels(resource: Resource[Any]) -> tuple[Level, ...]:
    """The levels on which a value has a place."""
    return levels_of_root(next(iter(resource.files.values())))


def scope_defect(may: ClaimScope) -> str:
    """Return why nothing can ever be claimed so; "" for nothing."""
    return next(_scope_defects(may), "")


def resource_defect(resource: object) -> str:
    """Return why something is no resource that can be claimed; "" for nothing."""
    if not isinstance(resource, Resource):
        return _not_in_the_table(str(resource), repr(resource))
    if type(resource) is KernelFile:
        return ""  # checked when it was made
    if BY_NAME.get(resource.name) is not resource:
        return _not_in_the_table(resource.name, f"one of its own called {resource.name!r}")
    if not is_writable(resource):
        return f"wanted a resource that can be written, found {resource.name}, which is read only"
    return ""


def _not_in_the_table(name: str, found: str) -> str:
    known = nearest(name, [name for name, row in BY_NAME.items() if is_writable(row)])
    return (
        f"wanted a resource of koordlet.plugin.resources, found {found}; the nearest is {known}, "
        "and a KernelFile declares a file that is none of them"
    )


def _scope_defects(may: ClaimScope) -> Iterator[str]:
    if defect := resource_defect(may.resource):
        yield defect
        return
    name, levels, parts = (
        may.resource.name,
        claimable_levels(may.resource),
        combinable(may.resource),
    )
    if may.level not in levels:
        yield f"wanted level {_or_list(levels)} for {name}, found {may.level!r}"
    if may.part not in parts:
        yield f"wanted part {_or_list(sorted(parts))} of {name}, found {may.part!r}"
    classes = [each.value for each in (KubeQoS if may.level is Level.QOS else QoSClass)]
    if not isinstance(may.qos, frozenset):
        yield f"wanted a frozenset of QoS classes for {name}, found {may.qos!r}"
    for qos in sorted(set(may.qos) - set(classes)):
        wanted = f"wanted a QoS class of level {may.level} for {name}, found {qos!r}"
        yield f"{wanted}; the nearest is {nearest(str(qos), classes)!r}"


def _or_list(names: Collection[str]) -> str:
    return " or ".join(names)


MAX_CLAIMS = 20_000  # of all plugins together

_ClaimSlot = tuple[Key, Part]


class ClaimTable:
    """Holds the claims; at most one per value and part. Belongs to one thread."""

    def __init__(self) -> None:
        self._may: dict[str, tuple[ClaimScope, ...]] = {}
        self._scopes: dict[tuple[str, str], dict[_ClaimSlot, Claim]] = {}  # by plugin and scope
        self._owners: dict[Key, dict[Part, str]] = {}
        self._claims: dict[Key, dict[Part, Claim]] = {}

    def declare(self, owner: str, may: tuple[ClaimScope, ...]) -> None:
        """Let a plugin claim what it declares, from now until it is retracted.

        Raises:
            OptionError: another plugin may claim the same now, without a rule that combines them,
                or there is nothing that could be claimed so.
        """
        for mine in may:
            if defect := scope_defect(mine):
                raise OptionError(f"{owner} may_claim", f"{mine.part} of {mine.resource}", defect)
            for other, theirs in self._may.items():
                if other != owner and any(mine.overlaps(one) for one in theirs):
                    what = f"{mine.part} of {mine.resource.name} at level {mine.level}"
                    hint = f"{other} is on and may claim it, and no rule combines them; " + (
                        f"switch off {other} or {owner}"
                    )
                    raise OptionError(f"{owner} may_claim", what, hint)
        self._may[owner] = may

    def retract(self, owner: str) -> bool:
        """Let a plugin claim nothing any more; return whether it could claim anything."""
        return bool(self._may.pop(owner, ()))

    def check(self, owner: str, claim: Claim) -> None:
        """Raise OptionError unless the plugin may make this claim."""
        if not isinstance(claim.target, Target):
            hint = "use one of Target.of_pod, of_container, of_process, qos_class and node"
            raise OptionError(f"{owner} claim target", claim.target, hint)
        if not any(may.covers(claim) for may in self._may.get(owner, ())):
            if defect := resource_defect(claim.resource):
                raise OptionError(f"{owner} claim resource", claim.resource, defect)
            what = f"{claim.part} of {claim.key}, level {claim.target.level}, {claim.target.qos!r}"
            raise OptionError(f"{owner} claim", what, "declare it in may_claim")
        if not claim.reason:
            raise OptionError(f"{owner} claim", f"no reason for {claim.key}", "say the rule")
        if claim.part in (Part.RATIO, Part.EXTRA) and claim.original is None:
            hint = "state the original: what is changed where no plugin claims the value itself"
            raise OptionError(f"{owner} claim", f"{claim.part} of {claim.key}", hint)
        other = self._owners.get(claim.key, {}).get(claim.part, owner)
        if other != owner:
            raise OptionError(f"{owner} claim", f"{claim.part} of {claim.key}", f"{other} has it")

    def has(self, owner: str, scope: str, claim: Claim) -> bool:
        """Whether exactly this claim is there, not one that is equal to it."""
        return self._scopes.get((owner, scope), {}).get((claim.key, claim.part)) is claim

    def put(self, owner: str, scope: str, claim: Claim) -> bool:
        """Add or replace a checked claim; return whether it asks for something new."""
        slot = (claim.key, claim.part)
        parts = self._claims.setdefault(claim.key, {})
        before = parts.get(claim.part)
        if before is None and self.size >= MAX_CLAIMS:
            raise OptionError(f"{owner} claim", claim.key, f"{MAX_CLAIMS} claims are the most")
        parts[claim.part] = claim
        self._owners.setdefault(claim.key, {})[claim.part] = owner
        for (name, other), slots in self._scopes.items():
            if name == owner and other != scope:
                slots.pop(slot, None)  # it moves to the scope that named it last
        self._scopes.setdefault((owner, scope), {})[slot] = claim
        return before is None or before.effect != claim.effect

    def replace(self, owner: str, scope: str, claims: Iterable[Claim]) -> set[Key]:
        """Make these checked claims the scope's; return the values that it changes."""
        wanted = {(claim.key, claim.part): claim for claim in claims}
        gone = self._scopes.get((owner, scope), {}).keys() - wanted.keys()
        changed = {key for key, part in gone if self.drop(owner, key, part)}
        known = self._scopes.get((owner, scope), {})
        for slot, claim in wanted.items():
            if known.get(slot) is not claim and self.put(owner, scope, claim):
                changed.add(claim.key)
        return changed

    def drop(self, owner: str, key: Key, part: Part) -> bool:
        """Take a claim back; return whether there was one."""
        if self._owners.get(key, {}).get(part) != owner:
            return False
        for (name, _), slots in self._scopes.items():
            if name == owner:
                slots.pop((key, part), None)
        del self._claims[key][part], self._owners[key][part]
        if not self._claims[key]:
            del self._claims[key], self._owners[key]
        return True

    def drop_all(self, owner: str, scope: str | None) -> set[Key]:
        """Take all claims of a scope back, or of all scopes; return what they were about."""
        scopes = [s for name, s in self._scopes if name == owner and scope in (None, s)]
        dropped = {slot for s in scopes for slot in self._scopes.pop((owner, s))}
        for key, part in dropped:
            self.drop(owner, key, part)
        return {key for key, _ in dropped}

    def parts(self, key: Key) -> Mapping[Part, Claim]:
        """The claims on a value."""
        return self._claims.get(key, {})

    def owners(self, key: Key) -> Mapping[Part, str]:
        """The owners of the claims on a value, by part."""
        return self._owners.get(key, {})

    def only_claimed(self, keys: Iterable[Key]) -> set[Key]:
        """Return the keys that are claimed."""
        return {key for key in keys if key in self._claims}

    def claimed(self) -> list[Key]:
        """All values that are claimed, in the order of their first claims."""
        return list(self._claims)

    @property
    def size(self) -> int:
        """Values that are claimed."""
        return len(self._claims)
