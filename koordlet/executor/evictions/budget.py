"""Bounds the pods that this node evicts in an hour, across restarts."""

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

from koord.util import documents
from koord.util.atomicfile import FileWriteError
from koord.util.clock import Clock
from koord.util.errors import InvalidObject, UnsafeFile
from koord.util.filewatch import FileReadError
from koord.util.logs import LogState, get_logger
from koord.util.owneddir import OwnedDirectory

HOUR = 3600.0  # seconds
LARGEST = 1000  # evictions in an hour that a limit may allow, and that are remembered
MAX_BYTES = 64 << 10  # of the file

log = get_logger("koordlet.executor")


class EvictionBudget:
    """Counts evictions of the past hour, in `evictions.json` of a directory until the next boot.

    limit is asked each time, as it may change; 0 is no bound.
    """

    def __init__(
        self,
        limit: Callable[[], int],
        clock: Clock,
        *,
        directory: OwnedDirectory | None,
        boot_id: str,
    ) -> None:
        """Load what was used. directory None: keep it in memory only."""
        self._limit = limit
        self._clock = clock
        self._file = directory / "evictions.json" if directory else None
        self._boot_id = boot_id
        self._used = self._load()  # seconds since boot, of each
        self._saving = asyncio.Lock()
        self._unsaved = LogState(log)
        self.problem = ""  # why the file is not up to date

    @property
    def limit(self) -> int:
        """Evictions in an hour; 0: no bound."""
        return self._limit()

    @property
    def used(self) -> int:
        """Evictions of the past hour."""
        return len(self._recent())

    @property
    def wait(self) -> float:
        """Seconds until there is one to use; 0: there is."""
        recent, limit = self._recent(), self._limit()
        if not limit or len(recent) < limit:
            return 0.0
        return sorted(recent)[len(recent) - limit] + HOUR - self._clock.boottime()

    def take(self) -> float:
        """Use one up and return its moment, for refund. Look at wait first."""
        now = self._clock.boottime()
        self._used.append(now)
        return now

    def refund(self, moment: float) -> None:
        """Return one that was not needed."""
        if moment in self._used:
            self._used.remove(moment)

    async def save(self) -> None:
        """Save what is used; if the file cannot be written, problem has the reason, for health."""
        if self._file is None:
            return
        async with self._saving:
            content = json.dumps({"boot_id": self._boot_id, "used": self._recent()})
            try:
                await asyncio.to_thread(self._file.write, content.encode() + b"\n")
            except FileWriteError as err:
                self.problem = str(err)
                self._unsaved.failed("eviction_budget.not_saved", error=self.problem)
            else:
                self.problem = ""
                self._unsaved.ended("eviction_budget.saved")

    def _recent(self) -> list[float]:
        since = self._clock.boottime() - HOUR
        self._used = [at for at in self._used[-LARGEST:] if at > since]
        return self._used

    def _load(self) -> list[float]:
        if self._file is None:
            return []
        try:
            data = self._file.read(MAX_BYTES)
            if data is None:
                return []
            stored: Any = documents.decode(data, str(self._file))
            if stored["boot_id"] != self._boot_id:
                return []
            return [_moment(at, self._clock.boottime()) for at in stored["used"]]
        except (FileReadError, UnsafeFile, InvalidObject, ValueError, KeyError, TypeError) as err:
            log.warning("eviction_budget.dropped", path=str(self._file), error=repr(err))
            return []


def _moment(value: object, now: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"wanted seconds since boot, found {value!r:.60}")
    return min(float(value), now)
