"""How much CPU is left for best-effort pods. Pure.

Source: Koordinator, pkg/koordlet/qosmanager/plugins/cpusuppress: calculateBESuppressCPU.
"""

from dataclasses import dataclass

from koordlet.plugin.rules import UsageSplit


@dataclass(frozen=True, slots=True)
class Budget:
    """What the node has, and which share of it all pods and the system may use together."""

    capacity: int  # milli-cores
    threshold: int  # percent of the capacity
    floor: int | None = None  # percent that best-effort pods always keep; None: no such floor

    def left(self, used: UsageSplit) -> int:
        """Return the milli-cores left by all others; negative when they use more than they may.

        Each part is cut to whole milli-cores, as Koordinator does.
        """
        left = self.capacity * self.threshold // 100 - sum(int(part * 1000) for part in used)
        if self.floor is None:
            return left
        return max(left, self.capacity * self.floor // 100)


@dataclass(frozen=True, slots=True)
class Room:
    """Milli-cores for best-effort pods. With more than `most` they have to give way at once, with
    less than `least` they may grow, and in between they stay as they are.
    """

    least: int
    most: int
