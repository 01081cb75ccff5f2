"""Workers that read and write kernel files for the plugins: one thread, or the caller's."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")


class Worker(Protocol):
    """Does one thing after the other."""

    async def do(self, work: Callable[[], T]) -> T:
        """Return what work returns, or raise what it raises."""


class ThreadWorker:
    """A thread of its own, so that a slow kernel file does not hold the event loop."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def do(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Let the thread end; does not wait for a kernel file that hangs."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class InlineWorker:
    """The caller's thread: for tests in simulated time and for commands."""

    async def do(self, work: Callable[[], T]) -> T:
        return work()
