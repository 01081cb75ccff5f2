"""CPU usage within a few tenths of a second, from counters that are exact to the nanosecond. Pure.

Others that use more CPU show here long before they do in samples of a second. What each uses is
the least of its last looks, so that something short, which shows in two looks at most, moves
nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from koordlet.plugin import Reading
from koordlet.plugin.rules import UsageSplit
from koordlet_plugins.be_cpu_suppress.budget import Budget

LOOKS = 3


class FastUse(NamedTuple):
    """Cores used between two looks. outside None: the kernel has no exact counter for it."""

    pods: float  # by all pods that are not in the best-effort group, and host applications there
    outside: float | None  # by all that is not in kubepods


@dataclass(frozen=True, slots=True)
class Frame:
    """What the latest round knows and a fast look does not tell. In cores."""

    budget: Budget
    reserved: float  # for the system
    system: float  # its usage, where it has no exact counter
    apps_outside: float  # host applications outside of kubepods
    be_outside: float  # best-effort pods that are not in the best-effort group

    def split(self, use: FastUse) -> UsageSplit:
        """Return a fast look as a round would have measured it."""
        system = self.system
        if use.outside is not None:
            system = max(use.outside - self.apps_outside, self.reserved)
        return UsageSplit(max(use.pods - self.be_outside, 0.0), self.apps_outside, system)


class Looks:
    """The usage of the last few looks. One thread adds; any may ask."""

    def __init__(self) -> None:
        self._before: Sequence[Reading | None] = ()
        self._uses: tuple[FastUse, ...] = ()

    def add(self, counters: Sequence[Reading | None]) -> None:
        """Take the CPU time, in ns, of the best-effort group, of kubepods and perhaps of the node.

        Where one of the first two is missing, or runs backwards, it all starts anew. The very same
        readings again are none: a replay has but those that were recorded.
        """
        if list(counters) == list(self._before):
            return
        use = _use(self._before, counters)
        self._uses = () if use is None else (*self._uses, use)[-LOOKS:]
        self._before = counters

    def clear(self) -> None:
        """Forget everything."""
        self._before, self._uses = (), ()

    @property
    def recent(self) -> tuple[FastUse, ...]:
        """The last LOOKS usages, or none as long as there are fewer."""
        uses = self._uses
        return uses if len(uses) == LOOKS else ()


def _use(before: Sequence[Reading | None], now: Sequence[Reading | None]) -> FastUse | None:
    if len(before) != len(now):
        return None
    best_effort, kubepods, *node = map(_cores, before, now)
    if best_effort is None or kubepods is None:
        return None
    outside = max(node[0] - kubepods, 0.0) if node and node[0] is not None else None
    return FastUse(max(kubepods - best_effort, 0.0), outside)


def _cores(before: Reading | None, now: Reading | None) -> float | None:
    if before is None or now is None or now.at <= before.at or now.value < before.value:
        return None
    cores: float = (now.value - before.value) / (now.at - before.at) / 1e9
    return cores
