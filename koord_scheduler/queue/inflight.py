"""Pods that are being tried, and what happens meanwhile.

Source: Kubernetes, pkg/scheduler/backend/queue/active_queue.go.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from koord_scheduler.framework.events import ClusterEvent

MOST_EVENTS = 20_000  # that are kept, each with two objects


@dataclass(frozen=True, slots=True)
class Happened:
    """An event, with the object before and after it."""

    event: ClusterEvent
    old: object
    new: object


class InFlight:
    """Pods in flight by uid, and the events since the oldest of them was popped."""

    def __init__(self) -> None:
        self._begins: dict[str, int] = {}  # number of the next event when each was popped; in order
        self._events: deque[Happened] = deque()
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

    def note(self, happened: Happened) -> None:
        """Something has happened; it is kept while a pod is in flight, unless it is too much."""
        if self._begins:
            self._events.append(happened)
            if len(self._events) > MOST_EVENTS:  # a pod has waited for its permit for minutes
                self._events.popleft()
                self._first += 1

    def since_pop(self, uid: str) -> Sequence[Happened] | None:
        """What has happened since a pod was popped; of a pod that is not in flight nothing.

        None: that is not known any more.
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
