"""The claims of CPU burst: burst budgets, and quota above the limit."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from koordlet.plugin import Claim, Target, resources
from koordlet.plugin.kernel import ClaimOutcome, ClaimState, Part
from koordlet_plugins.cpu_burst.plan import ContainerPlan, PodPlan
from koordlet_plugins.cpu_burst.rules import Operation, ceiling, next_quota

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
