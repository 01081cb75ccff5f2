"""The plans of containers: CPU quota, burst budget, tokens; the load of shared CPUs, and claims."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from koord.api.annotations import json_annotation
from koord.api.nodeslo import CPU_BURST
from koord.api.pod import Container, Pod, pod_limit
from koord.api.qos import QoSClass
from koord.api.qosstrategy import CPUBurst, CPUBurstPolicy
from koord.api.quantity import Quantity
from koordlet.plugin import Claim, ContainerMeta, PodMeta, Target, resources
from koordlet.plugin.kernel import ClaimOutcome, ClaimState, Part
from koordlet.plugin.pods import containers_of, milli_to_quota, scaled_quota

COOLING = 0.9  # share of the threshold from which on quotas do not grow any more


class PoolState(Enum):
    """Load of the share pool; it allows quotas to grow, to stay, or only to shrink."""

    IDLE = "idle"
    COOLING = "cooling"
    OVERLOAD = "overload"
    UNKNOWN = "unknown"  # no recent measurement


class SharePool(NamedTuple):
    """CPUs that no pod owns, and their usage; in cores."""

    total: float
    used: float

    @property
    def ratio(self) -> float:
        """Used share; a pool without CPUs is full."""
        return self.used / self.total if self.total > 0 else 1.0

    def state(self, threshold_percent: int) -> PoolState:
        threshold = threshold_percent / 100
        if self.ratio >= threshold:
            return PoolState.OVERLOAD
        return PoolState.COOLING if self.ratio >= threshold * COOLING else PoolState.IDLE


def share_pool(
    cpus: float, node_used: float, *, reserved: Iterable[float], elsewhere: Iterable[float]
) -> SharePool:
    """Return the shared CPUs of a node, and their usage.

    reserved: the requests of pods with CPUs of their own. elsewhere: the usage of these and of
    best-effort pods. All other usage, for example the system's, counts as used in the pool.
    """
    return SharePool(cpus - sum(reserved), node_used - sum(elsewhere))


GROW, SHRINK = 1.2, 0.8
_BURST_BUDGET = (CPUBurstPolicy.AUTO, CPUBurstPolicy.CPU_BURST_ONLY)
_QUOTA_BURST = (CPUBurstPolicy.AUTO, CPUBurstPolicy.CFS_QUOTA_BURST_ONLY)


class Operation(Enum):
    """A change of a container's quota."""

    UP = "up"
    DOWN = "down"
    REMAIN = "remain"
    RESET = "reset"


def uses_budget(settings: CPUBurst) -> bool:
    """Whether containers get a burst budget."""
    return settings.policy in _BURST_BUDGET


def uses_quota(settings: CPUBurst) -> bool:
    """Whether quotas of throttled containers grow."""
    return settings.policy in _QUOTA_BURST


def burst_budget(limit_milli: int, percent: int) -> int:
    """Return the unused CPU time that a container may save up and then use at once; 0: none."""
    return limit_milli * percent if limit_milli > 0 else 0  # 1/1000 core x 1/100 x 100,000 us


def operation(settings: CPUBurst, *, allowed: bool, throttled: float | None) -> Operation:
    """Return the change that a container itself needs.

    allowed: it may be above its limit at all. throttled: share of the latest periods in which it
    was throttled; None: not known.
    """
    if not uses_quota(settings):
        return Operation.RESET
    if not allowed:
        return Operation.DOWN
    return Operation.UP if throttled else Operation.REMAIN


def permitted(wanted: Operation, pool: PoolState) -> Operation:
    """Return the change that the load of the share pool permits."""
    if pool is PoolState.OVERLOAD and wanted in (Operation.UP, Operation.REMAIN):
        return Operation.DOWN
    if pool in (PoolState.COOLING, PoolState.UNKNOWN) and wanted is Operation.UP:
        return Operation.REMAIN
    return wanted


def ceiling(base: int, percent: int) -> int:
    """Return the highest quota of a container with this base, the quota of its limit."""
    return base * percent // 100 if percent > 100 else base


def next_quota(change: Operation, current: int, base: int, percent: int) -> int:
    """Return the quota that follows current: between base and the ceiling."""
    wanted = {
        Operation.UP: int(current * GROW),
        Operation.DOWN: int(current * SHRINK),
        Operation.REMAIN: current,
        Operation.RESET: base,
    }[change]
    return max(base, min(wanted, ceiling(base, percent)))


