"""Values that hold for a while, in bounded number."""

from collections import OrderedDict
from typing import Generic, TypeVar

from koord.util.clock import Clock

K = TypeVar("K")
V = TypeVar("V")


class TtlCache(Generic[K, V]):
    """Keeps each value for its own number of seconds, and at most size of them.

    The entry that was not asked for the longest is dropped first.
    """

    def __init__(self, clock: Clock, size: int) -> None:
        self._clock = clock
        self._size = size
        self._kept: OrderedDict[K, tuple[float, V]] = OrderedDict()  # until when, and what

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, key: K) -> V:
        """Return a value that still holds; KeyError when there is none."""
        until, value = self._kept[key]
        if self._clock.monotonic() >= until:
            del self._kept[key]
            raise KeyError(key)
        self._kept.move_to_end(key)
        return value

    def put(self, key: K, value: V, seconds: float) -> None:
        """Keep a value that holds for so many seconds from now on."""
        self._kept[key] = (self._clock.monotonic() + seconds, value)
        self._kept.move_to_end(key)
        if len(self._kept) > self._size:
            self._kept.popitem(last=False)
