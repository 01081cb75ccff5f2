"""CPU time that NodeFit may take for the pods of a namespace in one cycle."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from koord.util.timebudget import OutOfTime, TimeBudget

POD_SECONDS = 0.5  # of CPU for one pod
NAMESPACE_SECONDS = 2.0  # of CPU for the pods of one namespace in one cycle
FREE_SECONDS = 0.02  # of each pod that do not count: usual pods take a tenth of it


class FitTime:
    """What NodeFit has taken in one cycle, by namespace.

    Only what is far above a usual pod counts, so that many usual pods of a namespace are never cut.
    """

    def __init__(self, now: Callable[[], float] = time.thread_time) -> None:
        """now: CPU seconds of this thread."""
        self._now = now
        self._spent: dict[str, float] = {}  # beyond what is free, by namespace
        self._cut: Counter[str] = Counter()

    @property
    def cut(self) -> Mapping[str, int]:
        """How many computations were cut, by namespace."""
        return self._cut

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Bill what is computed inside, also in tasks and threads that are started there."""
        token = _TIME.set(self)
        try:
            yield
        finally:
            _TIME.reset(token)

    @contextmanager
    def of_pod_in(self, namespace: str) -> Iterator[None]:
        """Compute inside for one pod of a namespace.

        Raises:
            OutOfTime: it took longer than it may.
        """
        left = NAMESPACE_SECONDS - self._spent.get(namespace, 0.0)
        budget = TimeBudget(min(POD_SECONDS, max(left, FREE_SECONDS)), self._now)
        try:
            with budget:
                yield
        except OutOfTime:
            self._cut[namespace] += 1
            raise
        finally:
            more = budget.spent - FREE_SECONDS
            if more > 0:
                self._spent[namespace] = self._spent.get(namespace, 0.0) + more


_TIME: ContextVar[FitTime | None] = ContextVar("fit_time", default=None)


def fit_time() -> FitTime:
    """Return the account of the cycle that runs; outside of cycles one for this pod alone."""
    return _TIME.get() or FitTime()
