"""Claims: values that plugins ask for, desired values that result, and their outcomes."""

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from koord.api.nodeslo import HostApplication
from koord.api.qos import KubeQoS
from koord.util.errors import Unavailable
from koordlet.host.cgroups.layout import Layout, host_app_group
from koordlet.host.objects import KINDS
from koordlet.host.resource import CGROUPS, File, Level, ObjectKind, Resource, Root, Support
from koordlet.statesinformer.podmeta import ContainerMeta, PodMeta

_MAX_PLACE_LENGTH = 4096  # characters of a path
_BAD_STEP = re.compile(r"//|/\.\.?/|[\x00-\x1f\x7f]")  # empty, ".", ".."; control characters


# The rules of the places that are names of kernel objects.
_PLACES = {kind.level: kind.is_place for kind in KINDS if kind.is_place is not None}


def levels_of_root(file: File[Any]) -> tuple[Level, ...]:
    """The levels on which a value has a place."""
    if file.root is Root.CGROUP:
        return (Level.NODE,) if file.support is Support.ROOT else CGROUPS
    if isinstance(file.root, ObjectKind):
        return (file.root.level,)
    if file.root is Root.RESCTRL:
        return (Level.RESCTRL,)
    return (Level.PROCESS,) if "{}" in file.name else (Level.NODE,)


@dataclass(frozen=True, slots=True)
class Target:
    """A place whose kernel values can be claimed. qos and pod are for rules and for people."""

    level: Level
    place: str  # path of a cgroup; "" for the node; the pid of a process; the name of an object
    start_time: int = 0  # of a process, in ticks since boot: a pid alone may come again
    qos: str = field(default="", compare=False)  # QoSClass of the pod; KubeQoS at level QOS
    pod: str = field(default="", compare=False)  # namespace/name
    uid: str = field(default="", compare=False)  # of the pod

    @property
    def is_valid(self) -> bool:
        """Whether the place is of its level, and below the root: relative, without "..".

        Targets come from the journal and from NodeSLO, too.
        """
        return _is_valid(self.level, self.place)

    @classmethod
    def node(cls) -> "Target":
        """The node, for sysctl and sysfs values."""
        return cls(Level.NODE, "")

    @classmethod
    def qos_class(cls, layout: Layout, qos: KubeQoS) -> "Target":
        """The cgroup of a Kubernetes QoS class; for Guaranteed that of all pods."""
        return cls(Level.QOS, layout.qos_dir(qos), qos=qos.value)

    @classmethod
    def of_pod(cls, pod: PodMeta) -> "Target":
        """The cgroup of a pod."""
        return _below(pod, Level.POD, pod.cgroup)

    @classmethod
    def of_container(cls, pod: PodMeta, container: ContainerMeta) -> "Target":
        """The cgroup of a container."""
        return _below(pod, Level.CONTAINER, container.cgroup)

    @classmethod
    def below_pod(cls, pod: PodMeta, group: str) -> "Target":
        """A cgroup right below that of a pod that is no known container: a sandbox."""
        return _below(pod, Level.CONTAINER, group)

    @classmethod
    def of_host_application(cls, layout: Layout, app: HostApplication) -> "Target":
        """The cgroup of a program outside of Kubernetes, on the level of pods."""
        return cls(Level.POD, host_app_group(layout, app), qos=app.qos)

    @classmethod
    def of_process(cls, pod: PodMeta, pid: int, start_time: int) -> "Target":
        """A process of a pod. start_time is in ticks since boot, as /proc/<pid>/stat has it."""
        return _below(pod, Level.PROCESS, str(pid), start_time)

    @classmethod
    def resctrl(cls, group: str, pod: PodMeta | None = None) -> "Target":
        """A control group of resctrl; pod: whose own it is."""
        return cls(Level.RESCTRL, group) if pod is None else _below(pod, Level.RESCTRL, group)

    @classmethod
    def interface(cls, name: str, pod: PodMeta | None = None) -> "Target":
        """A network interface of the node; pod: whose other end it is."""
        return cls(Level.INTERFACE, name) if pod is None else _below(pod, Level.INTERFACE, name)

    @classmethod
    def terway(cls, file: str) -> "Target":
        """One of the files of the agent terway-qos."""
        return cls(Level.TERWAY, file)

    def __str__(self) -> str:
        """The text for people: "kubepods/besteffort", "node", "process 4711" or "resctrl BE"."""
        if not self.level.is_cgroup and self.place:
            return f"{self.level.value} {self.place}"
        return self.place or self.level.value


