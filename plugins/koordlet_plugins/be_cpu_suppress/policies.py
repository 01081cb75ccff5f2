"""The suppression policies: CPU set, CPU quota and cpu.idle; their inputs and cgroups."""

import math
import operator
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import NamedTuple, Protocol

from koord.api.annotations import is_pinned
from koord.api.kubelet import STATIC
from koord.api.machine import NODE_CPU_INFO, Cpu, CpuTopology, NodeCpuInfo
from koord.api.node import set_aside_cpus
from koord.api.pod import Pod
from koord.api.qos import KubeQoS, QoSClass
from koordlet.plugin import (
    Claim,
    ExtensionPlugin,
    Level,
    MetricCache,
    NodeTopology,
    PodMeta,
    States,
    Target,
    resources,
    shared_cpus,
)
from koordlet.plugin.kernel import Kernel, Layout
from koordlet_plugins.be_cpu_suppress.usage import STEP, Allowance, Evidence

MIN_CPUS = 2


@dataclass(frozen=True, slots=True)
class BestEffortCpus:
    """The CPUs that best-effort pods may use: all but those of LSE pods and those set aside."""

    processors: int  # of the node
    borrowed: tuple[Cpu, ...]  # of LSR pods
    shared: tuple[Cpu, ...]  # the others

    @classmethod
    def of_node(
        cls, topology: CpuTopology, pods: Iterable[Pod], set_aside: Set[int]
    ) -> "BestEffortCpus":
        """Take off the CPUs that the scheduler gave to pods, and those set aside.

        set_aside: reserved CPUs, and those for the system only.
        """
        found = shared_cpus(topology.numbers, pods)
        usable = [cpu for cpu in topology.cpus if cpu.cpu in found.be - set_aside]
        return cls(
            len(topology.cpus),
            tuple(cpu for cpu in usable if cpu.cpu in found.lsr),
            tuple(cpu for cpu in usable if cpu.cpu not in found.lsr),
        )

    @property
    def pool(self) -> frozenset[int]:
        """The numbers of all of them."""
        return frozenset(cpu.cpu for cpu in (*self.borrowed, *self.shared))

    @property
    def whole_node(self) -> bool:
        """Whether these are all CPUs of the node."""
        return len(self.borrowed) + len(self.shared) == self.processors

    def count(self, allowance: Allowance, current: int) -> int:
        """Return the number of CPUs from now on; current is the number now."""
        wanted = min(max(current, _cpus(allowance.least)), _cpus(allowance.most))
        return min(wanted, current + math.ceil(self.processors * STEP))

    def choose(self, count: int) -> frozenset[int]:
        """Return so many CPUs, or all when there are fewer: of both kinds in proportion."""
        total = len(self.borrowed) + len(self.shared)
        if not total:
            return frozenset()
        count = min(count, total)
        borrowed = count * len(self.borrowed) // total
        return frozenset(pick(borrowed, self.borrowed) + pick(count - borrowed, self.shared))


class NodeCpus(NamedTuple):
    """static: the kubelet gives CPUs to containers itself."""

    cpus: BestEffortCpus
    static: bool


class CpuView:
    """Caches the CPUs until one of their inputs is replaced."""

    def __init__(self, states: States, cache: MetricCache, *, in_cluster: bool) -> None:
        self._states = states
        self._cache = cache
        self._in_cluster = in_cluster
        self._facts: tuple[object, ...] = ()
        self._cpus: NodeCpus | None = None

    def now(self) -> NodeCpus | None:
        """Return the present CPUs; None: too little is known to touch a cpuset."""
        states = self._states
        info, topology = self._cache.get(NODE_CPU_INFO), states.node_topology()
        facts = info, topology, states.node(), states.pods()
        if len(facts) != len(self._facts) or any(map(operator.is_not, facts, self._facts)):
            self._facts, self._cpus = facts, self._work_out(info, topology)
        return self._cpus

    def _work_out(self, info: object, topology: NodeTopology | None) -> NodeCpus | None:
        """Without a cluster there is no topology object, and the node's annotations count alone."""
        node = self._states.node()
        if not isinstance(info, NodeCpuInfo) or node is None:
            return None
        if topology is None and self._in_cluster:
            return None
        if topology is None:
            set_aside, static = set_aside_cpus(node.annotations, info.topology), False
        else:
            system = topology.system_qos.exclusive_cpus if topology.system_qos else frozenset()
            set_aside = topology.reservation.cpus | system
            static = topology.cpu_manager.policy == STATIC
        pods = (meta.pod for meta in self._states.pods())
        return NodeCpus(BestEffortCpus.of_node(info.topology, pods, set_aside), static)


