"""Values made once for all waiting callers, and kept for as long as they are valid."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from koord.util.clock import Clock
from koord.util.ttlcache import TtlCache

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Shared(Generic[K, V]):
    """Values by key, at most size of them. Waiting callers share an error; it is not kept."""

    def __init__(self, clock: Clock, size: int, *, lasts: Callable[[V], float]) -> None:
        """lasts returns for how many seconds a value holds, from the moment it is made."""
        self._lasts = lasts
        self._known: TtlCache[K, V] = TtlCache(clock, size)
        self._making: dict[K, asyncio.Task[V]] = {}

    async def get(self, key: K, make: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """Return the value; make it unless it is known, or being made.

        A caller that is cancelled does not cost the others theirs.

        Raises:
            Exception: what make raises.
        """
        try:
            return self._known[key]
        except KeyError:
            pass
        making = self._making.get(key)
        if making is None:
            making = asyncio.create_task(self._make(key, make), name=f"make {key!r:.80}")
            making.add_done_callback(_retrieve)
            self._making[key] = making
        return await asyncio.shield(making)

    async def _make(self, key: K, make: Callable[[], Coroutine[Any, Any, V]]) -> V:
        try:
            value = await make()
            self._known.put(key, value, self._lasts(value))
            return value
        finally:
            del self._making[key]


def _retrieve(making: "asyncio.Task[Any]") -> None:
    """Look at an error that no task awaits any more, or asyncio complains of it."""
    if not making.cancelled():
        making.exception()
