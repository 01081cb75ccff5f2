"""From measurements to the room that best-effort pods have: fast attack, slow release. Pure."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from koordlet.plugin.rules import UsageSplit
from koordlet_plugins.be_cpu_suppress.usage import Frame, Looks, NodeBudget, RoundUsage

CALM_ROUNDS = 3  # a spike shorter than a round shows in two of them at most
STEP = 0.1  # share of the node's CPU by which best-effort pods may grow in one round


@dataclass(frozen=True, slots=True)
class Room:
    """Milli-cores for best-effort pods.

    With more than most they have to give way at once, with less than least they may grow, and in
    between they stay as they are.
    """

    least: int
    most: int


class Evidence(NamedTuple):
    """The room, and the measurements that it follows from, for people."""

    room: Room
    budget: NodeBudget
    used: UsageSplit  # cores, of all but best-effort pods
    span: str  # when they were used

    def inputs(self) -> Mapping[str, float | str]:
        """The inputs of a claim. In cores, but for the percentages."""
        inputs: dict[str, float | str] = {
            "capacity_cores": self.budget.capacity / 1000,
            "threshold_percent": self.budget.threshold,
            "pods_cores": round(self.used.pods, 3),
            "host_applications_cores": round(self.used.apps, 3),
            "system_cores": round(self.used.system, 3),
            "left_cores": self.budget.left(self.used) / 1000,
            "measured": self.span,
        }
        if self.budget.floor is not None:
            inputs["min_percent"] = self.budget.floor
        return inputs


class Judge:
    """Turns measurements into evidence; keeps the last few rounds."""

    def __init__(self) -> None:
        self.looks = Looks()
        self._rounds: deque[UsageSplit] = deque(maxlen=CALM_ROUNDS)

    def clear(self) -> None:
        """Forget everything."""
        self.looks.clear()
        self._rounds.clear()

    def after_round(self, measured: RoundUsage) -> Evidence:
        """Judge a round.

        Without looks the round alone decides, as in Koordinator. With looks, the least usage of the
        last rounds decides how far to give way, because the looks have seen whatever is urgent. The
        most of the looks decides how far to grow, because the mean of a round covers earlier time.
        """
        frame, used = measured.frame, measured.used
        self._rounds.append(used)
        recent = self.looks.recent
        left = frame.budget.left(used)
        if not recent:
            return Evidence(Room(left, left), frame.budget, used, "in the last second")
        calm = UsageSplit(
            min(past.pods for past in self._rounds),
            min(past.apps for past in self._rounds),
            used.system
            if recent[-1].outside is None
            else min(past.system for past in self._rounds),
        )
        least = min(left, *(frame.budget.left(frame.split(use)) for use in recent))
        room = Room(least, frame.budget.left(calm))
        return Evidence(room, frame.budget, used, "in the last second")

    def after_look(self, frame: Frame) -> Evidence | None:
        """Judge the looks: they can only shrink the room. None: too few looks so far."""
        recent = self.looks.recent
        if not recent:
            return None
        used = max((frame.split(use) for use in recent), key=frame.budget.left)
        most = frame.budget.left(used)
        return Evidence(Room(min(most, 0), most), frame.budget, used, "in the last fast looks")
