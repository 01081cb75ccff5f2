"""Adjustments of a container: values by claims, and variables, mounts and devices. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from koord.api.machine import format_cpulist, parse_cpulist
from koordlet.executor.claims.claim import Claim, InitialValue, Key, Part
from koordlet.executor.claims.table import combine
from koordlet.host.cgroups.cgroupfiles import QUOTA_PERIOD_US
from koordlet.host.resource import Resource
from koordlet.host.resources import CPU_QUOTA, CPU_SHARES, CPUSET_CPUS_WANTED, MEMORY_LIMIT
from koordlet.runtimehooks.wire import (
    ContainerAdjustment,
    ContainerMount,
    KeyValue,
    LinuxContainerAdjustment,
    LinuxCPU,
    LinuxDevice,
    LinuxMemory,
    LinuxResources,
)
from koordlet.statesinformer.podmeta import PodMeta

if TYPE_CHECKING:
    from koordlet.host.devices import DeviceFile
    from koordlet.rules.allocated_devices import BindMount


NO_LIMIT = -1
DEFAULT_SHARES = 1024  # the kernel's


class OwnedClaim(NamedTuple):
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

    def expected(self, *, runs: bool) -> InitialValue:
        """Return it as the journal records it; runs as in InitialValue."""
        return InitialValue(
            key=self.key, value=self.value, original=self.asked, owners=self.owners, runs=runs
        )


class _Field(NamedTuple):
    """A resource in the runtime's messages. asked returns None where it is not there."""

    asked: Callable[[LinuxResources], Any]
    default: Any
    usable: Callable[[LinuxResources], bool] = lambda _: True


def adjustments(
    claims: Iterable[OwnedClaim],
    group: str,
    asked: LinuxResources | None,
    *,
    only_requested: bool = False,
) -> list[Adjustment]:
    """Return what to change for the container with this cgroup, by resource.

    asked: the runtime's values. only_requested: change only these, as an update leaves the rest
    as it is.
    """
    parts: dict[Key, dict[Part, OwnedClaim]] = {}
    for owned in claims:
        claim = owned.claim
        if claim.target.place == group and claim.resource in _FIELDS:
            parts.setdefault(claim.key, {})[claim.part] = owned
    asked = asked or LinuxResources()
    found = (_adjustment(key, parts[key], asked, only_requested=only_requested) for key in parts)
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
    key: Key, parts: Mapping[Part, OwnedClaim], asked: LinuxResources, *, only_requested: bool
) -> Adjustment | None:
    """None: it has that value, or this is not for the runtime to set."""
    field = _FIELDS[key.resource]
    value = combine(key.resource, {part: owned.claim for part, owned in parts.items()})
    present = field.asked(asked)
    if present is None and only_requested:
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


def _has_default_period(asked: LinuxResources) -> bool:
    """A quota of ours is for the usual period; another one is left to the reconciling plugin."""
    return _cpu(asked).period in (None, 0, QUOTA_PERIOD_US)


_FIELDS: Mapping[Resource[Any], _Field] = {
    CPU_SHARES: _Field(lambda asked: _cpu(asked).shares or None, DEFAULT_SHARES),
    CPU_QUOTA: _Field(lambda asked: _limit(_cpu(asked).quota), NO_LIMIT, _has_default_period),
    CPUSET_CPUS_WANTED: _Field(_asked_cpus, frozenset()),
    MEMORY_LIMIT: _Field(
        lambda asked: _limit(asked.memory.limit if asked.memory else None), NO_LIMIT
    ),
}

_FILE_MODE = 0o666  # of device files; the container's device cgroup decides about access


@dataclass(frozen=True, kw_only=True, slots=True)
class Injection:
    """The additions of one injector to a container."""

    owner: str = ""  # its name
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: "tuple[BindMount, ...]" = ()
    devices: "tuple[DeviceFile, ...]" = ()

    def __bool__(self) -> bool:
        """Whether there is anything to add."""
        return bool(self.env or self.mounts or self.devices)

    def to_json(self) -> dict[str, object]:
        """Return it as /explain has it."""
        return {
            "by": self.owner,
            "env": dict(self.env),
            "mounts": [f"{one.source}:{one.destination}" for one in self.mounts],
            "devices": [f"{one.path} {one.major}:{one.minor}" for one in self.devices],
        }


class Injector(Protocol):
    """Decides what to add to the one container of a pod that is about to be made."""

    @property
    def name(self) -> str: ...  # its gate

    async def inject(self, meta: PodMeta, *, dry_run: bool) -> Injection:
        """Return what is added. dry_run: it is not, so nothing is made for it either.

        Raises:
            InvalidObject, OSError, KernelFileError: nothing is added.
        """
        ...


class Injected(NamedTuple):
    """The additions to a container, and those that dry-run holds back."""

    real: tuple[Injection, ...] = ()
    dry_run: tuple[Injection, ...] = ()
    failed: tuple[str, ...] = ()  # injector: error


NOTHING = Injected()


def container_adjustment(
    adjusted: Iterable[Adjustment], injected: Iterable[Injection]
) -> ContainerAdjustment | None:
    """Return both as the runtime takes them; None: there is nothing."""
    resources, added = linux_resources(adjusted), tuple(injected)
    devices = tuple(_device(device) for one in added for device in one.devices)
    made = ContainerAdjustment(
        mounts=tuple(_mount(mount) for one in added for mount in one.mounts),
        env=tuple(KeyValue(*pair) for one in added for pair in one.env.items()),
        linux=LinuxContainerAdjustment(devices, resources) if devices or resources else None,
    )
    return None if made == ContainerAdjustment() else made


def _mount(mount: "BindMount") -> ContainerMount:
    return ContainerMount(mount.destination, "bind", mount.source, ("rbind",))


def _device(device: "DeviceFile") -> LinuxDevice:
    return LinuxDevice(device.path, "c", device.major, device.minor, _FILE_MODE)
