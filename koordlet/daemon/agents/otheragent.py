"""Another QoS agent on the node: while there is one, this one only observes."""

import asyncio
from collections.abc import Callable

from koord.util.clock import Clock
from koord.util.health import OK, PartHealth, Status
from koord.util.logs import get_logger
from koord.util.stop import Stop

INTERVAL = 20.0  # seconds between two looks
SHORT_INTERVAL = 1.0  # until the node's pods are known
GONE_AFTER = 60.0  # seconds without a sign; a crashed agent is started again by then, as a rule

Sign = Callable[[], str]
"""Returns a sign of another agent at this moment, as a sentence; "" when there is none.

Called in a worker thread.
"""

log = get_logger("koordlet.daemon")


class OtherAgent:
    """Looks for signs of another agent; says whether this one may act.

    It may not until the first look after the node's pods are known.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        synced: Callable[[], bool],
        force: bool = False,
    ) -> None:
        """synced says whether the pods are known; force has this agent act beside another one."""
        self._signs: list[Sign] = []
        self._clock = clock
        self._synced = synced
        self._force = force
        self._found = ""
        self._seen_at = 0.0  # monotonic
        self._looked = asyncio.Event()

    @property
    def observing(self) -> bool:
        """Whether this agent only observes because another one was found."""
        return bool(self._found) and not self._force

    def look_for(self, *signs: Sign) -> None:
        """Look for these signs, too."""
        self._signs += signs

    async def run(self, stop: Stop) -> None:
        """Look until stop."""
        while not stop.is_set():
            synced = self._synced()
            self._note(await asyncio.to_thread(self._look))
            if synced:
                self._looked.set()
            await stop.sleep(INTERVAL if synced else SHORT_INTERVAL)

    def observe_only(self) -> str:
        """Why this agent only observes; "" when it may act."""
        if self._force:
            return ""
        if not self._looked.is_set():
            return "whether another QoS agent is on this node is not known yet"
        return self._found

    async def judged(self) -> str:
        """As observe_only, but wait until that is known."""
        if not self._force:
            await self._looked.wait()
        return self.observe_only()

    def health(self) -> PartHealth:
        """Degraded while there is another one."""
        if not self._found:
            return OK
        if self._force:
            return PartHealth(Status.OK, f"{self._found}; acting all the same, as --force says")
        hint = "stop it, or have this one act all the same with --force"
        return PartHealth(Status.DEGRADED, f"only observing: {self._found}; {hint}")

    def _look(self) -> str:
        return next(filter(None, (sign() for sign in self._signs)), "")

    def _note(self, found: str) -> None:
        now = self._clock.monotonic()
        if found:
            self._seen_at = now
        elif now - self._seen_at < GONE_AFTER:
            return
        if found and not self._found:
            log.warning("other_agent.detected", found=found, observing=not self._force)
        elif self._found and not found:
            log.info("other_agent.gone", was=self._found)
        self._found = found
