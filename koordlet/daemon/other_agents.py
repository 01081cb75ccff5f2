"""Other agents on the node: while there is one, this one only observes."""

import asyncio
import fcntl
import math
import os
from collections.abc import Callable
from pathlib import Path

from koord.util.clock import Clock
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import get_logger
from koord.util.stop import Stop
from koordlet.host.errors import KernelFileError
from koordlet.host.processes import flock_holder, process_uids

SCAN_INTERVAL = 20.0  # seconds between two looks
SHORT_SCAN_INTERVAL = 1.0  # until the node's pods are known
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
        """synced returns whether the pods are known. force: act while there is another agent."""
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

    def add_signs(self, *signs: Sign) -> None:
        """Look for these signs, too."""
        self._signs += signs

    async def run(self, stop: Stop) -> None:
        """Look until stop."""
        while not stop.is_set():
            synced = self._synced()
            self._note(await asyncio.to_thread(self._look))
            if synced:
                self._looked.set()
            await stop.sleep(SCAN_INTERVAL if synced else SHORT_SCAN_INTERVAL)

    def observe_only(self) -> str:
        """Return why this agent only observes; "" when it may act."""
        if self._force:
            return ""
        if not self._looked.is_set():
            return "whether another QoS agent is on this node is not known yet"
        return self._found

    async def wait_observe_only(self) -> str:
        """Wait until observe_only is known, and return it."""
        if not self._force:
            await self._looked.wait()
        return self.observe_only()

    def health(self) -> PartHealth:
        """Degraded while there is another one."""
        if not self._found:
            return OK
        if self._force:
            return PartHealth(
                HealthStatus.OK, f"{self._found}; acting all the same, as --force says"
            )
        hint = "stop it, or have this one act all the same with --force"
        return PartHealth(HealthStatus.DEGRADED, f"only observing: {self._found}; {hint}")

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


LOCK_INTERVAL = 5.0  # seconds after which a lock that was refused is tried again


class ActingLock:
    """Taken when a plugin is about to act, released when none may act any more.

    Any user may lock a directory that is readable to all. So the lock of a process that is neither
    root's nor of this user, and that of one that has ended, does not keep this daemon from acting:
    no koordlet that could act would hold it. Belongs to the event loop.
    """

    def __init__(
        self, directory: Path, proc: Path, clock: Clock, *, needed: Callable[[], bool]
    ) -> None:
        """needed: whether a plugin may act, or something that it did is still in force."""
        self.reject_reason = ""  # why this daemon must not act; "": it may, or does not want to
        self._directory = directory
        self._proc = proc
        self._clock = clock
        self._needed = needed
        self._descriptor = -1
        self._unguarded = ""  # why it acts without the lock
        self._tried = -math.inf  # monotonic
        self._trying = asyncio.Lock()

    async def wait_observe_only(self) -> str:
        """Take the lock for a plugin that is about to act; return reject_reason."""
        async with self._trying:
            if not self.held and self._clock.monotonic() - self._tried >= LOCK_INTERVAL:
                self._note(*await asyncio.to_thread(self._take))
                self._tried = self._clock.monotonic()
        return self.reject_reason

    async def run(self, stop: Stop) -> None:
        """Release the lock when it is not needed any more, until stop."""
        while not await stop.sleep(LOCK_INTERVAL):
            await self.settle()

    async def settle(self) -> None:
        """Release the lock now if it is not needed."""
        async with self._trying:
            if not self._needed():
                if self.held:
                    log.info("acting_lock.released", directory=str(self._directory))
                self.close()

    def health(self) -> PartHealth:
        """Degraded while another daemon acts, or while the lock protects nothing."""
        problem = self.reject_reason or self._unguarded
        return PartHealth(HealthStatus.DEGRADED, problem) if problem else OK

    @property
    def held(self) -> bool:
        """Whether this daemon has the lock."""
        return self._descriptor >= 0

    def close(self) -> None:
        """Release it."""
        if self.held:
            os.close(self._descriptor)
        self._descriptor, self._tried = -1, -math.inf
        self.reject_reason = self._unguarded = ""

    def _note(self, reject_reason: str, unguarded: str) -> None:
        if self.held:
            log.info("acting_lock.taken", directory=str(self._directory))
        elif reject_reason and reject_reason != self.reject_reason:
            log.warning("acting_lock.held_elsewhere", reason=reject_reason)
        elif unguarded and unguarded != self._unguarded:
            log.warning("acting_lock.unavailable", reason=unguarded)
        self.reject_reason, self._unguarded = reject_reason, unguarded

    def _take(self) -> tuple[str, str]:
        """Return why not to act, and why to act without the lock; both "" when it was taken."""
        try:
            descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as err:
            return "", f"{self._directory}: cannot be locked: {err.strerror}"
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            found = self._holder(descriptor)
            os.close(descriptor)
            return found
        except OSError as err:
            os.close(descriptor)
            return "", f"{self._directory}: cannot be locked: {err.strerror}"
        self._descriptor = descriptor
        return "", ""

    def _holder(self, descriptor: int) -> tuple[str, str]:
        """Return what _take returns, for a lock that another process holds."""
        try:
            pid = flock_holder(self._proc, descriptor)
            uids = None if pid is None else process_uids(self._proc, pid)
        except KernelFileError:
            pid = uids = None
        wanted = f"{self._directory}: wanted to be the only koordlet that acts on this host"
        if pid is None:
            return (
                f"{wanted}, found it locked by a process that is not visible here; {_STOP_HINT}",
                "",
            )
        if uids is None or not uids <= {0, os.geteuid()}:
            whose = "has ended" if uids is None else f"is of user {min(uids - {0}, default=0)}"
            return "", f"{wanted}, found the lock of process {pid}, which {whose}; {_FOREIGN_HINT}"
        return f"{wanted}, found it locked by process {pid}; {_STOP_HINT}", ""


_STOP_HINT = "only observing: stop one of the two, or have this one in dry-run"
_FOREIGN_HINT = "acting all the same: that is no koordlet; end what holds it"
