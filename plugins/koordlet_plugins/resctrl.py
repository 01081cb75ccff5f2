"""Cache and memory bandwidth by control groups of resctrl: of QoS classes, and of single pods.

Makes groups in /sys/fs/resctrl, sets their schemata, and moves the processes of containers there.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from koord.api.annotations import json_annotation, place
from koord.api.gojson import between, shape_of, wire
from koord.api.machine import NODE_CPU_INFO, NodeCpuInfo
from koord.api.pod import Pod
from koord.api.qos import QoSClass
from koord.api.qosstrategy import ResctrlQoS, ResourceQoS
from koord.plugin import InvalidObject
from koordlet.plugin import (
    Claim,
    ClaimScope,
    Client,
    Level,
    MetricCache,
    PluginRegistry,
    PodMeta,
    States,
    StateType,
    Target,
    resources,
)
from koordlet.plugin.kernel import AuditText, Part, Resource, WatchedValue
from koordlet.plugin.pods import PodRoundsPlugin, Process, ProcessLists, containers_of, pods_of

AMD = "AuthenticAMD"
_AMD_UNLIMITED = 2048
_AMD_FULL = 160  # eighths of GB/s that 100 % stand for: 25 GB/s, of which 80 % can be had
_STEP = 10  # percent, on Intel


class ResctrlMachine(NamedTuple):
    """The capabilities of resctrl on this host."""

    vendor: str
    mask: int  # all ways of an L3 cache; 0: they cannot be divided
    fewest_ways: int
    caches: tuple[int, ...]  # ids of L3 caches
    bandwidths: tuple[int, ...]  # ids of the domains of bandwidth; none: it cannot be divided

    @property
    def divides_cache(self) -> bool:
        """Whether L3 caches can be divided."""
        return self.mask > 0 and bool(self.caches)


class SchemataLines(NamedTuple):
    """The lines of a group's schemata; "": the line stays as the kernel makes it."""

    l3: str
    mb: str


