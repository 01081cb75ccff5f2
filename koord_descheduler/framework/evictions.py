"""The evictions of one round of a plugin, as far as filters and limits allow them."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import islice
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from koord.cluster.facts import ClusterNode, ClusterPod
from koord.cluster.view import View
from koord_descheduler.framework.decisions import Action, Findings
from koord_descheduler.framework.handle import Handle
from koord_descheduler.framework.interfaces import DeschedulePlugin, EvictOptions

CHUNK = 64  # pods that are looked at without a pause for the event loop
STEPS = 32  # of a plan that are made ahead
UNFIT = "the filters do not let it go now: it may fit no other node"

T = TypeVar("T")


class EvictionCandidate(NamedTuple):
    """A pod that should leave its node, and why: a sentence for people."""

    pod: ClusterPod
    why: str
    but: str = ""  # why it stays all the same; "": nothing holds it


class Evictions:
    """Evicts the pods that a plugin chooses, within filters and limits. Belongs to one round.

    Use it in a `with` statement: at the end the plugin's decisions are published, even after an
    error.
    """

    def __init__(self, handle: Handle, plugin: str) -> None:
        """plugin: its name."""
        self._handle = handle
        self._evictor = handle.evictor()
        self.findings = Findings(handle.profile, plugin)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, at: TracebackType | None
    ) -> None:
        self._handle.services.decisions.publish(self.findings)

    @property
    def over(self) -> bool:
        """Whether no further pod may be evicted in this cycle."""
        return self._evictor.total_limit_exceeded

    def over_on(self, node: str) -> bool:
        """Whether no further pod of a node may be evicted in this cycle."""
        return self.over or self._evictor.node_limit_exceeded(node)

    def may_go(self, pod: ClusterPod, why: str) -> bool:
        """Whether the filters let a pod go that should leave; if not, that is noted."""
        if not self._evictor.filter(pod):
            self.findings.pod(pod, Action.REFUSED, f"{why}, but {self._evictor.reject_reason(pod)}")
            return False
        return True

    async def those_that_may_go(self, pods: Iterable[ClusterPod], why: str) -> list[ClusterPod]:
        """Return the pods that the filters let go; of the others that is noted."""
        found = []
        for number, pod in enumerate(pods):
            if number % CHUNK == 0:
                await asyncio.sleep(0)
            if self.may_go(pod, why):
                found.append(pod)
        return found

    async def steps(self, plan: Iterator[T]) -> AsyncIterator[T]:
        """Yield the steps of a plan, which is made in a worker thread, until the round is over.

        A few at a time, so that a limit which is reached ends the planning, too.
        """
        while not self.over:
            some = await asyncio.to_thread(lambda: list(islice(plan, STEPS)))
            for step in some:
                yield step
            if len(some) < STEPS:
                return

    async def evict(self, pod: ClusterPod, why: str, candidates: tuple[str, ...] = ()) -> bool:
        """Evict a pod that may go, if it may go now; return whether that worked."""
        await asyncio.sleep(0)  # many pods in a row do not hold up the loop
        if self._limited(pod, why):
            return False
        if not self._evictor.pre_eviction_filter(pod):
            but = self._evictor.pre_eviction_reject_reason(pod) or UNFIT
            self.findings.pod(pod, Action.REFUSED, f"{why}, but {but}")
            return False
        self.findings.pod(pod, Action.EVICT, why, candidates=candidates)
        return await self._evictor.evict(pod, EvictOptions(reason=why))

    async def evict_all(self, choices: Iterator[EvictionCandidate]) -> None:
        """Evict the pods that filters and limits let go, in this order; see steps."""
        async for pod, why, but in self.steps(choices):
            if but:
                self.findings.pod(pod, Action.STAY, f"{why}, but {but}")
            elif not self._limited(pod, why) and self.may_go(pod, why):
                await self.evict(pod, why)

    def _limited(self, pod: ClusterPod, why: str) -> bool:
        """Whether a limit forbids further evictions from a pod's node; that is noted."""
        if not self.over_on(pod.node):
            return False
        limit = "of this cycle" if self.over else f"of node {pod.node}"
        self.findings.pod(
            pod, Action.REFUSED, f"{why}, but the limit of evictions {limit} is reached"
        )
        return True


class PureDeschedulePlugin(DeschedulePlugin):
    """Names the pods that should leave, and why; filters, limits and evictions are done for it."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    @abstractmethod
    def pods_to_evict(
        self, view: View, rows: Sequence[int], now: float
    ) -> Iterator[EvictionCandidate]:
        """Yield the pods that should leave these rows of the view, in the order of importance.

        It runs in a worker thread, so it must change nothing; once a limit of evictions is reached
        it is not resumed. now is in Unix seconds.
        """

    async def deschedule(self, nodes: Sequence[ClusterNode]) -> None:
        services = self._handle.services
        view, now = services.cluster.view(), services.clock.wall()
        rows = [row for node in nodes if (row := view.row(node.name)) is not None]
        with Evictions(self._handle, self.name) as evictions:
            await evictions.evict_all(iter(self.pods_to_evict(view, rows, now)))
