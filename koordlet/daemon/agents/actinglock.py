"""At most one daemon acts on a host: a lock on the directory of the cgroups, which all of them see.

A run directory keeps two daemons apart only when it is the same. The cgroup root is the same file
for every daemon of the host, in pods too, and flock is about the file, not the path.
"""

import asyncio
import fcntl
import math
import os
from collections.abc import Callable
from pathlib import Path

from koord.util.clock import Clock
from koord.util.health import OK, PartHealth, Status
from koord.util.logs import get_logger
from koord.util.stop import Stop
from koordlet.host.errors import KernelFileError
from koordlet.host.locks import flock_holder, process_uids

INTERVAL = 5.0  # seconds after which a lock that was refused is tried again

log = get_logger("koordlet.daemon")


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
        self.refusal = ""  # why this daemon must not act; "": it may, or does not want to
        self._directory = directory
        self._proc = proc
        self._clock = clock
        self._needed = needed
        self._descriptor = -1
        self._unguarded = ""  # why it acts without the lock
        self._tried = -math.inf  # monotonic
        self._trying = asyncio.Lock()

    async def judged(self) -> str:
        """Take the lock for a plugin that is about to act; as refusal."""
        async with self._trying:
            if not self.held and self._clock.monotonic() - self._tried >= INTERVAL:
                self._note(*await asyncio.to_thread(self._take))
                self._tried = self._clock.monotonic()
        return self.refusal

    async def run(self, stop: Stop) -> None:
        """Release the lock when it is not needed any more, until stop."""
        while not await stop.sleep(INTERVAL):
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
        problem = self.refusal or self._unguarded
        return PartHealth(Status.DEGRADED, problem) if problem else OK

    @property
    def held(self) -> bool:
        """Whether this daemon has the lock."""
        return self._descriptor >= 0

    def close(self) -> None:
        """Release it."""
        if self.held:
            os.close(self._descriptor)
        self._descriptor, self._tried = -1, -math.inf
        self.refusal = self._unguarded = ""

    def _note(self, refusal: str, unguarded: str) -> None:
        if self.held:
            log.info("acting_lock.taken", directory=str(self._directory))
        elif refusal and refusal != self.refusal:
            log.warning("acting_lock.refused", reason=refusal)
        elif unguarded and unguarded != self._unguarded:
            log.warning("acting_lock.not_taken", reason=unguarded)
        self.refusal, self._unguarded = refusal, unguarded

    def _take(self) -> tuple[str, str]:
        """Why not to act, and why to act without the lock; both "" when it was taken."""
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
        """As _take, of a lock that another process has."""
        try:
            pid = flock_holder(self._proc, descriptor)
            uids = None if pid is None else process_uids(self._proc, pid)
        except KernelFileError:
            pid = uids = None
        wanted = f"{self._directory}: wanted to be the only koordlet that acts on this host"
        if pid is None:
            return f"{wanted}, found it locked by a process that is not visible here; {_STOP}", ""
        if uids is None or not uids <= {0, os.geteuid()}:
            whose = "has ended" if uids is None else f"is of user {min(uids - {0}, default=0)}"
            return "", f"{wanted}, found the lock of process {pid}, which {whose}; {_END}"
        return f"{wanted}, found it locked by process {pid}; {_STOP}", ""


_STOP = "only observing: stop one of the two, or have this one in dry-run"
_END = "acting all the same: that is no koordlet; end what holds it"
