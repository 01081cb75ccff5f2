"""Restores values of ours that no plugin claims: of an earlier process, or not restored yet.

The journal records them. They are restored at the start, or taken over by the plugins that claim
them again, and at the end.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from enum import StrEnum
from typing import Any

from koord.util.clock import Clock
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import get_logger
from koord.util.stop import Stop, first_completed
from koordlet.executor.claims.claim import ApplyResult, Change, ChangeListener, ClaimState, Key
from koordlet.executor.kernel.view import Worker
from koordlet.executor.kernel.writer import Writer

RESTORE_INTERVAL = 10.0  # seconds between attempts to restore what could not be
ADOPTION_WINDOW = 120.0  # seconds that plugins have, after the start, to claim what they had
RESTORE_TIMEOUT = 8.0  # seconds that all of it may take at start and end
LOOK_INTERVAL = 0.1  # seconds between looks, at the end, for what a runtime is about to set

log = get_logger("koordlet.executor")


class OnExit(StrEnum):
    """The values of --on-exit."""

    RESTORE = "restore"
    KEEP = "keep"  # for the next process to take over


class Restorer:
    """Belongs to the event loop; the worker is the writer's."""

    def __init__(
        self, writer: Writer, worker: Worker, clock: Clock, listeners: Sequence[ChangeListener] = ()
    ) -> None:
        """listeners are called for each restored value."""
        self._writer = writer
        self._listeners = tuple(listeners)
        self._worker = worker
        self._clock = clock
        self._adopters: frozenset[str] = frozenset()
        self._adopt_until = 0.0  # monotonic
        self._failed: dict[Key, str] = {}  # why a value could not be restored
        self._adoptable = 0  # values that wait for a plugin to claim them again

    async def begin(self, adopters: Collection[str] = ()) -> None:
        """Restore what an earlier process left, except what these plugins may claim again."""
        self._adopters = frozenset(adopters)
        self._adopt_until = self._clock.monotonic() + ADOPTION_WINDOW
        await self._within_limit(self._restore("at the start", self._unclaimed))

    async def run(self, stop: Stop) -> None:
        """Go on trying until stop."""
        while not await stop.sleep(RESTORE_INTERVAL):
            await self._restore("later", self._unclaimed)

    async def end(self) -> None:
        """Restore everything that is ours, claimed or not, as well as that goes in seconds."""
        await self._within_limit(self._restore_all())

    async def _restore_all(self) -> None:
        """Restore all, and again what the runtime sets afterwards as it was answered."""
        writer = self._writer
        await self._restore("at the end", lambda: list(writer.ledger))
        awaited = await self._worker.do(writer.awaited)
        while awaited:
            await self._clock.sleep(LOOK_INTERVAL)
            keys, awaited = awaited, await self._worker.do(writer.awaited)
            # Those whose time is over since the last look are forgotten now.
            await self._restore("at the end", keys.copy)

    def counts(self) -> dict[str, int]:
        """Values that are changed, and those of them that wait to be claimed again."""
        return {"changed": len(self._writer.ledger), "kept": self._adoptable}

    def health(self) -> PartHealth:
        """Degraded while the journal is unusable, or values that should be restored are not."""
        journal = self._writer.ledger.journal
        unknown = self._writer.ledger.unknown
        refused = list(self._writer.ledger.refused.items())
        problems = [
            journal.problem,
            journal.damage,
            f"{unknown} values in the journal are of a newer koordlet" if unknown else "",
            *(f"{value} in the journal is refused: {why}" for value, why in refused[:1]),
            *(f"{key} could not be restored: {why}" for key, why in list(self._failed.items())[:1]),
        ]
        reason = "; ".join(filter(None, problems))
        if not reason:
            return OK
        facts: dict[str, object] = {"not_put_back": len(self._failed), "refused": len(refused)}
        return PartHealth(HealthStatus.DEGRADED, reason, facts)

    async def _within_limit(self, work: Coroutine[Any, Any, None]) -> None:
        """A kernel file that hangs must not keep the daemon from starting or ending."""
        task = asyncio.create_task(work, name="restore values")
        await first_completed(task, self._clock.sleep(RESTORE_TIMEOUT))
        if not task.done():
            log.error("values.restore_timed_out", after_s=RESTORE_TIMEOUT)
            task.cancel()

    async def _restore(self, when: str, which: Callable[[], list[Key]]) -> None:
        """Restore the values that which returns, called on the writer's thread."""
        at_once = when != "later"
        outcomes = await self._worker.do(lambda: self._work(which(), at_once=at_once))
        self._failed = {
            key: applied.message
            for key, _, applied in outcomes
            if applied.state is not ClaimState.GONE
        }
        restored = [
            Change("restored", key, owners, None, applied.value, f"no plugin claims it {when}")
            for key, owners, applied in outcomes
            if applied.wrote
        ]
        for change in restored:
            for listener in self._listeners:
                listener(change)
        if restored:
            log.info("values.restored", when=when, count=len(restored))
        if self._failed and at_once:
            key, why = next(iter(self._failed.items()))
            log.warning(
                "values.restore_failed", when=when, count=len(self._failed), one=str(key), why=why
            )

    def _work(
        self, keys: list[Key], *, at_once: bool
    ) -> list[tuple[Key, tuple[str, ...], ApplyResult]]:
        """Each value that was to be restored, its owners, and the result."""
        owners = [self._owners(key) for key in keys]
        applied = self._writer.restore(keys, at_once=at_once)
        return list(zip(keys, owners, applied, strict=True))

    def _unclaimed(self) -> list[Key]:
        """Values that no plugin claims, nor may still claim again."""
        unclaimed = self._writer.unclaimed()
        keys = [key for key in unclaimed if not self._may_be_adopted(self._owners(key))]
        self._adoptable = len(unclaimed) - len(keys)
        return keys

    def _owners(self, key: Key) -> tuple[str, ...]:
        record = self._writer.ledger.get(key)
        return record.owners if record is not None else ()

    def _may_be_adopted(self, owners: tuple[str, ...]) -> bool:
        in_time = self._clock.monotonic() < self._adopt_until
        return in_time and not self._adopters.isdisjoint(owners)