def pick(count: int, cpus: Iterable[Cpu]) -> list[int]:
    """Return so many CPUs, or all when there are fewer: spread over sockets, in whole cores.

    Sockets take turns, the one with the most CPUs first. The rest of an odd number, or of cores
    that are not whole, comes as single CPUs.
    """
    free = _buckets(cpus)
    pairs, turn = _deal(count, free, at_once=2)
    singles, _ = _deal(count - len(pairs), [*free[turn:], *free[:turn]], at_once=1)
    return [*pairs, *singles]


def _buckets(cpus: Iterable[Cpu]) -> list[list[Cpu]]:
    """CPUs by NUMA node and socket, sorted by core; the largest first, then by the first CPU."""
    buckets: dict[tuple[int, int], list[Cpu]] = {}
    for cpu in sorted(cpus, key=lambda cpu: (cpu.core, cpu.cpu)):
        buckets.setdefault((cpu.node, cpu.socket), []).append(cpu)
    return sorted(buckets.values(), key=lambda bucket: (-len(bucket), bucket[0].cpu))


def _deal(count: int, free: Sequence[list[Cpu]], *, at_once: int) -> tuple[list[int], int]:
    """Take CPUs of one core at a time, `at_once` of them, from the buckets in turns.

    Ends when that is enough, or after a whole cycle in which no bucket had any. Also returns the
    index of the next bucket.
    """
    dealt: list[int] = []
    turn, had = 0, -1  # had: how many were dealt when the cycle began
    while free and count - len(dealt) >= at_once:
        if turn == 0 and len(dealt) == had:
            break
        had = len(dealt) if turn == 0 else had
        for cpu in _first_of_one_core(free[turn], at_once):
            free[turn].remove(cpu)
            dealt.append(cpu.cpu)
        turn = (turn + 1) % len(free)
    return dealt, turn


def _first_of_one_core(free: list[Cpu], at_once: int) -> Sequence[Cpu]:
    if at_once == 1:
        return free[:1]
    return next((pair for pair in pairwise(free) if pair[0].core == pair[1].core), ())


def _cpus(left: int) -> int:
    """CPUs for so many milli-cores."""
    return max(math.ceil(left / 1000), MIN_CPUS)


DEPTH = 2  # pods, and containers with their sandboxes


class NodeInputs(NamedTuple):
    """Findings of a round about the node, without usage."""

    cores: int  # the node's capacity
    pods: tuple[PodMeta, ...]
    cpus: NodeCpus | None  # None: too little is known to touch a cpuset


class Policy(Protocol):
    """A policy that limits best-effort pods.

    round and on_fast_sample return the cores that best-effort pods are limited to from now on. None
    means no limit for round, and an unchanged limit for on_fast_sample.
    """

    fast_samples: bool  # whether fast samples matter to it

    async def round(self, evidence: Evidence, seen: NodeInputs) -> float | None:
        """Apply the evidence of a round."""

    def must_shrink(self, allowance: Allowance) -> bool:
        """Whether fast samples require less than is in force now. Pure, for any thread."""

    async def on_fast_sample(self, evidence: Evidence) -> float | None:
        """Apply the evidence of fast samples, before the next round."""

    async def end(self) -> None:
        """Withdraw all claims of the policy."""