def l3_mask(mask: int, fewest_ways: int, start: int, end: int) -> int:
    """Return the ways from start to end percent of those of a mask.

    Raises:
        ValueError: the kernel would not take it.
    """
    if mask <= 0 or mask & (mask + 1):
        raise ValueError(f"wanted a cache whose ways are one run from the first, found {mask:x}")
    if not 0 <= start < end <= 100:
        raise ValueError(f"wanted 0 <= start < end <= 100 percent, found {start} and {end}")
    ways = mask.bit_length()
    first, last = (-(-ways * percent // 100) for percent in (start, end))
    if last - first < fewest_ways:
        raise ValueError(
            f"wanted {fewest_ways} ways at least, found {last - first} from {start} to {end} "
            f"percent of {ways}"
        )
    return (1 << last) - (1 << first)


def bandwidth(percent: int, vendor: str) -> int:
    """Return the number for a part of the memory bandwidth.

    That is percent in tens on Intel, eighths of GB/s on AMD.

    Raises:
        ValueError: it is not 1 to 100 percent.
    """
    if not 1 <= percent <= 100:
        raise ValueError(f"wanted 1 to 100 percent, found {percent}")
    if vendor == AMD:
        return _AMD_UNLIMITED if percent == 100 else _AMD_FULL * percent // 100
    return -(-percent // _STEP) * _STEP


def l3_text(masks: Mapping[int, int]) -> str:
    """Return the value of RESCTRL_L3 for masks by cache id."""
    return ";".join(f"{cache}={mask:x}" for cache, mask in sorted(masks.items()))


def bandwidth_text(numbers: Mapping[int, int]) -> str:
    """Return the value of RESCTRL_MB for numbers by id."""
    return ";".join(f"{cache}={number}" for cache, number in sorted(numbers.items()))


def ids_of(text: str) -> dict[int, str]:
    """Return what a value of RESCTRL_L3 or RESCTRL_MB says, by id."""
    pairs = (entry.partition("=") for entry in text.split(";") if entry)
    return {int(cache): number for cache, _, number in pairs}


ANNOTATION = "node.koordinator.sh/resctrl"
MAX_CACHES = 256  # entries by cache
_ID = between(0, 65_535)
_PART = between(0, 100)


@dataclass(frozen=True, slots=True)
class SchemataPart:
    """A part of the caches (range) or of the bandwidth (percent); neither: nothing is asked for."""

    percent: int = wire("percent", 0, limit=_PART)
    range: tuple[int, ...] = wire("range", ())


@dataclass(frozen=True, slots=True)
class CachePart:
    """The same for one cache."""

    cache: int = wire("cacheID", 0, limit=_ID)
    percent: int = wire("percent", 0, limit=_PART)
    range: tuple[int, ...] = wire("range", ())


@dataclass(frozen=True, slots=True)
class Parts:
    """The part of all caches, and parts of single caches, which override it."""

    every: SchemataPart = wire("schemata", factory=SchemataPart)
    per_cache: tuple[CachePart, ...] = wire("schemataPerCache", ())


@dataclass(frozen=True, slots=True)
class PodParts:
    """The parts that a pod's annotation asks for."""

    llc: Parts = wire("llc", factory=Parts)
    mb: Parts = wire("mb", factory=Parts)


_SHAPE = shape_of(PodParts)


def parts_of(pod: Pod) -> PodParts | None:
    """Return what a pod asks for; None: it has no such annotation.

    Raises:
        InvalidObject: it is malformed, or no machine could do it.
    """
    if ANNOTATION not in pod.annotations:
        return None
    where = place(pod, ANNOTATION)
    found = _SHAPE.load(json_annotation(pod, ANNOTATION, _SHAPE))
    for name, parts in (("llc", found.llc), ("mb", found.mb)):
        if len(parts.per_cache) > MAX_CACHES:
            raise InvalidObject(
                f"{where}.{name}.schemataPerCache",
                wanted=f"{MAX_CACHES} entries at most",
                found=len(parts.per_cache),
            )
        _check(parts.every, f"{where}.{name}.schemata")
        for index, part in enumerate(parts.per_cache):
            _check(part, f"{where}.{name}.schemataPerCache[{index}]")
    return found


def _check(part: SchemataPart | CachePart, where: str) -> None:
    if part.range and not (len(part.range) == 2 and 0 <= part.range[0] < part.range[1] <= 100):
        raise InvalidObject(
            f"{where}.range", wanted="two percentages, the first below the second", found=part.range
        )


def lines_for(parts: PodParts, machine: ResctrlMachine, where: str) -> SchemataLines:
    """Return the lines for a pod on this machine.

    A line is there if each cache has a part, as Koordinator's: one that is asked for of single
    caches only needs all of them.

    Raises:
        InvalidObject: the machine has no such cache, or cannot divide it so.
    """
    numbers: dict[int, int] = {}
    masks: dict[int, int] = {}
    try:
        if machine.bandwidths:
            _check_ids(parts.mb, machine.bandwidths)
            if parts.mb.every.percent:
                number = bandwidth(parts.mb.every.percent, machine.vendor)
                numbers = dict.fromkeys(machine.bandwidths, number)
            for part in parts.mb.per_cache:
                if part.percent:
                    numbers[part.cache] = bandwidth(part.percent, machine.vendor)
        if machine.divides_cache:
            _check_ids(parts.llc, machine.caches)
            if parts.llc.every.range:
                masks = dict.fromkeys(machine.caches, _mask(machine, parts.llc.every))
            for part in parts.llc.per_cache:
                if part.range:
                    masks[part.cache] = _mask(machine, part)
    except ValueError as err:
        raise InvalidObject(where, wanted="parts that this machine has", found=str(err)) from err
    return SchemataLines(
        l3_text(masks) if masks.keys() == set(machine.caches) else "",
        bandwidth_text(numbers) if numbers.keys() == set(machine.bandwidths) else "",
    )


def _mask(machine: ResctrlMachine, part: SchemataPart | CachePart) -> int:
    start, end = part.range
    return l3_mask(machine.mask, machine.fewest_ways, start, end)


def _check_ids(parts: Parts, known: tuple[int, ...]) -> None:
    for part in parts.per_cache:
        if part.cache not in known:
            raise ValueError(f"wanted one of the caches {known}, found cacheID {part.cache}")


W = TypeVar("W")

DEFAULT = "/"  # the group of processes that are in no other
CLASSES = ("LSR", "LS", "BE")
POD_PREFIX = "koordlet-"  # of the group of a pod
_PROBED = (
    (resources.RESCTRL_L3, ""),
    (resources.RESCTRL_CBM_MASK, ""),
    (resources.RESCTRL_MIN_CBM_BITS, ""),
    (resources.RESCTRL_MB, ""),
)
_ROWS = (resources.RESCTRL_GROUP, resources.RESCTRL_L3, resources.RESCTRL_MB)
_PRESENT = (resources.RESCTRL_GROUP, "present")


class WantedGroup(NamedTuple):
    """A group that shall be there. Lines: values of RESCTRL_L3 and RESCTRL_MB; "": any."""

    target: Target
    l3: str
    mb: str
    reason: str


class ResctrlMember(NamedTuple):
    """A cgroup whose processes belong into a group."""

    meta: PodMeta
    cgroup: str
    group: str


class ResctrlPlugin(PodRoundsPlugin[W]):
    """Claims groups first, then their schemata, then processes: none runs in a half-made group.

    A process that another agent has put into a group of its own stays there.
    """

    audit_text = AuditText("UpdateResctrl", "update {path} to {value}")  # Koordinator's
    part: Part

    def setup(self, client: Client, metric_cache: MetricCache, states_informer: States) -> None:
        super().setup(client, metric_cache, states_informer)
        self._cache = metric_cache
        self._lists = ProcessLists(self)
        self._claimed: dict[str, dict[Process, Claim]] = {}  # by the pod's UID
        self._foreign = self.metrics.gauge(
            "foreign_processes", "Processes that are left in a control group of another agent."
        )

    @abstractmethod
    def groups(self, machine: ResctrlMachine) -> Mapping[str, WantedGroup]:
        """Return the groups that are wanted now, by name."""

    @abstractmethod
    def members(self, groups: Mapping[str, WantedGroup]) -> Iterable[ResctrlMember]:
        """Return the cgroups whose processes belong into these groups."""

    def begin(self) -> None:
        super().begin()
        self._lists.begin()
        self._claimed.clear()
        self._made: list[str] = []  # groups that are claimed
        self._seen: list[Any] = [None] * len(_PROBED)

    async def reconcile(self) -> None:
        """Bring groups and processes up to the present states."""
        machine = await self._machine()
        groups = self.groups(machine) if machine is not None else {}
        members = list(self.members(groups)) if groups else []
        uids = {member.meta.uid for member in members}
        for uid in self._claimed.keys() - uids:
            del self._claimed[uid]
            await self.withdraw_all(scope=uid)
        await self._keep_groups(groups)
        processes = await self._lists.of([member.cgroup for member in members])
        await self._move(members, processes)

    async def _machine(self) -> ResctrlMachine | None:
        """Return what resctrl offers; None: nothing, or not known yet."""
        info = self._cache.get(NODE_CPU_INFO)
        if not isinstance(info, NodeCpuInfo):
            return None
        values = [_value(reading) for reading in await self.kernel.read_many(_PROBED)]
        if any(
            now is None and before is not None
            for now, before in zip(values, self._seen, strict=True)
        ):
            values = (
                self._seen
            )  # what was there cannot be read just now, or is not mounted any more
        self._seen = values
        l3, mask, fewest, mb = values
        if l3 is None and mb is None:
            return None
        vendor = info.basics.vendor
        numbers = ids_of(mb or "")
        in_percent = vendor == AMD or all(int(number) <= 100 for number in numbers.values())
        self.degrade(
            "" if in_percent else "resctrl is mounted with mba_MBps: bandwidth is left as it is",
            part="bandwidth",
        )
        return ResctrlMachine(
            vendor,
            mask or 0,
            fewest or 1,
            tuple(sorted(ids_of(l3 or ""))),
            tuple(sorted(numbers)) if in_percent else (),
        )

    async def _keep_groups(self, groups: Mapping[str, WantedGroup]) -> None:
        """Remove those that are not wanted any more, then make the others in their order.

        Each takes one of few CLOSIDs, so the order decides which are left out.
        """
        for name in [name for name in self._made if name not in groups]:
            self._made.remove(name)
            await self.keep(f"{name}/schemata", ())
            await self.keep(f"{name}/group", ())
        for name, group in groups.items():
            if name not in self._made:
                self._made.append(name)
            await self.keep(f"{name}/group", [self._claim(group, *_PRESENT)])
            lines = ((resources.RESCTRL_L3, group.l3), (resources.RESCTRL_MB, group.mb))
            claims = [self._claim(group, resource, value) for resource, value in lines if value]
            await self.keep(f"{name}/schemata", claims)

    def _claim(self, group: WantedGroup, resource: Resource[str], value: str) -> Claim:
        return Claim(
            target=group.target,
            resource=resource,
            value=value,
            reason=group.reason,
            part=self.part,
        )

    async def _move(
        self, members: Iterable[ResctrlMember], processes: Mapping[str, frozenset[Process]]
    ) -> None:
        """Claim for each process that it is in the group of its pod."""
        wanted: dict[str, dict[Process, ResctrlMember]] = {}
        for member in members:
            of_pod = wanted.setdefault(member.meta.uid, {})
            of_pod.update(dict.fromkeys(processes.get(member.cgroup, ()), member))
        left = await self._foreign_processes(wanted)
        self._foreign.set(len(left))
        for uid, of_pod in wanted.items():
            before = self._claimed.get(uid, {})
            now = {
                process: _kept(before.get(process), process, member, self.part)
                for process, member in of_pod.items()
                if process not in left
            }
            if now != before:
                self._claimed[uid] = now
                await self.apply_claims(tuple(now.values()), scope=uid)

    async def _foreign_processes(
        self, wanted: Mapping[str, Mapping[Process, ResctrlMember]]
    ) -> set[Process]:
        """Return unclaimed processes that are in another agent's group, or cannot be read."""
        new = [
            process
            for uid, of_pod in wanted.items()
            for process in of_pod
            if process not in self._claimed.get(uid, {})
        ]
        if not new:
            return set()
        reads = [(resources.RESCTRL_TASKS, str(process.pid)) for process in new]
        found = await self.kernel.read_many(reads)
        return {
            process
            for process, reading in zip(new, found, strict=True)
            if reading is None or not _is_ours(reading.value)
        }


def scopes(part: Part) -> tuple[ClaimScope, ...]:
    """Return the claim scopes of a plugin of this package."""
    groups = (ClaimScope(row, Level.RESCTRL, part=part) for row in _ROWS)
    return (*groups, ClaimScope(resources.RESCTRL_TASKS, Level.PROCESS, part=part))


def cgroups_of(meta: PodMeta) -> Iterator[str]:
    """The cgroups of a pod that have processes: its containers, and the sandbox where known."""
    for container in containers_of(meta):
        yield container.cgroup
    if meta.sandbox:
        yield meta.sandbox


def _kept(before: Claim | None, process: Process, member: ResctrlMember, part: Part) -> Claim:
    """The claim for a process; the one that is there if it says the same."""
    if before is not None and before.value == member.group:
        return before
    return Claim(
        target=Target.of_process(member.meta, process.pid, process.start_time),
        resource=resources.RESCTRL_TASKS,
        value=member.group,
        reason=f"its pod belongs into the control group {member.group}",
        part=part,
        original=DEFAULT,
    )


def _is_ours(group: str) -> bool:
    """Whether no other agent has put a process where it is; the plugins move only such."""
    return group == DEFAULT or group in CLASSES or group.startswith(POD_PREFIX)


def _value(reading: WatchedValue | None) -> Any:
    return None if reading is None else reading.value


GROUP_OF = {
    QoSClass.LSE: "LSR",
    QoSClass.LSR: "LSR",
    QoSClass.LS: "LS",
    QoSClass.BE: "BE",
}
_KEYS = {"LSR": "lsrClass", "LS": "lsClass", "BE": "beClass"}  # of the NodeSLO


def class_lines(settings: ResctrlQoS, machine: ResctrlMachine, where: str) -> SchemataLines:
    """Return the lines for a class on this machine.

    Raises:
        InvalidObject: the machine cannot divide its caches so.
    """
    l3 = mb = ""
    if machine.divides_cache:
        start, end = settings.cat_range_start_percent, settings.cat_range_end_percent
        try:
            mask = l3_mask(machine.mask, machine.fewest_ways, start, end)
        except ValueError as err:
            raise InvalidObject(
                where, wanted="a range that this machine can have", found=str(err)
            ) from err
        l3 = l3_text(dict.fromkeys(machine.caches, mask))
    if machine.bandwidths and settings.mba_percent > 0:
        number = bandwidth(settings.mba_percent, machine.vendor)
        mb = bandwidth_text(dict.fromkeys(machine.bandwidths, number))
    return SchemataLines(l3, mb)


class RdtResctrl(ResctrlPlugin[bool]):
    """Keeps the groups of the classes that are enabled, with the processes of their pods."""

    gates = ("RdtResctrl",)
    follows = (StateType.NODE_SLO_SPEC,)
    may_claim = scopes(Part.VALUE)
    part = Part.VALUE

    def begin(self) -> None:
        super().begin()
        self._last: ResourceQoS | None = None
        self._good: dict[str, SchemataLines] = {}  # what could be used last, by group

    def pod_settings(self, pod: Pod) -> bool:
        """Whether the pod belongs to the group of its class; one with its own does not."""
        return ANNOTATION not in pod.annotations

    def groups(self, machine: ResctrlMachine) -> Mapping[str, WantedGroup]:
        slo = self.states.node_slo()
        self._last = slo.resource_qos if slo is not None else self._last
        if self._last is None:
            return {}
        of_class = {"LSR": self._last.lsr, "LS": self._last.ls, "BE": self._last.be}
        found = {}
        for name in CLASSES:
            settings = of_class[name].resctrl
            lines = self._lines(name, settings, machine) if settings.enable else None
            if lines is not None:
                reason = (
                    f"{_KEYS[name]}.resctrlQOS: {settings.cat_range_start_percent} to "
                    f"{settings.cat_range_end_percent} % of the L3 caches, "
                    f"{settings.mba_percent} % of the memory bandwidth"
                )
                found[name] = WantedGroup(Target.resctrl(name), lines.l3, lines.mb, reason)
        return found

    def members(self, groups: Mapping[str, WantedGroup]) -> Iterator[ResctrlMember]:
        pods = list(pods_of(self.states))
        self.settings.keep(meta.uid for meta in pods)
        for meta in pods:
            group = GROUP_OF.get(meta.qos, "")
            if group in groups and self.settings.of(meta.pod):
                for cgroup in cgroups_of(meta):
                    yield ResctrlMember(meta, cgroup, group)

    def _lines(
        self, name: str, settings: ResctrlQoS, machine: ResctrlMachine
    ) -> SchemataLines | None:
        """The lines of a class; the last good ones while its settings cannot be used."""
        try:
            found = class_lines(settings, machine, f"NodeSLO: {_KEYS[name]}.resctrlQOS")
        except InvalidObject as err:
            self.rejections.reject(name, err)
            return self._good.get(name)
        self.rejections.accept(name)
        self._good[name] = found
        return found


class Resctrl(ResctrlPlugin[PodParts]):
    """Keeps a group for each pod with the annotation, and its processes in it."""

    gates = ("Resctrl",)
    may_claim = scopes(Part.PIN)
    part = Part.PIN

    def begin(self) -> None:
        super().begin()
        self._good: dict[str, SchemataLines] = {}  # what could be used last, by UID
        self._members: list[tuple[PodMeta, str]] = []

    def pod_settings(self, pod: Pod) -> PodParts | None:
        return parts_of(pod)

    def groups(self, machine: ResctrlMachine) -> Mapping[str, WantedGroup]:
        pods = list(pods_of(self.states))
        uids = {meta.uid for meta in pods}
        self.settings.keep(uids)
        for uid in self._good.keys() - uids:
            del self._good[uid]
            self.rejections.forget(_key(uid))
        self._members = []
        found: dict[str, WantedGroup] = {}
        for meta in pods:
            parts = self.settings.of(meta.pod)
            lines = self._lines(meta, parts, machine) if parts is not None else None
            target = Target.resctrl(f"{POD_PREFIX}{meta.uid}", meta)
            if lines is not None and target.is_valid:
                reason = f"the pod asks for it in {ANNOTATION}"
                found[target.place] = WantedGroup(target, lines.l3, lines.mb, reason)
                self._members.append((meta, target.place))
        return found

    def members(self, groups: Mapping[str, WantedGroup]) -> Iterator[ResctrlMember]:
        for meta, group in self._members:
            for cgroup in cgroups_of(meta):
                yield ResctrlMember(meta, cgroup, group)

    def _lines(
        self, meta: PodMeta, parts: PodParts, machine: ResctrlMachine
    ) -> SchemataLines | None:
        """The lines of a pod; the last good ones while its annotation cannot be used here."""
        try:
            found = lines_for(parts, machine, place(meta.pod, ANNOTATION))
        except InvalidObject as err:
            self.rejections.reject(_key(meta.uid), err, meta.pod)
            return self._good.get(meta.uid)
        self.rejections.accept(_key(meta.uid))
        self._good[meta.uid] = found
        return found


def _key(uid: str) -> str:
    """The name under which a pod's parts are rejected; its annotation has the UID itself."""
    return f"{uid}/machine"


def register_classes(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin("RdtResctrl", None, RdtResctrl())


def register_pods(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin("Resctrl", None, Resctrl())