@lru_cache(maxsize=4096)  # several times for each value of each round of a plugin
def _is_valid(level: Level, place: str) -> bool:
    if level is Level.NODE:
        return not place
    if level is Level.PROCESS:
        return place.isascii() and place.isdigit()
    if is_place := _PLACES.get(level):
        return is_place(place)
    return len(place) <= _MAX_PLACE_LENGTH and _BAD_STEP.search(f"/{place}/") is None


def _below(pod: PodMeta, level: Level, place: str, start_time: int = 0) -> Target:
    return Target(
        level,
        place,
        start_time,
        qos=pod.qos.value,
        pod=f"{pod.pod.namespace}/{pod.pod.name}",
        uid=pod.uid,
    )


@dataclass(frozen=True, slots=True)
class AuditText:
    """Reason and message of the event for one kind of claim. "{value}" is replaced by the value."""

    reason: str
    message: str


ANY_CGROUP = AuditText("UpdateCgroups", "update {path} to {value}")
ANY_FILE = AuditText("UpdateSystemConfig", "update {path} to {value}")

NO_KERNEL = (
    "no kernel: outside of the daemon a test brings one, "
    "PluginHarness(host=FakeHost(tmp_path)), and claims are made from run on"
)


class Part(StrEnum):
    """The contribution of a claim to a value that several plugins decide together.

    koordlet.executor.claims.table has the rules.
    """

    VALUE = "value"  # the value itself
    PIN = "pin"  # the value, whatever VALUE says, for example CPUs that were allocated
    RATIO = "ratio"  # what a CPU quota is divided by; a float
    EXTRA = "extra"  # what is added to a CPU quota, in us