@dataclass(frozen=True, slots=True)
class BestEffortGroups:
    """The cgroups below the best-effort group, parents first."""

    group: Target
    pods: tuple[Target, ...]
    containers: tuple[Target, ...]  # sandboxes too

    @property
    def all(self) -> tuple[Target, ...]:
        return (self.group, *self.pods, *self.containers)


def best_effort_group(layout: Layout) -> Target:
    """Return the cgroup that Kubernetes' best-effort pods are in."""
    return Target.qos_class(layout, KubeQoS.BEST_EFFORT)


async def find_best_effort_groups(kernel: Kernel, pods: Iterable[PodMeta]) -> BestEffortGroups:
    """Return the present cgroups. pods: the listed ones, for their names."""
    group = best_effort_group(kernel.layout)
    known = {meta.cgroup: meta for meta in pods}
    below: dict[int, list[Target]] = {1: [], 2: []}
    for path in await kernel.groups_below(group.place, DEPTH):
        depth = path.count("/") - group.place.count("/")
        pod = known.get(path if depth == 1 else path.rpartition("/")[0])
        below[depth].append(_target(path, Level.POD if depth == 1 else Level.CONTAINER, pod))
    return BestEffortGroups(group, tuple(below[1]), tuple(below[2]))


def _target(path: str, level: Level, pod: PodMeta | None) -> Target:
    """A cgroup in the best-effort group counts as best-effort, whatever its pod's label is."""
    if pod is None:
        return Target(level, path, qos=QoSClass.BE)
    name = f"{pod.pod.namespace}/{pod.pod.name}"
    return Target(level, path, qos=QoSClass.BE, pod=name, uid=pod.uid)


CPUSET_SCOPE = "cpuset"
CPUSET_REASON = (
    "best-effort pods get as many CPUs as the threshold leaves them beside all others: "
    "fewer at once, a tenth of the node's CPUs more per round"
)
POOL_REASON = "best-effort pods may use all CPUs but those of LSE pods and those that are set aside"


@dataclass(frozen=True, slots=True)
class CpusetRound:
    """Findings of a round: the CPUs, and the cgroups that they are for."""

    cpus: BestEffortCpus
    static: bool  # the kubelet gives CPUs to containers itself, so only theirs are few
    places: BestEffortGroups


class CpusetPolicy:
    """Keeps the claimed CPUs: they are the present number of CPUs, in dry-run, too."""

    fast_samples = True

    def __init__(self, plugin: ExtensionPlugin) -> None:
        self._plugin = plugin
        self._round: CpusetRound | None = None
        self._held: frozenset[int] = frozenset()  # empty: nothing is in force
        self._claims: list[Claim] = []
        self._behind: tuple[frozenset[int], CpusetRound] | None = None  # inputs of the claims

    async def round(self, evidence: Evidence, seen: NodeInputs) -> float | None:
        """Apply the evidence of a round. Without a CPU that pods may use, nothing changes."""
        if seen.cpus is None:
            return None
        places = await find_best_effort_groups(self._plugin.kernel, seen.pods)
        self._round = CpusetRound(*seen.cpus, places)
        held = self._held or await self._found()
        return None if held is None else await self._follow(evidence, self._round, held)

    def must_shrink(self, allowance: Allowance) -> bool:
        """Whether fast samples require less than is in force now."""
        known, held = self._round, len(self._held)
        return known is not None and held > 0 and known.cpus.count(allowance, held) < held

    async def on_fast_sample(self, evidence: Evidence) -> float | None:
        """Apply the evidence of fast samples."""
        known = self._round
        if known is None or not self.must_shrink(evidence.allowance):
            return None
        return await self._follow(evidence, known, self._held)

    async def pool(self, seen: NodeInputs) -> None:
        """Claim the whole pool for best-effort pods, while another policy limits them.

        Pinned containers keep their CPUs.
        """
        if seen.cpus is None:
            return
        self._forget()
        cpus = seen.cpus.cpus
        if cpus.whole_node or not cpus.pool:
            await self._plugin.withdraw_all(scope=CPUSET_SCOPE)
            return
        places = await find_best_effort_groups(self._plugin.kernel, seen.pods)
        pinned = {meta.uid for meta in seen.pods if is_pinned(meta.pod)}
        free = (place for place in places.containers if place.uid not in pinned)
        claims = _claims((places.group, *places.pods, *free), cpus.pool, POOL_REASON)
        await self._plugin.claim_all(claims, scope=CPUSET_SCOPE)

    async def end(self) -> None:
        """Withdraw all claims of the policy."""
        self._forget()
        await self._plugin.withdraw_all(scope=CPUSET_SCOPE)

    def _forget(self) -> None:
        self._round, self._held, self._behind = None, frozenset(), None

    async def _found(self) -> frozenset[int] | None:
        group = best_effort_group(self._plugin.kernel.layout)
        return await self._plugin.kernel.read(resources.CPUSET_CPUS, group.place)

    async def _follow(
        self, evidence: Evidence, known: CpusetRound, held: frozenset[int]
    ) -> float | None:
        chosen = known.cpus.choose(known.cpus.count(evidence.allowance, len(held)))
        if not chosen:
            return None
        if self._behind != (chosen, known):  # else the claims have the numbers that were decisive
            self._claims = list(_wanted(known, chosen, evidence))
            self._behind = chosen, known
        outcomes = await self._plugin.claim_all(self._claims, scope=CPUSET_SCOPE)
        holds = any(
            outcome.holds and claim.value == chosen
            for outcome, claim in zip(outcomes, self._claims, strict=True)
        )
        self._held = chosen if holds else frozenset()
        return len(chosen) if holds else None


