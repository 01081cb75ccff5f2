"""A heap from which anything can be removed."""

import heapq
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

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
            old.removed = True
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
