"""Shared by both plugins: keep groups, their schemata, and the processes that belong there."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from koord.api.machine import NODE_CPU_INFO, NodeCpuInfo
from koordlet.plugin import (
    Claim,
    ClaimScope,
    Client,
    Level,
    MetricCache,
    PodMeta,
    States,
    Target,
    resources,
)
from koordlet.plugin.kernel import AuditText, Part, Resource, WatchedValue
from koordlet.plugin.pods import PodRoundsPlugin, Process, ProcessLists, containers_of
from koordlet_plugins.resctrl.rules import AMD, ResctrlMachine, ids_of

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
