"""Reconcile an object of this node on the API server: created once, patched where it differs."""

import asyncio
import random
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from koord.api.node import Node
from koord.kube.client import NODE_TOPOLOGIES, ApiClient, Resource
from koord.kube.errors import (
    ApiError,
    BadResponse,
    Conflict,
    KubeError,
    NotFound,
    PatchRejected,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from koord.util.clock import Clock
from koord.util.health import HealthStatus, PartHealth
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop
from koord.util.timebudget import Backoff
from koordlet.rules.node_resource_topology import (
    PublishedTopology,
    new_topology_object,
    topology_patch,
)
from koordlet.rules.node_topology import NodeTopology
from koordlet.rules.object_patch import Operation
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.kube_sources import KubeTopology, PublishedObject

QUIET_PERIOD = 600.0  # seconds without a correction after which the next one is made at once
MAX_CORRECTION_PAUSE = 300.0  # seconds


class CorrectionBackoff:
    """Allows the first correction at once and the next ones ever more rarely.

    Two writers that overwrite each other all the time load the API server and settle nothing.
    """

    def __init__(
        self, clock: Clock, interval: float, *, draw: Callable[[], float] = random.random
    ) -> None:
        """interval: seconds between the first two corrections."""
        self._clock = clock
        self._backoff = Backoff(interval, MAX_CORRECTION_PAUSE, draw=draw)
        self._latest = clock.monotonic() - QUIET_PERIOD
        self._next = clock.monotonic()

    def may_correct(self) -> bool:
        """Whether it is time for a correction; it counts as made if so."""
        now = self._clock.monotonic()
        if now < self._next:
            return False
        if now - self._latest >= QUIET_PERIOD:
            self._backoff.reset()
        self._latest, self._next = now, now + self._backoff.next()
        return True


# Seconds after a write that failed, doubled at most by jitter: a server that is away comes back,
# but one that rejects writes will not soon change its mind.
FIRST_PAUSE, MAX_PAUSE, MAX_REST = 1.0, 30.0, 300.0

# The object has changed, is gone, or is there already: the watch will show it.
_OVERTAKEN = (Conflict, NotFound, PatchRejected)
_PASSING = (Conflict, PatchRejected, TooManyRequests, ServerError, Unreachable, BadResponse)

W = TypeVar("W")
P = TypeVar("P")
P_contra = TypeVar("P_contra", contravariant=True)
log = get_logger("koordlet.reporter")


class ObjectRules(Protocol[W, P_contra]):
    """Rules for the object of one kind. W: the desired contents; P_contra: the published ones."""

    resource: Resource
    subject: str  # of log events, such as topology

    def wanted(self) -> W | None:
        """Return the desired contents, the same object until they change; None: not known yet."""

    def new(self, owner: Node, wanted: W) -> dict[str, object]:
        """The object to create."""

    def patch(self, published: P_contra, wanted: W) -> list[Operation]:
        """The operations that correct this agent's part of it; none when it is right."""


class ObjectReconciler(Generic[W, P]):
    """Creates the object where there is none, and patches this agent's fields where they differ.

    The object is followed by watch, so no request is sent while nothing changes. A patch applies
    to one version of one object: if that has changed meanwhile, the watch shows the new version
    and another patch is made. Fields that another writer keeps changing are corrected ever more
    rarely.
    """

    def __init__(
        self,
        client: ApiClient,
        node_name: str,
        rules: ObjectRules[W, P],
        own: PublishedObject[P],
        clock: Clock,
        *,
        interval: float,
        owner: Callable[[], Node | None],
        observe_only: Callable[[], str] = lambda: "",
        draw: Callable[[], float] = random.random,
    ) -> None:
        """interval: seconds between two looks at whether something is to be written.

        owner: the Node that owns a new object; None: not known now.
        observe_only returns why nothing may be written; "": it may.
        """
        self._client = client
        self._name = node_name
        self._rules = rules
        self._own = own
        self._clock = clock
        self._interval = interval
        self._owner = owner
        self._observe_only = observe_only
        self._draw = draw  # a number from 0 to 1
        self._failures = Backoff(FIRST_PAUSE, MAX_REST, jitter=1.0, draw=draw)
        self._corrections = CorrectionBackoff(clock, interval, draw=draw)
        self._written: W | None = None  # what the object says, or said at first
        self._agreed: tuple[W, P] | None = None  # found to say the same
        self._unseen = -1  # how often it had changed before our latest write
        self._problem = ""
        self._trouble = LogState(log)

    async def run(self, stop: Stop) -> None:
        """Follow the object and correct it until stop; stop does not wait for the server."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._own.run(stop), name=f"{self._rules.subject} watch")
            writes = group.create_task(self._reconcile(), name=f"{self._rules.subject} writes")
            await stop.wait()
            writes.cancel()

    def health(self) -> PartHealth:
        """Degraded while the object cannot be followed or written."""
        if self._problem:
            return PartHealth(HealthStatus.DEGRADED, self._problem)
        return self._own.health()

    async def _reconcile(self) -> None:
        while True:
            pause = self._interval
            try:
                await self._correct()
            except KubeError as err:
                pause = self._failed(err)
            await self._clock.sleep(pause)

    async def _correct(self) -> None:
        if self._observe_only():
            return
        wanted, published = self._rules.wanted(), self._own.published()
        if wanted is None or not self._own.synced or self._is_settled(wanted, published):
            return
        if published is None and self._owner() is None:
            return  # a node that was renamed or deleted: its objects shall go, too
        operations = [] if published is None else self._rules.patch(published, wanted)
        if published is not None and not operations:
            self._written, self._agreed = wanted, (wanted, published)
            self._works()
            return
        correction = wanted is self._written
        if correction and not self._corrections.may_correct():
            return
        changes = self._own.changes
        await self._write(wanted, operations)
        self._written, self._unseen = wanted, changes
        self._works()
        parts = [operation["path"] for operation in operations if operation["op"] != "test"]
        outcome = "corrected" if correction else "written"
        log.info(f"{self._rules.subject}.{outcome}", parts=parts or "all")

    def _is_settled(self, wanted: W, published: P | None) -> bool:
        """Whether nothing is to be written: both agree, or the watch has not shown a write yet."""
        if wanted is self._written and self._own.changes == self._unseen:
            return True
        agreed = self._agreed
        return agreed is not None and agreed[0] is wanted and agreed[1] is published

    async def _write(self, wanted: W, operations: list[Operation]) -> None:
        """Apply the operations; create the object when there are none."""
        owner, resource = self._owner(), self._rules.resource
        if operations:
            await self._client.json_patch(resource.object(self._name), operations)
        elif owner is not None:
            await self._client.create(resource.collection(), self._rules.new(owner, wanted))

    def _works(self) -> None:
        self._problem = ""
        self._failures.reset()
        self._trouble.ended(f"{self._rules.subject}.report_resumed")

    def _failed(self, err: KubeError) -> float:
        """Record a failure; return the seconds to wait before the next attempt."""
        if self._problem or not isinstance(err, _OVERTAKEN):
            self._trouble.failed(f"{self._rules.subject}.report_failed", error=str(err))
        self._problem = str(err)
        wanted = err.retry_after if isinstance(err, ApiError) else None
        pause = self._failures.next()
        if isinstance(err, _PASSING):
            pause = min(pause, MAX_PAUSE * (1 + self._draw()))
        return max(pause, wanted or 0.0)


class _TopologyRules:
    resource = NODE_TOPOLOGIES
    subject = "topology"

    def __init__(self, states: StatesInformer, node_name: str) -> None:
        self.wanted = states.node_topology
        self._name = node_name

    def new(self, owner: Node, wanted: NodeTopology) -> dict[str, object]:
        return new_topology_object(self._name, owner, wanted)

    def patch(self, published: PublishedTopology, wanted: NodeTopology) -> list[Operation]:
        return topology_patch(published, wanted)


class TopologyReporter(ObjectReconciler[NodeTopology, PublishedTopology]):
    """Keeps the published topology of this node right."""

    def __init__(
        self,
        client: ApiClient,
        node_name: str,
        states: StatesInformer,
        own: KubeTopology,
        clock: Clock,
        *,
        interval: float,
        owner: Callable[[], Node | None],
        observe_only: Callable[[], str] = lambda: "",
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Arguments that are not named here are those of ObjectReconciler."""
        super().__init__(
            client,
            node_name,
            _TopologyRules(states, node_name),
            own,
            clock,
            interval=interval,
            owner=owner,
            observe_only=observe_only,
            draw=draw,
        )
