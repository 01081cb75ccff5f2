"""Answers that cost a request elsewhere: bounded, remembered, and asked for once at a time."""

from collections.abc import Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from koord.component.http.shared import Shared
from koord.util.clock import Clock
from koord.util.errors import Unavailable
from koord.util.tokenbucket import TokenBucket

REMEMBERED = 1024  # answers of one kind; each is a few hundred bytes

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Busy(Unavailable):
    """More questions at once than are passed on."""


class Budget:
    """The most requests under way, and per second, so that no flood is passed on."""

    def __init__(self, clock: Clock, *, at_once: int, rate: float, burst: int) -> None:
        self._at_once = at_once
        self._turns = TokenBucket(clock, rate, burst)
        self._under_way = 0

    @contextmanager
    def question(self) -> Iterator[None]:
        """Surround a question.

        Raises:
            Busy: it is one too many.
        """
        if self._under_way >= self._at_once or not self._turns.take_now():
            raise Busy("wanted fewer questions about tokens; ask again in a second")
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1


class Answers(Generic[K, V]):
    """Answers by what they are about. Errors are not remembered."""

    def __init__(self, clock: Clock, budget: Budget, *, lasts: Callable[[V], float]) -> None:
        """lasts returns for how many seconds an answer holds."""
        self._budget = budget
        self._answers: Shared[K, V] = Shared(clock, REMEMBERED, lasts=lasts)

    async def get(self, key: K, ask: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """Return the answer; ask for it unless it is known, or being asked for.

        Raises:
            Busy: too many questions are asked.
            Exception: what ask raises.
        """
        return await self._answers.get(key, lambda: self._ask(ask))

    async def _ask(self, ask: Callable[[], Coroutine[Any, Any, V]]) -> V:
        with self._budget.question():
            return await ask()
