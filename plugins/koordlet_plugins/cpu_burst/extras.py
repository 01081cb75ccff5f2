"""CPU quota of containers above that of their limits, in us, and the claims for it. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from koordlet.plugin import Claim, Target, resources
from koordlet.plugin.claims import ClaimOutcome, ClaimState, Part
from koordlet_plugins.cpu_burst.plan import ContainerPlan, PodPlan
from koordlet_plugins.cpu_burst.quota import Operation, ceiling, next_quota

REASONS = {
    Operation.UP: "it was throttled while the share pool was idle: quota x 1.2, up to its ceiling",
    Operation.DOWN: "share pool overloaded or burst tokens spent: quota x 0.8, down to its limit",
    Operation.REMAIN: "not throttled, share pool not overloaded: same quota, up to its ceiling",
}
POD_REASON = "what its containers have above their limits together"


@dataclass(slots=True)
class Extra:
    """The extra quota of one container, and the claim for it."""

    us: int
    claim: Claim
    base: int  # the quota that it comes on top of
    in_force_us: int = 0  # the part that is in the kernel's quota now
    counts_us: int = 0  # the same, or in dry-run the part that would be


class Extras:
    """The extras of all containers, by cgroup."""

    def __init__(self) -> None:
        self._held: dict[str, Extra] = {}
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
            extras = [extra for extra in held if extra]
            if extras and plan.base > 0:
                us = sum(extra.us for extra in extras)
                yield self._pod_claim(plan, us, before.get(plan.target.place))
            for extra in extras:
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
            claim = _claim(container.target, us, container.base, REASONS[change], inputs)
            before = (extra.in_force_us, extra.counts_us) if extra else (0, 0)
            self._held[place] = Extra(us, claim, base, *before)

    def _pod_claim(self, plan: PodPlan, us: int, before: Claim | None) -> Claim:
        if before is None or (before.value, before.original) != (us, plan.base):
            before = _claim(plan.target, us, plan.base, POD_REASON, {})
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
