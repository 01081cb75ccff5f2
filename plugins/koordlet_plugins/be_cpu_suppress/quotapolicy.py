"""Policy cfsQuota: one CPU quota on the group of all best-effort pods.

Source: Koordinator, pkg/koordlet/qosmanager/plugins/cpusuppress: adjustByCfsQuota.
"""

from dataclasses import dataclass

from koordlet.plugin import Claim, ExtensionPlugin, resources
from koordlet_plugins.be_cpu_suppress.evidence import STEP, Evidence, Room
from koordlet_plugins.be_cpu_suppress.policy import NodeFindings, best_effort_group

NO_LIMIT = -1
MIN_QUOTA = 2000  # us per period; a change to it is written, however small
UPSTREAM_BAND = 0.01  # share of the node's CPU; smaller changes are not written
CALM_BAND = 0.05  # the same for growth: 1 % of a small node is within the noise

SCOPE = "quota"
REASON = (
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

    def next(self, room: Room, current: int) -> int:
        """Return the next quota: the current one where it may stay."""
        least, most = self.quota(room.least), self.quota(room.most)
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

    looks = True

    def __init__(self, plugin: ExtensionPlugin, growth_band: float) -> None:
        self._plugin = plugin
        self._band = growth_band
        self._pace: QuotaPace | None = None
        self._claim: Claim | None = None

    async def round(self, evidence: Evidence, seen: NodeFindings) -> float | None:
        """As Policy.round."""
        group = best_effort_group(self._plugin.kernel.layout).place
        quota, period = await self._plugin.kernel.read_many(
            [(resources.CPU_QUOTA, group), (resources.CPU_PERIOD, group)]
        )
        if quota is None or period is None:
            return None
        self._pace = QuotaPace(seen.cores, period.value, self._band)
        return await self._follow(evidence, self._pace, quota.value)

    def must_give_way(self, room: Room) -> bool:
        """As Policy.must_give_way."""
        pace, claim = self._pace, self._claim
        return pace is not None and claim is not None and pace.next(room, claim.value) < claim.value

    async def look(self, evidence: Evidence) -> float | None:
        """As Policy.look."""
        pace, claim = self._pace, self._claim
        if pace is None or claim is None or not self.must_give_way(evidence.room):
            return None
        return await self._follow(evidence, pace, claim.value)

    async def end(self) -> None:
        """As Policy.end."""
        self._pace = self._claim = None
        await self._plugin.withdraw_all(scope=SCOPE)

    async def _follow(self, evidence: Evidence, pace: QuotaPace, found: int) -> float | None:
        claim = self._claim
        current = found if claim is None else claim.value
        wanted = pace.next(evidence.room, current)
        if claim is None or wanted != claim.value:
            claim = Claim(
                target=best_effort_group(self._plugin.kernel.layout),
                resource=resources.CPU_QUOTA,
                value=wanted,
                reason=REASON,
                inputs=evidence.inputs(),
            )
        [outcome] = await self._plugin.claim_all([claim], scope=SCOPE)
        self._claim = claim if outcome.holds else None
        return wanted / pace.period if outcome.holds else None
