"""The active queue: a heap of pods that is fair among namespaces, and the pods in flight."""

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from koord.util.clock import Clock
from koord_scheduler.framework.types import ClusterEvent, QueuedPod

T = TypeVar("T")


class KeyedHeap(Generic[T]):
    """Items by key, the least one first. Each operation takes O(log n), amortized."""

    def __init__(self, less: Callable[[T, T], bool]) -> None:
        """less must not raise; what is less than the others comes first."""
        self._less = less
        self._heap: list[_Entry[T]] = []
        self._entries: dict[str, _Entry[T]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[T]:
        """All items, in no given order."""
        return (entry.item for entry in tuple(self._entries.values()))

    def get(self, key: str) -> T | None:
        """An item by its key; None: there is none."""
        entry = self._entries.get(key)
        return None if entry is None else entry.item

    def push(self, key: str, item: T) -> None:
        """Add an item, in the place of one that has the same key."""
        old = self._entries.get(key)
        if old is not None:
            old.removed = True  # it stays in the heap, whose middle costs O(n), until it is first
        entry = self._entries[key] = _Entry(key, item, self._less)
        heapq.heappush(self._heap, entry)
        self._tidy()

    def remove(self, key: str) -> T | None:
        """Take an item out; None: there is none."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        entry.removed = True
        self._tidy()
        return entry.item

    def peek(self) -> T | None:
        """The least item; None: there is none."""
        while self._heap and self._heap[0].removed:
            heapq.heappop(self._heap)
        return self._heap[0].item if self._heap else None

    def pop(self) -> T | None:
        """Take the least item out; None: there is none."""
        if self.peek() is None:
            return None
        entry = heapq.heappop(self._heap)
        del self._entries[entry.key]
        return entry.item

    def _tidy(self) -> None:
        """Forget removed entries when they are the most."""
        if len(self._heap) > 2 * len(self._entries) + 64:
            self._heap = [entry for entry in self._heap if not entry.removed]
            heapq.heapify(self._heap)


class _Entry(Generic[T]):
    __slots__ = ("_less", "item", "key", "removed")

    def __init__(self, key: str, item: T, less: Callable[[T, T], bool]) -> None:
        self.key = key
        self.item = item
        self.removed = False
        self._less = less

    def __lt__(self, other: "_Entry[T]") -> bool:
        return self._less(self.item, other.item)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShareOptions:
    """Limits of the time that pods of a namespace may take while others wait."""

    free: float = 0.02  # seconds of an attempt that do not count: ten times an ordinary one
    burst: float = 0.5  # seconds that may be owed
    share: float = 0.1  # seconds a second by which a debt shrinks
    most: float = 30.0  # seconds of debt that are remembered
    namespaces: int = 1024  # whose debts are remembered: the largest


HINTS = ShareOptions(free=0.0005, most=5.0)
"""Limits for queueing hints, in seconds for one pod and one event; an event asks for many pods."""


class NamespaceShares:
    """The debts of namespaces: what their pods took beyond the ordinary, less their share since.

    Only what is far above an ordinary attempt counts, so that many ordinary pods, or important
    ones, keep their order.
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
        """Return pods to the heap whose namespaces are no longer over their share."""
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


MAX_EVENTS = 20_000  # that are kept, each with two objects


@dataclass(frozen=True, slots=True)
class InFlightEvent:
    """An event, with the object before and after it."""

    event: ClusterEvent
    old: object
    new: object


class InFlight:
    """Pods in flight by uid, and the events since the oldest of them was popped."""

    def __init__(self) -> None:
        self._begins: dict[str, int] = {}  # number of the next event when each was popped; in order
        self._events: deque[InFlightEvent] = deque()
        self._first = 0  # number of the first event that is kept

    def __len__(self) -> int:
        return len(self._begins)

    def __contains__(self, uid: object) -> bool:
        return uid in self._begins

    @property
    def events(self) -> int:
        """How many events are kept."""
        return len(self._events)

    def begin(self, uid: str) -> None:
        """A pod was popped."""
        self._begins[uid] = self._first + len(self._events)

    def note(self, event: InFlightEvent) -> None:
        """Record an event while a pod is in flight; the oldest ones go if there are too many."""
        if self._begins:
            self._events.append(event)
            if len(self._events) > MAX_EVENTS:  # a pod has waited for its permit for minutes
                self._events.popleft()
                self._first += 1

    def since_pop(self, uid: str) -> Sequence[InFlightEvent] | None:
        """Return the events since a pod was popped; none for a pod that is not in flight.

        None: they are not known any more.
        """
        begin = self._begins.get(uid)
        if begin is None:
            return ()
        if begin < self._first:
            return None
        return tuple(islice(self._events, begin - self._first, None))

    def end(self, uid: str) -> None:
        """A pod is not in flight any more; one that was not is none the less not."""
        if self._begins.pop(uid, None) is None:
            return
        oldest = next(iter(self._begins.values()), self._first + len(self._events))
        while self._first < oldest:
            self._events.popleft()
            self._first += 1
