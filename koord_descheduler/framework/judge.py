"""Deschedule plugins whose judgement is a function of the cluster, and nothing else."""

import asyncio
from abc import abstractmethod
from collections.abc import Iterable, Sequence

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
    def judge(self, view: View, rows: Sequence[int], now: float) -> Iterable[Choice]:
        """Return the pods that should leave these rows of the view, in the order of importance.

        Called in a worker thread: it changes nothing. now is in Unix seconds.
        """

    async def deschedule(self, nodes: Sequence[ClusterNode]) -> None:
        services = self._handle.services
        view, now = services.cluster.view(), services.clock.wall()
        rows = [row for node in nodes if (row := view.row(node.name)) is not None]
        choices = await asyncio.to_thread(lambda: list(self.judge(view, rows, now)))
        with Evictions(self._handle, self.name) as evictions:
            await evictions.evict_all(choices)
