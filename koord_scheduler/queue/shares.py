"""Shares of the scheduler's time: whose attempts take long goes after the others that wait."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from koord.util.clock import Clock
from koord_scheduler.framework.queuedpod import QueuedPod
from koord_scheduler.queue.heap import KeyedHeap


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareOptions:
    """What the pods of a namespace may take while others wait."""

    free: float = 0.02  # seconds of an attempt that do not count: usual ones take a tenth of it
    burst: float = 0.5  # seconds that may be owed
    share: float = 0.1  # seconds a second by which a debt shrinks
    most: float = 30.0  # seconds of debt that are remembered
    namespaces: int = 1024  # whose debts are remembered: the largest


HINTS = ShareOptions(free=0.0005, most=5.0)
"""Of the hints of plugins, seconds for one pod and one event; many pods are asked at each event."""


class NamespaceShares:
    """The debts of namespaces: what their pods took beyond the usual, less their share since.

    Only what is far above a usual attempt counts, so that many usual pods, or important ones, keep
    their order.
    """

    def __init__(self, clock: Clock, options: ShareOptions | None = None) -> None:
        self._clock = clock
        self._options = options or ShareOptions()
        self._paid: dict[str, float] = {}  # monotonic seconds at which a debt is paid off

    def charge(self, namespace: str, seconds: float) -> None:
        """An attempt, or what else is counted, has taken so long."""
        options = self._options
        more = seconds - options.free
        if more <= 0:
            return
        debt = min(self.debt(namespace) + more, options.most)
        self._paid[namespace] = self._clock.monotonic() + debt / options.share
        if len(self._paid) > options.namespaces:
            del self._paid[min(self._paid, key=self._paid.__getitem__)]

    def debt(self, namespace: str) -> float:
        """Seconds that a namespace owes."""
        paid = self._paid.get(namespace)
        if paid is None:
            return 0.0
        left = paid - self._clock.monotonic()
        if left <= 0:
            del self._paid[namespace]
            return 0.0
        return left * self._options.share

    def is_over(self, namespace: str) -> bool:
        """Whether its pods go after those of others."""
        return bool(self._paid) and self.debt(namespace) > self._options.burst


class FairHeap:
    """Pods by uid, the least one first, but those of namespaces that have taken too much last.

    With nothing else waiting they go on: of the namespace that owes least, the least one.
    """

    def __init__(
        self, less: Callable[[QueuedPod, QueuedPod], bool], shares: NamespaceShares
    ) -> None:
        self._less = less
        self._shares = shares
        self._heap: KeyedHeap[QueuedPod] = KeyedHeap(less)
        self._held: dict[str, KeyedHeap[QueuedPod]] = {}  # by namespace

    def __len__(self) -> int:
        return len(self._heap) + sum(map(len, self._held.values()))

    def __contains__(self, uid: object) -> bool:
        return uid in self._heap or any(uid in heap for heap in self._held.values())

    def __iter__(self) -> Iterator[QueuedPod]:
        """All pods, in no given order."""
        yield from self._heap
        for heap in tuple(self._held.values()):
            yield from heap

    def get(self, uid: str) -> QueuedPod | None:
        """A pod by its uid; None: it is not here."""
        return next((found for heap in self._heaps() if (found := heap.get(uid))), None)

    def push(self, uid: str, queued: QueuedPod) -> None:
        """Add a pod, in the place of one that has the same uid."""
        self.remove(uid)
        self._heap.push(uid, queued)

    def remove(self, uid: str) -> QueuedPod | None:
        """Take a pod out; None: it is not here."""
        return next((found for heap in self._heaps() if (found := heap.remove(uid))), None)

    def pop(self) -> QueuedPod | None:
        """Take the next pod out; None: there is none."""
        if self._held:
            self._release()
        while (queued := self._heap.pop()) is not None:
            namespace = queued.pod.namespace
            if not self._shares.is_over(namespace):
                return queued
            held = self._held.setdefault(namespace, KeyedHeap(self._less))
            held.push(queued.pod.uid, queued)
        if not self._held:
            return None
        namespace = min(self._held, key=self._shares.debt)
        found = self._held[namespace].pop()
        self._tidy()
        return found

    def _release(self) -> None:
        """Have pods wait as usual again whose namespaces do not owe too much any more."""
        for namespace in [one for one in self._held if not self._shares.is_over(one)]:
            for queued in self._held.pop(namespace):
                self._heap.push(queued.pod.uid, queued)
        self._tidy()

    def _tidy(self) -> None:
        for namespace in [one for one, heap in self._held.items() if not len(heap)]:
            del self._held[namespace]

    def _heaps(self) -> Iterator[KeyedHeap[QueuedPod]]:
        yield self._heap
        yield from self._held.values()
