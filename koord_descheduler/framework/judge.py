"""Deschedule plugins whose judgement is a function of the cluster, and nothing else."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence

from koord.cluster.facts import ClusterNode
from koord.cluster.view import View
from koord_descheduler.framework.evictions import Choice, Evictions
from koord_descheduler.framework.handle import Handle
from koord_descheduler.framework.interfaces import DeschedulePlugin


class JudgePlugin(DeschedulePlugin):
    """Names the pods that should leave, and why; filters, limits and evictions are done for it."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    @abstractmethod
    def judge(self, view: View, rows: Sequence[int], now: float) -> Iterator[Choice]:
        """Yield the pods that should leave these rows of the view, in the order of importance.

        It runs in a worker thread, so it must change nothing; once a limit of evictions is reached
        it is not resumed. now is in Unix seconds.
        """

    async def deschedule(self, nodes: Sequence[ClusterNode]) -> None:
        services = self._handle.services
        view, now = services.cluster.view(), services.clock.wall()
        rows = [row for node in nodes if (row := view.row(node.name)) is not None]
        with Evictions(self._handle, self.name) as evictions:
            await evictions.evict_all(iter(self.judge(view, rows, now)))
