"""The plugin that runs, and its reason: what an eviction is attributed to."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class Turn:
    """One round of one plugin. Once over, what is left of it may not evict any more."""

    plugin: str
    over: bool = False


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
