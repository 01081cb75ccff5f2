"""The CPU quota of all best-effort pods together. Pure.

Source: Koordinator, pkg/koordlet/qosmanager/plugins/cpusuppress: adjustByCfsQuota.
"""

from dataclasses import dataclass

from koordlet_plugins.be_cpu_suppress.budget import Room

NO_LIMIT = -1
MIN_QUOTA = 2000  # us per period; a smaller change to it is not left alone
STEP = 0.1  # share of the node's CPU by which best-effort pods may grow in one round
UPSTREAM_BAND = 0.01  # share of the node's CPU; smaller changes are left alone
CALM_BAND = 0.05  # the same for growth: 1 % of a small node is within the noise


@dataclass(frozen=True, slots=True)
class QuotaPace:
    """How the quota of a node may change."""

    capacity: int  # cores of the node
    period: int  # us
    growth_band: float = CALM_BAND

    def quota(self, left: int) -> int:
        """Return so many milli-cores as a quota."""
        return max(left * self.period // 1000, MIN_QUOTA)

    def next(self, room: Room, current: int) -> int:
        """Return the quota to have from now on: the current one where it may stay."""
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