QUIET = 60.0  # percent of the limit below which a container saves
FIRST_SHARE = 0.25  # of its capacity that a bucket holds at first: the average of Koordinator's


class BurstTokens:
    """The tokens of one container, in percent of its limit times seconds.

    Above its limit a container spends tokens for the excess, below QUIET it saves the unused part.
    A bucket goes down to minus its capacity. Times are monotonic seconds.
    """

    def __init__(self, capacity: float, now: float) -> None:
        self.capacity = capacity
        self.tokens = capacity * FIRST_SHARE
        self.updated = now

    def allow(self, now: float, usage_percent: float) -> bool:
        """Account for the time since the last call; return whether there are tokens left."""
        seconds, self.updated = now - self.updated, now
        if usage_percent >= 100 or usage_percent < QUIET:
            self.tokens += (100 - usage_percent) * seconds
            self.tokens = max(-self.capacity, min(self.tokens, self.capacity))
        return self.tokens > 0


class BurstLimits:
    """Limits the time that containers may stay above their limits, by container id."""

    def __init__(self) -> None:
        self._buckets: dict[str, tuple[BurstTokens, float]] = {}  # with its lifetime in seconds

    def allow(self, container: str, settings: CPUBurst, now: float, usage_percent: float) -> bool:
        """Return whether a container may have more than its limit now."""
        period, percent = settings.cfs_quota_burst_period_seconds, settings.cfs_quota_burst_percent
        if period < 0:
            return True
        if percent < 100:
            return False
        capacity = float(period * (percent - 100))
        bucket, _ = self._buckets.get(container, (None, 0.0))
        if bucket is None or bucket.capacity != capacity:
            bucket = BurstTokens(capacity, now)
        self._buckets[container] = (bucket, 2.0 * period)
        return bucket.allow(now, usage_percent)

    def recycle(self, now: float) -> None:
        """Forget containers without a call of allow for twice their period."""
        self._buckets = {
            container: (bucket, lifetime)
            for container, (bucket, lifetime) in self._buckets.items()
            if now - bucket.updated <= lifetime
        }


ANNOTATION = "koordinator.sh/cpuBurst"
_OWN_CPUS = (QoSClass.LSE, QoSClass.LSR)
_EXEMPT = (*_OWN_CPUS, QoSClass.BE)
_NODE_WIDE = "sharePoolThresholdPercent"  # no pod may set it for itself


class NodeSettings(NamedTuple):
    """Settings for all pods."""

    burst: CPUBurst
    budget_within_quota: bool  # the kernel takes no burst budget above the quota (mainline)
    normalization: float  # divisor of quotas; 1.0: none


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """A container with a CPU limit."""

    target: Target
    meta: ContainerMeta
    running: bool
    limit_milli: int  # thousandths of a core
    base: int  # quota of its limit, in us
    least: int  # the same, divided by the node's normalization ratio
    budget: int  # burst budget in us; 0: none

    def usage_percent(self, cores: float | None) -> float:
        """Usage in percent of the limit; 100 when it is not known."""
        return 100.0 if cores is None else cores * 100_000 / self.limit_milli


@dataclass(frozen=True, slots=True)
class PodPlan:
    """A pod that may burst. settings are the node's with those of its annotation on top."""

    pod: PodMeta
    settings: CPUBurst
    target: Target
    base: int  # quota of its limit, in us; -1: it has none
    containers: tuple[ContainerPlan, ...]


def may_burst(pod: Pod) -> bool:
    """Whether a pod is latency-sensitive by its label, or has none, and shares its CPUs."""
    return pod.active and pod.raw_qos_class not in _EXEMPT


def has_own_cpus(pod: Pod) -> bool:
    """Whether a pod's CPU request is taken out of the share pool."""
    return pod.active and pod.raw_qos_class in _OWN_CPUS


def outside_share_pool(pod: Pod) -> bool:
    """Whether a pod's usage does not count as usage of the share pool."""
    return pod.raw_qos_class in _EXEMPT


