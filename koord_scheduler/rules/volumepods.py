"""The pods of a view that have claims or disks, by node and by claim."""

from collections.abc import Iterable, Mapping

from koord.cluster.columns import FrozenColumn
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View

_NONE: Mapping[int, int] = {}


class VolumePods:
    """Follows views, of what-ifs too, each at the cost of its differences to the one before.

    Belongs to one thread. Most pods have neither claims nor disks, and cost nothing here.
    """

    def __init__(self) -> None:
        self._column: FrozenColumn | None = None
        self._pods: dict[int, tuple[ClusterPod, ...]] = {}  # by row
        self._users: dict[str, dict[int, int]] = {}  # claim -> row -> how many pods there

    @property
    def rows(self) -> Mapping[int, tuple[ClusterPod, ...]]:
        """The pods with claims or disks, but finished ones, of each row that has some."""
        return self._pods

    def users(self, claim: str) -> Mapping[int, int]:
        """Rows with pods that use a claim, namespace/name, and how many do."""
        return self._users.get(claim, _NONE)

    def follow(self, view: View) -> list[int]:
        """Take over the pods of a view; return the rows whose pods are others, or that went."""
        column = view.volume_pods
        if column is self._column:
            return []
        rows = column.other_rows(self._column)
        for row in rows:
            self._count(row, self._pods.pop(row, ()), -1)
            found: tuple[ClusterPod, ...] = column[row] if row < len(column) else ()
            if found:
                self._pods[row] = found
                self._count(row, found, 1)
        self._column = column
        return rows

    def _count(self, row: int, pods: Iterable[ClusterPod], times: int) -> None:
        for pod in pods:
            for name in pod.claims:
                key = f"{pod.namespace}/{name}"
                rows = self._users.setdefault(key, {})
                rows[row] = rows.get(row, 0) + times
                if not rows[row]:
                    del rows[row]
                    if not rows:
                        del self._users[key]
