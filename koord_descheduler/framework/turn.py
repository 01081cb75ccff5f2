"""The plugin that runs, and its reason: what an eviction is attributed to."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Turn:
    """One round of one plugin. Once over, what is left of it may not evict any more."""

    plugin: str
    over: bool = False

    def end(self) -> None:
        """Have it be over."""
        self.over = True

    async def within(self, make: Callable[[], Awaitable[T]]) -> T:
        """Call and await as part of this turn; in a task of its own."""
        TURN.set(self)
        return await make()


TURN: ContextVar[Turn | None] = ContextVar("plugin_turn", default=None)
REASON: ContextVar[str] = ContextVar("eviction_reason", default="")


@contextmanager
def because(reason: str) -> Iterator[None]:
    """Give the evictions inside this reason, unless their options have one."""
    token = REASON.set(reason)
    try:
        yield
    finally:
        REASON.reset(token)