def own_settings(pod: Pod) -> Mapping[str, object]:
    """Return the settings in a pod's annotation, as canonical JSON; empty without one.

    Raises:
        InvalidObject: its annotation is malformed, or a value is out of its limits.
    """
    own = json_annotation(pod, ANNOTATION, CPU_BURST)
    return {k: v for k, v in own.items() if k != _NODE_WIDE} if isinstance(own, dict) else {}


def plan_for(pod: PodMeta, own: Mapping[str, object], node: NodeSettings) -> PodPlan:
    """Return the plan of a pod; own: see own_settings."""
    settings = CPU_BURST.load(CPU_BURST.overlay(CPU_BURST.dump(node.burst), own))
    limit = pod_limit(pod.pod, "cpu")
    return PodPlan(
        pod=pod,
        settings=settings,
        target=Target.of_pod(pod),
        base=-1 if limit is None else milli_to_quota(limit.milli),
        containers=tuple(_containers(pod, settings, node)),
    )


def cpu_limit_milli(container: Container) -> int:
    """Return a container's CPU limit in thousandths of a core, 0 when it has none."""
    text = container.limits.get("cpu")
    return max(Quantity.parse(text).milli, 0) if text else 0


def _containers(pod: PodMeta, settings: CPUBurst, node: NodeSettings) -> Iterator[ContainerPlan]:
    limits = {one.name: cpu_limit_milli(one) for one in pod.pod.containers}
    running = {status.container_id for status in pod.pod.statuses if status.running}
    percent = settings.cpu_burst_percent if uses_budget(settings) else 0
    for meta in containers_of(pod):
        limit_milli = limits.get(meta.name, 0)
        if limit_milli > 0:
            base = milli_to_quota(limit_milli)
            least = scaled_quota(base, node.normalization)
            budget = burst_budget(limit_milli, percent)
            yield ContainerPlan(
                target=Target.of_container(pod, meta),
                meta=meta,
                running=meta.container_id in running,
                limit_milli=limit_milli,
                base=base,
                least=least,
                budget=min(budget, least) if node.budget_within_quota else budget,
            )


BUDGET_REASON = (
    "CPU time that it may save up while it is below its limit, by cpuBurstPercent of the limit"
)
BUDGET_POD_REASON = "the burst budgets of its containers together"
_REFUSED = (ClaimState.FAILED, ClaimState.UNSUPPORTED)


class BurstBudgets:
    """Keeps the claims, so that an unchanged budget costs nothing, and their outcomes."""

    def __init__(self) -> None:
        self._plans: Sequence[PodPlan] = ()
        self._claims: list[Claim] = []
        self._refused: set[str] = set()
        self.in_force: dict[str, int] = {}  # us by cgroup; or would be

    def claims(self, plans: Sequence[PodPlan]) -> list[Claim]:
        """Return the claims; a pod's budget is the sum of its containers'."""
        if plans != self._plans:
            self._plans = plans
            self._renew()
        return self._claims

    def learn(self, outcomes: Iterable[tuple[Claim, ClaimOutcome]]) -> None:
        """Record the outcomes of the claims."""
        outcomes = list(outcomes)
        refused = {c.target.place for c, outcome in outcomes if outcome.state in _REFUSED}
        self.in_force = {c.target.place: c.value for c, outcome in outcomes if outcome.holds}
        if refused != self._refused:
            self._refused = refused
            self._renew()

    def _renew(self) -> None:
        before = {claim.target.place: claim for claim in self._claims}
        self._claims = []
        for target, us, reason in self._wanted():
            claim = before.get(target.place)
            if claim is None or claim.value != us:
                claim = Claim(target=target, resource=resources.CPU_BURST, value=us, reason=reason)
            self._claims.append(claim)

    def _wanted(self) -> Iterator[tuple[Target, int, str]]:
        for plan in self._plans:
            budgets = [(one.target, one.budget) for one in plan.containers if one.budget > 0]
            us = sum(us for target, us in budgets if target.place not in self._refused)
            if us > 0:
                yield plan.target, us, BUDGET_POD_REASON
            for target, us in budgets:
                yield target, us, BUDGET_REASON


QUOTA_REASONS = {
    Operation.UP: "it was throttled while the share pool was idle: quota x 1.2, up to its ceiling",
    Operation.DOWN: "share pool overloaded or burst tokens spent: quota x 0.8, down to its limit",
    Operation.REMAIN: "not throttled, share pool not overloaded: same quota, up to its ceiling",
}
QUOTA_POD_REASON = "what its containers have above their limits together"


