"""Core scheduling: pods of different groups never share the hyper-threads of a core."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from koord.api.pod import Pod
from koord.api.qos import KubeQoS, QoSClass
from koord.api.qosstrategy import CPUPolicy, CPUQoS, ResourceQoS
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
from koordlet.plugin.pods import PodRoundsPlugin, Process, ProcessLists, by_pid, containers_of

GROUP_ID, POLICY = "koordinator.sh/core-sched-group-id", "koordinator.sh/core-sched-policy"
NONE, EXCLUSIVE = "none", "exclusive"  # policies; any other is the default, a group by its id
EXPELLER = "-expeller"  # ends the group of classes that keep others off


class ClassRule(NamedTuple):
    """The rule of one QoS class."""

    enabled: bool = False
    expeller: bool = False
    idle: bool = False  # runs when nothing else is runnable (cpu.idle)


_OFF = ClassRule()


@dataclass(frozen=True, slots=True)
class CoreSchedRule:
    """The rules of the classes."""

    lsr: ClassRule = _OFF  # of LSE and LSR pods
    ls: ClassRule = _OFF
    be: ClassRule = _OFF

    @property
    def enabled(self) -> bool:
        """Whether any class is core scheduled."""
        return self.lsr.enabled or self.ls.enabled or self.be.enabled

    def of_class(self, qos: KubeQoS) -> ClassRule:
        """Return the rule of a Kubernetes QoS class."""
        if qos is KubeQoS.GUARANTEED:
            return self.lsr if self.lsr.enabled else self.ls
        return self.ls if qos is KubeQoS.BURSTABLE else self.be

    def of_pod(self, qos: QoSClass, kube_qos: KubeQoS) -> ClassRule:
        """Return the rule of a pod, by the class of its label, else by its Kubernetes QoS class."""
        by_label = {QoSClass.LSE: self.lsr, QoSClass.LSR: self.lsr}
        by_label |= {QoSClass.LS: self.ls, QoSClass.BE: self.be}
        return by_label.get(qos) or self.of_class(kube_qos)


class PodGroup(NamedTuple):
    """The group of a pod. Groups are known by their names, on one node."""

    enabled: bool
    name: str


def core_sched_rule(settings: ResourceQoS) -> CoreSchedRule:
    """Return the rule in a NodeSLO; with another CPU policy nothing is core scheduled."""
    if settings.policies.cpu is not CPUPolicy.CORE_SCHED:
        return CoreSchedRule()
    return CoreSchedRule(*(_rule(one.cpu) for one in (settings.lsr, settings.ls, settings.be)))


def _rule(settings: CPUQoS) -> ClassRule:
    return ClassRule(settings.enable, settings.core_expeller, settings.sched_idle == 1)


def group_of(pod: Pod, kube_qos: KubeQoS, rule: CoreSchedRule) -> PodGroup:
    """Return the group of a pod by its labels and class. Pods of the class SYSTEM have none."""
    name, policy = pod.labels.get(GROUP_ID, ""), pod.labels.get(POLICY, "")
    if policy == EXCLUSIVE:
        name = pod.uid
    if not rule.enabled or pod.raw_qos_class is QoSClass.SYSTEM:
        return PodGroup(False, name)
    own = rule.of_pod(pod.raw_qos_class, kube_qos)
    return PodGroup(own.enabled and policy != NONE, name + EXPELLER if own.expeller else name)


def cookie_of(known: int, found: Iterable[int], taken: Collection[int]) -> int:
    """Return the cookie that a group has, 0 if it needs a new one.

    That which it is known to have (0: none) while a process has it; else, after a restart, that of
    most of its processes. found: the cookies of its processes; taken: those of other groups.
    """
    counts = Counter(cookie for cookie in found if cookie and cookie not in taken)
    if known in counts:
        return known
    return max(counts, key=lambda cookie: (counts[cookie], -cookie), default=0)


def has_foreign_cookie(found: int, group: int, ours: bool, cookies: Mapping[str, int]) -> bool:
    """Whether a process has a cookie of its own, or of another agent, which keeps it apart anyhow.

    group: the cookie of its group; ours: whether it is claimed; cookies: of all groups.
    """
    return not ours and found not in (0, group, *cookies.values())


NAME = "CoreSched"
NO_COOKIE, NEW_COOKIE = 0, -1
_CLASSES, _PROCESSES = "QoS classes", "processes"  # scopes of claims
_OWN = "self"  # place of this thread's own cookie
_GAUGE = "koordlet_container_core_sched_cookie"
_LABELS = (
    "node",
    "pod_name",
    "pod_namespace",
    "pod_uid",
    "container_name",
    "container_id",
    "core_sched_group",
    "core_sched_cookie",
)


class GroupMember(NamedTuple):
    """A container, or a sandbox, with its group."""

    meta: PodMeta
    group: PodGroup
    cgroup: str
    name: str = ""  # of a container; "" for a sandbox
    container_id: str = ""


class _MemberProcess(NamedTuple):
    """A process of a group."""

    process: Process
    member: GroupMember
    cookie: int  # that it has now


class CoreSched(PodRoundsPlugin[Pod]):
    """Keeps the processes of each group under one cookie; those that they start inherit it."""

    gates = (NAME,)
    may_claim = (
        ClaimScope(resources.CORE_SCHED_COOKIE, Level.PROCESS),
        ClaimScope(resources.CPU_IDLE, Level.QOS),
    )
    follows = (StateType.NODE_SLO_SPEC,)
    before_start = True

    def setup(self, client: Client, metric_cache: MetricCache, states_informer: States) -> None:
        super().setup(client, metric_cache, states_informer)
        self._lists = ProcessLists(self)
        self._supported: bool | None = None
        self._cookies: dict[str, int] = {}  # by group
        self._claimed: frozenset[Process] = frozenset()
        self._gauge = self.metrics.upstream_gauge(
            _GAUGE, "1 for each cookie that processes of the container have.", _LABELS
        )
        self._left = self.metrics.gauge(
            "left_processes", "Processes with a cookie of their own, which are left as they are."
        )
        self._failures = self.metrics.counter(
            "failures_total", "Cookies that could not be made or shared."
        )

    def begin(self) -> None:
        super().begin()
        self._lists.begin()
        self._cookies, self._claimed = {}, frozenset()

    def pod_settings(self, pod: Pod) -> Pod:
        return pod

    async def reconcile(self) -> None:
        """Keep classes idle, and give each group's processes its cookie."""
        slo = self.states.node_slo()
        rule = core_sched_rule(slo.resource_qos) if slo else CoreSchedRule()
        await self.keep(_CLASSES, self._idle_claims(rule))
        if not rule.enabled or not await self._is_supported():
            await self.keep(_PROCESSES, ())
            self._cookies, self._claimed = {}, frozenset()
            self._show(())
            return
        found = await self._processes(rule)
        members = {name: found[name] for name in sorted(found)}
        new = self._settle_cookies(members)
        if new:
            await self._make_cookies(members, new)
            found = await self._processes(rule)
            members = {name: found[name] for name in sorted(found)}
            self._settle_cookies(members)
        await self._share(members)

    async def _is_supported(self) -> bool:
        supported = await self.kernel.read(resources.CORE_SCHED_COOKIE, _OWN) is not None
        if self._supported is None and not supported:
            self.log.info("kernel.unsupported", needs=resources.CORE_SCHED_COOKIE.needs)
        self.degrade("" if supported else "this kernel has no core scheduling", part="cookies")
        self._supported = supported
        return supported

    def _idle_claims(self, rule: CoreSchedRule) -> Iterator[Claim]:
        for qos in KubeQoS:
            if rule.of_class(qos).idle:
                yield Claim(
                    target=Target.qos_class(self.kernel.layout, qos),
                    resource=resources.CPU_IDLE,
                    value=1,
                    reason=f"schedIdle of {qos} pods in the NodeSLO",
                )

    async def _processes(self, rule: CoreSchedRule) -> dict[str, list[_MemberProcess]]:
        """The processes by group, with their cookies now; those that have ended are left out."""
        members = [one for one in self._members(rule) if one.group.enabled]
        lists = await self._lists.of([one.cgroup for one in members])
        pairs = [(process, one) for one in members for process in by_pid(lists.get(one.cgroup, ()))]
        reads = [(resources.CORE_SCHED_COOKIE, str(process.pid)) for process, _ in pairs]
        cookies = await self.kernel.read_many(reads) if reads else []
        found: dict[str, list[_MemberProcess]] = {}
        for (process, one), reading in zip(pairs, cookies, strict=True):
            if reading is not None:
                found.setdefault(one.group.name, []).append(
                    _MemberProcess(process, one, reading.value)
                )
        return found

    def _members(self, rule: CoreSchedRule) -> Iterator[GroupMember]:
        pods = list(self.pods())
        self.settings.keep(meta.uid for meta in pods)
        for meta in sorted(pods, key=lambda meta: (meta.pod.namespace, meta.pod.name)):
            group = group_of(meta.pod, meta.kube_qos, rule)
            if meta.sandbox:
                yield GroupMember(meta, group, meta.sandbox)
            for container in containers_of(meta):
                yield GroupMember(
                    meta, group, container.cgroup, container.name, container.container_id
                )

    def _settle_cookies(self, members: Mapping[str, Iterable[_MemberProcess]]) -> list[str]:
        """Find out which cookie each group has; return those that need a new one."""
        known, self._cookies = self._cookies, {}
        for name, processes in members.items():
            taken = {*self._cookies.values(), *(known[k] for k in known if k != name)}
            cookie = cookie_of(known.get(name, 0), (one.cookie for one in processes), taken)
            if cookie:
                self._cookies[name] = cookie
        return [name for name in members if name not in self._cookies]

    async def _make_cookies(
        self, members: Mapping[str, list[_MemberProcess]], groups: Iterable[str]
    ) -> None:
        """Claim a new cookie for the first process of each group; other claims stay."""
        leaders = [members[name][0] for name in groups]
        new = {one.process for one in leaders}
        kept = [c for c in self._kept.get(_PROCESSES, ()) if _process(c) not in new]
        claims = [*kept, *(_claim(one, NEW_COOKIE) for one in leaders)]
        if tuple(claims) != self._kept.get(_PROCESSES, ()):  # equal in dry-run
            await self._claim(claims)

    async def _share(self, members: Mapping[str, list[_MemberProcess]]) -> None:
        """Claim each group's cookie for its processes."""
        claims: list[Claim] = []
        shown: list[_MemberProcess] = []
        left = 0
        for name, processes in members.items():
            cookie = self._cookies.get(name, NO_COOKIE)
            if not cookie:  # in dry-run, or it could not be made
                claims.append(_claim(processes[0], NEW_COOKIE))
                continue
            for one in processes:
                ours = one.process in self._claimed
                if has_foreign_cookie(one.cookie, cookie, ours, self._cookies):
                    left += 1
                else:
                    claims.append(_claim(one, cookie))
                    shown.append(one._replace(cookie=cookie))
        self._left.set(left)
        if tuple(claims) != self._kept.get(_PROCESSES, ()):
            await self._claim(claims)
        self._claimed = frozenset(map(_process, claims))
        self._show(shown)

    async def _claim(self, claims: list[Claim]) -> None:
        outcomes = await self.claim_all(claims, scope=_PROCESSES)
        failed = [one for one in outcomes if not one.holds and one.message]
        if failed:
            self._failures.inc(len(failed))
            self.log.warning("cookie.failed", processes=len(failed), error=failed[0].message)
        self._kept[_PROCESSES] = () if failed else tuple(claims)

    def _show(self, members: Iterable[_MemberProcess]) -> None:
        node = self.states.node()
        shown: dict[tuple[str, ...], float] = {}
        for one in members if node else ():
            pod, member = one.member.meta.pod, one.member
            if node and member.name:
                labels = (node.name, pod.name, pod.namespace, pod.uid, member.name)
                group = (member.container_id, member.group.name, str(one.cookie))
                shown[(*labels, *group)] = 1.0
        self._gauge.replace(shown)


def _claim(one: _MemberProcess, cookie: int) -> Claim:
    member = one.member
    where = f"container {member.name}" if member.name else "the sandbox"
    return Claim(
        target=Target.of_process(member.meta, one.process.pid, one.process.start_time),
        resource=resources.CORE_SCHED_COOKIE,
        value=cookie,
        original=NO_COOKIE,  # also of one that has inherited it
        reason=f"core scheduling group {member.group.name!r}, by the CPU QoS of its class; {where}",
    )


def _process(claim: Claim) -> Process:
    return Process(int(claim.target.place), claim.target.start_time)


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register_qos_ext_plugin(NAME, None, CoreSched())