def _wanted(known: CpusetRound, chosen: frozenset[int], evidence: Evidence) -> Iterator[Claim]:
    places = known.places
    if not known.static:
        return _claims(places.all, chosen, CPUSET_REASON, evidence)
    return chain(
        _claims((places.group, *places.pods), known.cpus.pool, POOL_REASON),
        _claims(places.containers, chosen, CPUSET_REASON, evidence),
    )


def _claims(
    places: Iterable[Target], cpus: frozenset[int], reason: str, evidence: Evidence | None = None
) -> Iterator[Claim]:
    inputs = evidence.inputs() if evidence else {}
    for place in places:
        yield Claim(
            target=place,
            resource=resources.CPUSET_CPUS_WANTED,
            value=cpus,
            reason=reason,
            inputs=inputs,
        )


NO_LIMIT = -1
MIN_QUOTA = 2000  # us per period; a change to it is written, however small
UPSTREAM_BAND = 0.01  # share of the node's CPU; smaller changes are not written
CALM_BAND = 0.05  # the same for growth: 1 % of a small node is within the noise

QUOTA_SCOPE = "quota"
QUOTA_REASON = (
    "best-effort pods share the CPU time that the threshold leaves them beside all others: "
    "down at once, up by a tenth of the node's CPU per round"
)


