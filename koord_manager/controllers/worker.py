"""A queue of nodes that something is to be done for, and what works through it."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable

from koord.kube.errors import (
    Conflict,
    Forbidden,
    KubeError,
    NotFound,
    PatchRejected,
    Unauthorized,
)
from koord.util.clock import Clock
from koord.util.flowcontrol import Backoff
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop
from koord.util.timebudget import in_slices

TICK = 0.25  # seconds between two looks at the queue
AT_ONCE = 64  # requests
FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0  # seconds after an error of one node, doubled each time
REST = 60.0  # seconds after what only an administrator can mend

log = get_logger("koord_manager.controllers")


class NodeQueue:
    """Names of nodes, each with the time at which it is due; asked for again, the earlier counts"""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._due)

    def add(self, name: str, delay: float = 0.0) -> None:
        """Have a node's turn come after so many seconds."""
        at = self._clock.monotonic() + delay
        if at < self._due.get(name, float("inf")):
            self._due[name] = at

    def take(self) -> list[str]:
        """Take all that are due."""
        now = self._clock.monotonic()
        found = [name for name, at in self._due.items() if at <= now]
        for name in found:
            del self._due[name]
        return found


class NodeWorker(ABC):
    """Works through nodes while it runs; a node that fails is tried again, ever later."""

    name: str

    def __init__(self, clock: Clock) -> None:
        self.queue = NodeQueue(clock)
        self._clock = clock
        self._backoffs: dict[str, Backoff] = {}
        self._errors: dict[str, str] = {}  # by node
        self._not_before: dict[str, float] = {}  # monotonic; of nodes that have failed
        self._trouble = LogState(log)

    @abstractmethod
    async def reconcile(self, name: str) -> None:
        """Bring one node in line. Raises KubeError."""

    def ready(self) -> bool:
        """Whether all is known that decisions need."""
        return True

    def everything(self) -> Iterable[str]:
        """Names of all nodes that there may be something to do for."""
        return ()

    def health(self) -> PartHealth:
        """Degraded while a node cannot be kept in line."""
        if not self._errors:
            return OK
        node, error = next(iter(self._errors.items()))
        reason = f"{len(self._errors)} nodes, such as {node}: {error}"
        return PartHealth(HealthStatus.DEGRADED, reason, {"waiting": len(self.queue)})

    async def run(self, stop: Stop) -> None:
        """Work until stop."""
        for name in self.everything():
            self.queue.add(name)
        async for _ in stop.every(TICK):
            if not self.ready():
                continue
            due, running = self.queue.take(), set[asyncio.Task[None]]()
            async for name in in_slices(due):
                running.add(asyncio.ensure_future(self._attempt(name)))
                if len(running) >= AT_ONCE:
                    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    running = {one for one in running if not one.done()}
                if stop.is_set():
                    break
            if running:
                await stop.bound(asyncio.gather(*running))
            for one in running:
                one.cancel()

    async def _attempt(self, name: str) -> None:
        wait = self._not_before.get(name, 0.0) - self._clock.monotonic()
        if wait > 0:  # something about it has changed, which does not mend the failure
            self.queue.add(name, wait)
            return
        try:
            await self.reconcile(name)
        except NotFound:  # the node is gone: the watch will say so
            self._works(name)
        except (Conflict, PatchRejected):  # another version, which the watch will bring
            self.queue.add(name, FIRST_PAUSE)
        except KubeError as err:
            self._failed(name, err)
        except Exception:
            log.exception("node.failed", controller=self.name, node=name)
            self.queue.add(name, REST)
        else:
            self._works(name)

    def _failed(self, name: str, err: KubeError) -> None:
        self._errors[name] = str(err)
        self._trouble.failed(f"{self.name}.failed", node=name, error=str(err))
        pauses = self._backoffs.setdefault(name, Backoff(FIRST_PAUSE, MAX_PAUSE, jitter=0.5))
        is_lasting = isinstance(err, Forbidden | Unauthorized)
        pause = REST if is_lasting else pauses.next()
        self._not_before[name] = self._clock.monotonic() + pause
        self.queue.add(name, pause)

    def _works(self, name: str) -> None:
        if self._errors.pop(name, None) is not None and not self._errors:
            self._trouble.ended(f"{self.name}.recovered")
        self._backoffs.pop(name, None)
        self._not_before.pop(name, None)