@dataclass(slots=True)
class ExtraQuota:
    """The extra quota of one container, and the claim for it."""

    us: int
    claim: Claim
    base: int  # the quota that it comes on top of
    in_force_us: int = 0  # the part that is in the kernel's quota now
    counts_us: int = 0  # the same, or in dry-run the part that would be


class ExtraQuotas:
    """The extras of all containers, by cgroup."""

    def __init__(self) -> None:
        self._held: dict[str, ExtraQuota] = {}
        self._pods: dict[str, Claim] = {}

    def holds(self, container: ContainerPlan) -> bool:
        """Whether a container has extra quota."""
        return container.target.place in self._held

    def keep(self, places: Iterable[str]) -> None:
        """Forget all containers but these."""
        self._held = {place: self._held[place] for place in places if place in self._held}

    def remain(self, container: ContainerPlan, percent: int) -> None:
        """Keep a container's extra, as far as its limit and its ceiling still allow."""
        extra = self._held[container.target.place]
        most = ceiling(container.base, percent) - container.base
        if extra.us > most or extra.claim.original != container.base:
            self._set(container, min(extra.us, most), extra.base, Operation.REMAIN, {})

    def move(
        self,
        container: ContainerPlan,
        change: Operation,
        quota: int,
        percent: int,
        inputs: Mapping[str, float | str],
    ) -> None:
        """Change a container's extra. quota is the kernel's now, percent that of its ceiling.

        A quota that another agent has removed, or set below that of the limit, gets no extra.
        """
        extra = self._held.get(container.target.place)
        in_force, counts = (extra.in_force_us, extra.counts_us) if extra else (0, 0)
        base = min(quota - in_force, container.base)
        is_foreign = base < container.least
        us = 0 if is_foreign else next_quota(change, base + counts, base, percent) - base
        self._set(container, us, base, change, {**inputs, "quota_us": quota, "base_us": base})

    def claims(self, plans: Iterable[PodPlan]) -> Iterator[Claim]:
        """The claims of all containers and of the pods around them."""
        before, self._pods = self._pods, {}
        for plan in plans:
            held = [self._held.get(container.target.place) for container in plan.containers]
            extra_quotas = [extra for extra in held if extra]
            if extra_quotas and plan.base > 0:
                us = sum(extra.us for extra in extra_quotas)
                yield self._pod_claim(plan, us, before.get(plan.target.place))
            for extra in extra_quotas:
                yield extra.claim

    def learn(self, claim: Claim, outcome: ClaimOutcome) -> None:
        """Record the outcome of a container's claim."""
        extra = self._held.get(claim.target.place)
        if extra is not None and extra.claim is claim:
            extra.in_force_us = extra.us if outcome.state is ClaimState.IN_FORCE else 0
            extra.counts_us = extra.us if outcome.holds else 0

    def quotas(self) -> dict[str, int]:
        """Quotas of the containers that have more than their limits, by cgroup."""
        return {place: e.base + e.us for place, e in self._held.items() if e.counts_us}

    def _set(
        self,
        container: ContainerPlan,
        us: int,
        base: int,
        change: Operation,
        inputs: Mapping[str, float | str],
    ) -> None:
        place = container.target.place
        extra = self._held.get(place)
        if us <= 0:
            self._held.pop(place, None)
        elif extra is None or extra.us != us or extra.claim.original != container.base:
            claim = _claim(container.target, us, container.base, QUOTA_REASONS[change], inputs)
            before = (extra.in_force_us, extra.counts_us) if extra else (0, 0)
            self._held[place] = ExtraQuota(us, claim, base, *before)

    def _pod_claim(self, plan: PodPlan, us: int, before: Claim | None) -> Claim:
        if before is None or (before.value, before.original) != (us, plan.base):
            before = _claim(plan.target, us, plan.base, QUOTA_POD_REASON, {})
        self._pods[plan.target.place] = before
        return before


def _claim(
    target: Target, us: int, base: int, reason: str, inputs: Mapping[str, float | str]
) -> Claim:
    return Claim(
        target=target,
        resource=resources.CPU_QUOTA,
        value=us,
        part=Part.EXTRA,
        original=base,
        reason=reason,
        inputs=inputs,
    )
