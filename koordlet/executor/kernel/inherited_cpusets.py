"""Widens cgroups that were made while the cpuset of one above was squeezed.

On cgroup v1 container runtimes copy cpuset.cpus from parent to child when they make a group. A
child without a claim would stay squeezed after its parent is not.
"""

from collections.abc import Iterable, Iterator
from functools import partial

from koord.util.logs import get_logger
from koordlet.executor.claims.claim import Key
from koordlet.executor.claims.target import Level, Target
from koordlet.executor.journal.ledger import Ledger, copied
from koordlet.executor.kernel.kernelvalues import KernelValues
from koordlet.host.errors import KernelFileError
from koordlet.host.host import Host

log = get_logger("koordlet.executor")


class InheritedCpusets:
    """Finds and widens them when a group is restored. For the thread of the writer."""

    def __init__(self, host: Host, values: KernelValues, ledger: Ledger) -> None:
        self._host = host
        self._values = values
        self._ledger = ledger

    def widen(self, keys: Iterable[Key]) -> None:
        """Give those below what the groups of these values have now, where children copy them.

        The records of the groups must still be there: they hold what may have been copied.
        """
        for key in filter(self._values.is_copied, keys):
            record = self._ledger.get(key)
            if record is not None and (inherited := copied(record)):
                self._widen_below(key, inherited)

    def _widen_below(self, key: Key, inherited: frozenset[str]) -> None:
        try:
            wanted = self._values.read(key).text
        except KernelFileError:
            return  # it has ended, and all below it
        for child in self._below(key):
            try:
                found = self._values.read(child)
                if found.text in inherited and found.text != wanted:
                    self._values.write(child, found.inode, wanted)
            except KernelFileError as err:
                log.warning("cpuset.not_widened", cgroup=child.target.place, error=str(err))
            self._values.forget(child)

    def _below(self, key: Key) -> Iterator[Key]:
        """The same value of the groups below that are not ours, parents first."""
        below = partial(self._host.groups_below, key.resource)
        level = [key.target.place]
        while level:
            level = [child for group in level for child in below(group)]
            found = [Key(Target(Level.CONTAINER, group), key.resource) for group in level]
            unclaimed = [child for child in found if self._ledger.get(child) is None]
            yield from unclaimed
            level = [child.target.place for child in unclaimed]