class Key(NamedTuple):
    """The identity of one kernel value."""

    target: Target
    resource: Resource[Any]

    def __str__(self) -> str:
        return f"{self.resource.name} of {self.target}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A value that a plugin has in force until it withdraws the claim.

    value is what the resource's reading gives: us, bytes, shares, a frozenset of CPUs. reason is
    the rule in one sentence, inputs the numbers of the decision in base units. original is what to
    restored when that follows from the pod's spec rather than from what was found; RATIO and EXTRA
    need it, as what they change when no plugin claims a VALUE.
    """

    target: Target
    resource: Resource[Any]
    value: Any
    reason: str
    inputs: Mapping[str, float | str] = field(default_factory=dict)
    part: Part = Part.VALUE
    original: Any = None
    key: Key = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", Key(self.target, self.resource))
        for name in ("value", "original"):
            value = getattr(self, name)
            if isinstance(value, Mapping):  # the plugin may go on with its own
                object.__setattr__(self, name, copy.deepcopy(dict(value)))

    @property
    def effect(self) -> tuple[Any, Any]:
        """Claims for one part of one value that are equal in this ask for the same."""
        return self.value, self.original


@dataclass(frozen=True, slots=True)
class ClaimScope:
    """A permission to claim: a part of a resource, on targets of a level.

    qos: QoSClass values of the pods, KubeQoS values at level QOS; empty: every. audit_text: the
    audit log's text when the value is set; None: as for any value.
    """

    resource: Resource[Any]
    level: Level
    qos: frozenset[str] = frozenset()
    part: Part = Part.VALUE
    audit_text: AuditText | None = None

    def covers(self, claim: Claim) -> bool:
        """Whether a claim is of this kind."""
        declared = claim.resource is self.resource  # an equal one may allow other values
        return declared and claim.part is self.part and self.is_for(claim.key)

    def is_for(self, key: Key) -> bool:
        """Whether a value is one of those that it is about."""
        return (
            key.resource == self.resource
            and key.target.level is self.level
            and (not self.qos or key.target.qos in self.qos)
        )

    def overlaps(self, other: "ClaimScope") -> bool:
        """Whether both could be about the same part of the same value."""
        return (
            self.resource == other.resource
            and self.level is other.level
            and self.part is other.part
            and (not self.qos or not other.qos or bool(self.qos & other.qos))
        )


class ClaimState(StrEnum):
    """The outcome of a claim."""

    IN_FORCE = "in force"
    WOULD = "would"  # dry-run: it would be in force
    WAITING = "waiting"  # it cannot be written for now, and is tried again
    YIELDED = "yielded"  # left to another agent that writes the same value
    FAILED = "failed"  # the kernel refused it
    GONE = "gone"  # the cgroup or process has ended
    UNSUPPORTED = "unsupported"  # this kernel has no such value


@dataclass(frozen=True, slots=True)
class ClaimOutcome:
    """The answer to one claim. changed: this call wrote it, or in dry-run would have."""

    state: ClaimState
    message: str = ""
    changed: bool = False

    @property
    def holds(self) -> bool:
        """Whether the value is in force, or in dry-run would be."""
        return self.state in (ClaimState.IN_FORCE, ClaimState.WOULD)


class Claims(Protocol):
    """Decides on claims for plugins."""

    async def claim(self, owner: str, claim: Claim, scope: str = "") -> ClaimOutcome:
        """Add or replace one claim of a plugin.

        Raises:
            OptionError: the plugin did not declare it, or the value cannot be used.
        """

    async def claim_all(
        self, owner: str, claims: Iterable[Claim], scope: str = ""
    ) -> list[ClaimOutcome]:
        """Make these a plugin's only claims of a scope; its other claims of it are withdrawn.

        Raises:
            OptionError: as claim; nothing has changed then.
        """

    async def withdraw(self, owner: str, key: Key, part: Part) -> None:
        """Withdraw one claim."""

    async def withdraw_all(self, owner: str, scope: str | None = None) -> None:
        """Withdraw all claims of a plugin; scope None: of every scope."""


class UnavailableClaims:
    """Decides on claims where nothing may be changed."""

    async def claim(self, owner: str, claim: Claim, scope: str = "") -> ClaimOutcome:
        raise _unavailable(owner)

    async def claim_all(
        self, owner: str, claims: Iterable[Claim], scope: str = ""
    ) -> list[ClaimOutcome]:
        raise _unavailable(owner)

    async def withdraw(self, owner: str, key: Key, part: Part) -> None:
        """Do nothing: there are no claims."""

    async def withdraw_all(self, owner: str, scope: str | None = None) -> None:
        """Do nothing: there are no claims."""


def _unavailable(owner: str) -> Unavailable:
    return Unavailable(f"{owner}: wanted to claim a kernel value, found {NO_KERNEL}")


RELEASE: Final = object()  # restore what was there before the first write


class DesiredValue(NamedTuple):
    """One value that shall be in force; RELEASE: no plugin claims it any more.

    original: what is restored later when that is not what is found; None: what is found.
    """

    key: Key
    value: Any
    original: Any = None
    owners: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The result for one desired value. value is in force now, as far as known; original is kept.

    foreign_change: foreign, retaken or yielded, when another agent wrote; "" when that has been
    reported.
    """

    state: ClaimState
    value: Any = None
    original: Any = None
    message: str = ""
    wrote: bool = False
    foreign_change: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class InitialValue:
    """A value that a container's cgroup will be made with, or changed to, by its runtime.

    original is what the runtime was asked for. runs: the container is there already and nobody has
    asked for anything, so that is what the runtime has, which may be what it got from us before.
    """

    key: Key
    value: Any
    original: Any
    owners: tuple[str, ...]
    runs: bool = False


class ValueApplier(Protocol):
    """Brings desired values into force."""

    def apply(self, desired_values: Sequence[DesiredValue]) -> list[ApplyResult]:
        """Return what became of each. Never raises for what a kernel does."""

    def sweep(self) -> list[Key]:
        """Return values in force that are not any more what they should be."""


class Change(NamedTuple):
    """A change of a value, for logs, metrics and the audit log.

    what: set, restored, foreign, retaken, yielded, failed; with dry-run would_set, would_restore.
    inputs are the numbers of the decision.
    """

    what: str
    key: Key
    owners: tuple[str, ...]
    old: Any
    new: Any
    reason: str
    inputs: Mapping[str, float | str] = MappingProxyType({})


ChangeListener = Callable[[Change], None]
