"""Policy cfsQuota: one CPU quota on the group of all best-effort pods."""

from koordlet.plugin import Claim, ExtensionPlugin, resources
from koordlet_plugins.be_cpu_suppress.budget import Room
from koordlet_plugins.be_cpu_suppress.evidence import Evidence
from koordlet_plugins.be_cpu_suppress.places import best_effort_group
from koordlet_plugins.be_cpu_suppress.policy import Seen
from koordlet_plugins.be_cpu_suppress.quota import QuotaPace

SCOPE = "quota"
REASON = (
    "best-effort pods share the CPU time that the threshold leaves them beside all others: "
    "down at once, up by a tenth of the node's CPU per round"
)


class QuotaPolicy:
    """Remembers the claim that holds, which tells what the quota is now, in dry-run too."""

    looks = True

    def __init__(self, plugin: ExtensionPlugin, growth_band: float) -> None:
        self._plugin = plugin
        self._band = growth_band
        self._pace: QuotaPace | None = None
        self._claim: Claim | None = None

    async def round(self, evidence: Evidence, seen: Seen) -> float | None:
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
