"""The CPUs of best-effort pods: which they may use at all, how many of them, and which. Pure.

Source: Koordinator, pkg/koordlet/qosmanager/plugins/cpusuppress: adjustByCPUSet.
"""

import math
from collections.abc import Iterable, Set
from dataclasses import dataclass

from koord.api.machine import Cpu, CpuTopology
from koord.api.pod import Pod
from koordlet.plugin.rules import shared_cpus
from koordlet_plugins.be_cpu_suppress.budget import Room
from koordlet_plugins.be_cpu_suppress.picking import pick
from koordlet_plugins.be_cpu_suppress.quota import STEP

MIN_CPUS = 2


@dataclass(frozen=True, slots=True)
class BestEffortCpus:
    """The CPUs that best-effort pods may use: all but those of LSE pods and those set aside."""

    processors: int  # of the node
    borrowed: tuple[Cpu, ...]  # of LSR pods
    shared: tuple[Cpu, ...]  # the others

    @classmethod
    def of_node(
        cls, topology: CpuTopology, pods: Iterable[Pod], set_aside: Set[int]
    ) -> "BestEffortCpus":
        """Look at what the scheduler gave to pods. set_aside: reserved, and for the system only."""
        found = shared_cpus(topology.numbers, pods)
        usable = [cpu for cpu in topology.cpus if cpu.cpu in found.be - set_aside]
        return cls(
            len(topology.cpus),
            tuple(cpu for cpu in usable if cpu.cpu in found.lsr),
            tuple(cpu for cpu in usable if cpu.cpu not in found.lsr),
        )

    @property
    def pool(self) -> frozenset[int]:
        """The numbers of all of them."""
        return frozenset(cpu.cpu for cpu in (*self.borrowed, *self.shared))

    @property
    def whole_node(self) -> bool:
        """Whether these are all CPUs of the node."""
        return len(self.borrowed) + len(self.shared) == self.processors

    def count(self, room: Room, current: int) -> int:
        """Return how many CPUs to have from now on, when there are `current` now."""
        wanted = min(max(current, _cpus(room.least)), _cpus(room.most))
        return min(wanted, current + math.ceil(self.processors * STEP))

    def choose(self, count: int) -> frozenset[int]:
        """Return so many CPUs, or all when there are fewer: of both kinds in proportion."""
        total = len(self.borrowed) + len(self.shared)
        if not total:
            return frozenset()
        count = min(count, total)
        borrowed = count * len(self.borrowed) // total
        return frozenset(pick(borrowed, self.borrowed) + pick(count - borrowed, self.shared))


def _cpus(left: int) -> int:
    """CPUs for so many milli-cores."""
    return max(math.ceil(left / 1000), MIN_CPUS)