@dataclass(frozen=True, slots=True)
class QuotaPace:
    """Limits for changes of a node's quota. Pure."""

    capacity: int  # cores of the node
    period: int  # us
    growth_band: float = CALM_BAND

    def quota(self, left: int) -> int:
        """Return so many milli-cores as a quota."""
        return max(left * self.period // 1000, MIN_QUOTA)

    def next(self, allowance: Allowance, current: int) -> int:
        """Return the next quota: the current one where it may stay."""
        least, most = self.quota(allowance.least), self.quota(allowance.most)
        if current == NO_LIMIT:  # however small it is: Koordinator leaves BE unlimited then
            return most
        if current > most:
            return most if self._matters(current - most, most, UPSTREAM_BAND) else current
        if current < least and self._matters(least - current, least, self.growth_band):
            return min(least, current + int(self._whole * STEP))
        return current

    @property
    def _whole(self) -> int:
        return self.capacity * self.period

    def _matters(self, change: int, wanted: int, band: float) -> bool:
        return wanted == MIN_QUOTA or change >= self._whole * band


class QuotaPolicy:
    """Keeps the claim in force: its value is the present quota, in dry-run, too."""

    fast_samples = True

    def __init__(self, plugin: ExtensionPlugin, growth_band: float) -> None:
        self._plugin = plugin
        self._band = growth_band
        self._pace: QuotaPace | None = None
        self._claim: Claim | None = None

    async def round(self, evidence: Evidence, seen: NodeInputs) -> float | None:
        """Apply the evidence of a round."""
        group = best_effort_group(self._plugin.kernel.layout).place
        quota, period = await self._plugin.kernel.read_many(
            [(resources.CPU_QUOTA, group), (resources.CPU_PERIOD, group)]
        )
        if quota is None or period is None:
            return None
        self._pace = QuotaPace(seen.cores, period.value, self._band)
        return await self._follow(evidence, self._pace, quota.value)

    def must_shrink(self, allowance: Allowance) -> bool:
        """Whether fast samples require less than is in force now."""
        pace, claim = self._pace, self._claim
        return (
            pace is not None
            and claim is not None
            and pace.next(allowance, claim.value) < claim.value
        )

    async def on_fast_sample(self, evidence: Evidence) -> float | None:
        """Apply the evidence of fast samples."""
        pace, claim = self._pace, self._claim
        if pace is None or claim is None or not self.must_shrink(evidence.allowance):
            return None
        return await self._follow(evidence, pace, claim.value)

    async def end(self) -> None:
        """Withdraw all claims of the policy."""
        self._pace = self._claim = None
        await self._plugin.withdraw_all(scope=QUOTA_SCOPE)

    async def _follow(self, evidence: Evidence, pace: QuotaPace, found: int) -> float | None:
        claim = self._claim
        current = found if claim is None else claim.value
        wanted = pace.next(evidence.allowance, current)
        if claim is None or wanted != claim.value:
            claim = Claim(
                target=best_effort_group(self._plugin.kernel.layout),
                resource=resources.CPU_QUOTA,
                value=wanted,
                reason=QUOTA_REASON,
                inputs=evidence.inputs(),
            )
        [outcome] = await self._plugin.claim_all([claim], scope=QUOTA_SCOPE)
        self._claim = claim if outcome.holds else None
        return wanted / pace.period if outcome.holds else None


IDLE_SCOPE = "idle"
IDLE_REASON = "best-effort pods run as idle tasks do: only when nothing else wants the CPU"


class IdlePolicy:
    """Sets cpu.idle on the groups of best-effort pods.

    Not on the group above them: the kubelet renews its weight, which an idle group rejects.
    """

    fast_samples = False

    def __init__(self, plugin: ExtensionPlugin) -> None:
        self._plugin = plugin
        self._is_logged = False

    async def possible(self) -> bool:
        """Whether this kernel has cpu.idle; a missing one is logged once."""
        kernel = self._plugin.kernel
        has = await kernel.supports(resources.CPU_IDLE, best_effort_group(kernel.layout).place)
        if not has and not self._is_logged:
            self._is_logged = True
            self._plugin.log.warning(
                "cpu_idle.unsupported", needs=resources.CPU_IDLE.needs, instead="cpuset"
            )
        return has

    async def round(self, evidence: Evidence, seen: NodeInputs) -> float | None:
        """Claim cpu.idle for all present best-effort pods; no number of cores limits them."""
        places = await find_best_effort_groups(self._plugin.kernel, seen.pods)
        claims = (
            Claim(target=pod, resource=resources.CPU_IDLE, value=1, reason=IDLE_REASON)
            for pod in places.pods
        )
        await self._plugin.claim_all(claims, scope=IDLE_SCOPE)
        return None

    def must_shrink(self, allowance: Allowance) -> bool:
        """Return False: the kernel itself is faster than fast samples."""
        return False

    async def on_fast_sample(self, evidence: Evidence) -> float | None:
        """Do nothing: the kernel itself is faster."""
        return None

    async def end(self) -> None:
        """Withdraw all claims of the policy."""
        await self._plugin.withdraw_all(scope=IDLE_SCOPE)
