"""The worker of a queue of nodes."""

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
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop
from koord.util.workqueue import WorkQueue

AT_ONCE = 64  # requests
FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0  # seconds after an error of one node, doubled each time
REST = 60.0  # seconds after what only an administrator can mend

log = get_logger("koord_manager.controllers")


class NodeWorker(ABC):
    """Works through nodes while it runs; a node that fails is tried again, ever later."""

    name: str

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.queue = WorkQueue(
            clock, first_pause=FIRST_PAUSE, max_pause=MAX_PAUSE, jitter=0.5, holds_failed=True
        )
        self._errors: dict[str, str] = {}  # by node
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
        await self.queue.run(stop, self._attempt, self._at_once, self._failed)

    def _at_once(self) -> int:
        return AT_ONCE if self.ready() else 0

    async def _attempt(self, name: str) -> float | None:
        try:
            await self.reconcile(name)
        except NotFound:  # the node is gone: the watch will say so
            pass
        except (Conflict, PatchRejected):  # another version, which the watch will bring
            return FIRST_PAUSE
        self._works(name)
        return None

    def _failed(self, name: str, err: Exception, pause: float) -> float:
        """Record it, while it is handled; return the pause in seconds."""
        if not isinstance(err, KubeError):
            log.exception("node.failed", controller=self.name, node=name)
            return REST
        self._errors[name] = str(err)
        self._trouble.failed(f"{self.name}.failed", node=name, error=str(err))
        is_lasting = isinstance(err, Forbidden | Unauthorized)
        return REST if is_lasting else pause

    def _works(self, name: str) -> None:
        if self._errors.pop(name, None) is not None and not self._errors:
            self._trouble.ended(f"{self.name}.recovered")
