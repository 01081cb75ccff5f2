"""The claims for burst budgets: of containers, and of the pods around them."""

from collections.abc import Iterable, Iterator, Sequence

from koordlet.plugin import Claim, Target, resources
from koordlet.plugin.claims import ClaimOutcome, ClaimState
from koordlet_plugins.cpu_burst.plan import PodPlan

REASON = "CPU time that it may save up while it is below its limit, by cpuBurstPercent of the limit"
POD_REASON = "the burst budgets of its containers together"
_REFUSED = (ClaimState.FAILED, ClaimState.UNSUPPORTED)


class Budgets:
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
                yield plan.target, us, POD_REASON
            for target, us in budgets:
                yield target, us, REASON
