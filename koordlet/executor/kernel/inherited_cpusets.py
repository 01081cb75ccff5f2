"""Widens cgroups that were made while the cpuset of one above was squeezed.

On cgroup v1 container runtimes copy cpuset.cpus from parent to child when they make a group. A
child without a claim would stay squeezed after its parent is not.
"""

from collections.abc import Iterable, Iterator

from koord.util.logs import get_logger
from koordlet.executor.claims.claim import Key
from koordlet.executor.claims.target import Level, Target
from koordlet.executor.journal.ledger import Ledger, copied
from koordlet.executor.kernel.kernelvalues import KernelValues
from koordlet.host.cgroups.cgroupfs import subgroups
from koordlet.host.errors import KernelFileError
from koordlet.host.host import Host
from koordlet.host.resources import CPUSET_CPUS_WANTED

log = get_logger("koordlet.executor")


class InheritedCpusets:
    """Finds and widens them when a group is restored. For the thread of the writer."""

    def __init__(self, host: Host, values: KernelValues, ledger: Ledger) -> None:
        self._host = host
        self._values = values
        self._ledger = ledger

    def widen(self, keys: Iterable[Key]) -> None:
        """Give those below what the groups of these cpusets have now.

        The records of the groups must still be there: they hold what may have been copied.
        """
        for key in keys:
            record = self._ledger.get(key)
            if record is not None and (inherited := copied(record)):
                self._widen_below(key, inherited)

    def _widen_below(self, key: Key, inherited: frozenset[str]) -> None:
        try:
            wanted = self._values.read(key).text
        except KernelFileError:
            return  # it has ended, and all below it
        for child in self._below(key.target.place):
            try:
                found = self._values.read(child)
                if found.text in inherited and found.text != wanted:
                    self._values.write(child, found.inode, wanted)
            except KernelFileError as err:
                log.warning("cpuset.not_widened", cgroup=child.target.place, error=str(err))
            self._values.forget(child)

    def _below(self, place: str) -> Iterator[Key]:
        """The cpusets below a group that are not ours, parents first."""
        root = self._host.cgroups.hierarchy("cpuset", self._host.version(CPUSET_CPUS_WANTED))
        level = [place]
        while level:
            level = [f"{group}/{name}" for group in level for name in subgroups(root / group)]
            keys = [Key(Target(Level.CONTAINER, group), CPUSET_CPUS_WANTED) for group in level]
            unclaimed = [key for key in keys if self._ledger.get(key) is None]
            yield from unclaimed
            level = [key.target.place for key in unclaimed]
