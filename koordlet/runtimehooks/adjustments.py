"""What a container gets in place of what the runtime was asked for, by the claims on it. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from koord.util.cpulist import format_cpulist, parse_cpulist
from koordlet.executor.claims.claim import Claim, Key, Part
from koordlet.executor.claims.combine import combine
from koordlet.executor.claims.desired import Expected
from koordlet.host.cgroups.cpuvalues import QUOTA_PERIOD_US
from koordlet.host.resource import Resource
from koordlet.host.resources import CPU_QUOTA, CPU_SHARES, CPUSET_CPUS_WANTED, MEMORY_LIMIT
from koordlet.runtimehooks.wire.messages import LinuxCPU, LinuxMemory, LinuxResources

NO_LIMIT = -1
DEFAULT_SHARES = 1024  # the kernel's


class Owned(NamedTuple):
    """A claim and the plugin that it is of."""

    owner: str
    claim: Claim


@dataclass(frozen=True, kw_only=True, slots=True)
class Adjustment:
    """A value that the container gets. asked is what the runtime was asked for."""

    key: Key
    value: Any
    asked: Any
    owners: tuple[str, ...]
    reason: str
    inputs: Mapping[str, float | str]

    @property
    def expected(self) -> Expected:
        """It as the journal records it."""
        return Expected(key=self.key, value=self.value, original=self.asked, owners=self.owners)


class _Field(NamedTuple):
    """A resource in the runtime's messages. asked returns None where it is not there."""

    asked: Callable[[LinuxResources], Any]
    default: Any
    usable: Callable[[LinuxResources], bool] = lambda _: True


def adjustments(
    claims: Iterable[Owned], group: str, asked: LinuxResources | None, *, only_asked: bool = False
) -> list[Adjustment]:
    """Return what to change for the container with this cgroup, by resource.

    asked: what the runtime has for it. only_asked: change nothing beside that, as an update leaves
    the rest as it is.
    """
    parts: dict[Key, dict[Part, Owned]] = {}
    for owned in claims:
        claim = owned.claim
        if claim.target.place == group and claim.resource in _FIELDS:
            parts.setdefault(claim.key, {})[claim.part] = owned
    asked = asked or LinuxResources()
    found = (_adjustment(key, parts[key], asked, only_asked=only_asked) for key in parts)
    return sorted(filter(None, found), key=lambda one: one.key.resource.name)


def linux_resources(adjusted: Iterable[Adjustment]) -> LinuxResources | None:
    """Return adjustments as the runtime takes them; None: there are none."""
    values = {one.key.resource: one.value for one in adjusted}
    if not values:
        return None
    memory = values.get(MEMORY_LIMIT)
    cpu = LinuxCPU(
        shares=values.get(CPU_SHARES),
        quota=values.get(CPU_QUOTA),
        cpus=format_cpulist(values.get(CPUSET_CPUS_WANTED, ())),
    )
    return LinuxResources(
        memory=None if memory is None else LinuxMemory(memory),
        cpu=None if cpu == LinuxCPU() else cpu,
    )


def _adjustment(
    key: Key, parts: Mapping[Part, Owned], asked: LinuxResources, *, only_asked: bool
) -> Adjustment | None:
    """None: it has that value, or this is not for the runtime to set."""
    field = _FIELDS[key.resource]
    value = combine(key.resource, {part: owned.claim for part, owned in parts.items()})
    present = field.asked(asked)
    if present is None and only_asked:
        return None
    present = field.default if present is None else present
    if value == present or not field.usable(asked):
        return None
    claims = [owned.claim for owned in parts.values()]
    return Adjustment(
        key=key,
        value=value,
        asked=present,
        owners=tuple(dict.fromkeys(owned.owner for owned in parts.values())),
        reason="; ".join(claim.reason for claim in claims),
        inputs={name: number for claim in claims for name, number in claim.inputs.items()},
    )


def _cpu(asked: LinuxResources) -> LinuxCPU:
    return asked.cpu or LinuxCPU()


def _limit(value: int | None) -> int | None:
    """Negative: no limit; 0: not there."""
    return max(value, NO_LIMIT) if value else None


def _asked_cpus(asked: LinuxResources) -> frozenset[int] | None:
    """None also for what is no list of CPUs: the runtime fails by itself."""
    try:
        return parse_cpulist(_cpu(asked).cpus) or None
    except ValueError:
        return None


def _usual_period(asked: LinuxResources) -> bool:
    """A quota of ours is for the usual period; another one is left to the reconciling plugin."""
    return _cpu(asked).period in (None, 0, QUOTA_PERIOD_US)


_FIELDS: Mapping[Resource[Any], _Field] = {
    CPU_SHARES: _Field(lambda asked: _cpu(asked).shares or None, DEFAULT_SHARES),
    CPU_QUOTA: _Field(lambda asked: _limit(_cpu(asked).quota), NO_LIMIT, _usual_period),
    CPUSET_CPUS_WANTED: _Field(_asked_cpus, frozenset()),
    MEMORY_LIMIT: _Field(
        lambda asked: _limit(asked.memory.limit if asked.memory else None), NO_LIMIT
    ),
}
