"""Writes this node's topology to its NodeResourceTopology object where the two differ."""

import asyncio
import random
from collections.abc import Callable

from koord.api.nodes.node import Node
from koord.kube.client import ApiClient
from koord.kube.errors import (
    ApiError,
    BadAnswer,
    Conflict,
    KubeError,
    NotFound,
    PatchRefused,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from koord.kube.resource import NODE_TOPOLOGIES
from koord.util.backoff import Backoff
from koord.util.clock import Clock
from koord.util.health import PartHealth, Status
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop
from koordlet.reporter.correctionbackoff import CorrectionBackoff
from koordlet.rules.noderesourcetopology import Operation, PublishedTopology, new_object, patch
from koordlet.rules.nodetopology import NodeTopology
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.objects.kubetopology import KubeTopology

# Seconds after a write that failed, doubled at most by jitter: a server that is away comes back,
# but one that refuses will not soon change its mind.
FIRST_PAUSE, LONGEST_PAUSE, LONGEST_REST = 1.0, 30.0, 300.0

# The object has changed, is gone, or is there already: the watch will show it.
_OVERTAKEN = (Conflict, NotFound, PatchRefused)
_PASSING = (Conflict, PatchRefused, TooManyRequests, ServerError, Unreachable, BadAnswer)

log = get_logger("koordlet.reporter")


class TopologyReporter:
    """Creates the object where there is none, and patches this agent's fields where they differ.

    The object is followed by watch, so no request is sent while nothing changes. A patch applies
    to one version of one object: if that has changed meanwhile, the watch shows the new version
    and another patch is made. Fields that another writer keeps changing are corrected ever more
    rarely.
    """

    name = "topology report"

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
        """interval: seconds between two looks at whether something is to be written.

        owner: the Node that owns a new object; None: not known now.
        observe_only returns why nothing may be written; "": it may.
        """
        self._client = client
        self._name = node_name
        self._states = states
        self._own = own
        self._clock = clock
        self._interval = interval
        self._owner = owner
        self._observe_only = observe_only
        self._draw = draw  # a number from 0 to 1
        self._failures = Backoff(FIRST_PAUSE, LONGEST_REST, jitter=1.0, draw=draw)
        self._corrections = CorrectionBackoff(clock, interval, draw=draw)
        self._written: NodeTopology | None = None  # what the object says, or said at first
        self._agreed: tuple[NodeTopology, PublishedTopology] | None = None  # found to say the same
        self._unseen = -1  # how often it had changed before our latest write
        self._problem = ""
        self._trouble = LogState(log)

    async def run(self, stop: Stop) -> None:
        """Follow the object and correct it until stop; stop does not wait for the server."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._own.run(stop), name="topology watch")
            writes = group.create_task(self._keep_right(), name="topology writes")
            await stop.wait()
            writes.cancel()

    def health(self) -> PartHealth:
        """Degraded while the object cannot be followed or written."""
        if self._problem:
            return PartHealth(Status.DEGRADED, self._problem)
        return self._own.health()

    async def _keep_right(self) -> None:
        while True:
            pause = self._interval
            try:
                await self._put_right()
            except KubeError as err:
                pause = self._failed(err)
            await self._clock.sleep(pause)

    async def _put_right(self) -> None:
        if self._observe_only():
            return
        wanted, published = self._states.node_topology(), self._own.published()
        if wanted is None or not self._own.synced or self._is_settled(wanted, published):
            return
        if published is None and self._owner() is None:
            return  # a node that was renamed or deleted: its objects shall go, too
        operations = [] if published is None else patch(published, wanted)
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
        log.info("topology.corrected" if correction else "topology.written", parts=parts or "all")

    def _is_settled(self, wanted: NodeTopology, published: PublishedTopology | None) -> bool:
        """Whether nothing is to be written: both agree, or the watch has not shown a write yet."""
        if wanted is self._written and self._own.changes == self._unseen:
            return True
        agreed = self._agreed
        return agreed is not None and agreed[0] is wanted and agreed[1] is published

    async def _write(self, wanted: NodeTopology, operations: list[Operation]) -> None:
        """Apply the operations; create the object when there are none."""
        owner = self._owner()
        if operations:
            await self._client.json_patch(NODE_TOPOLOGIES.object(self._name), operations)
        elif owner is not None:
            body = new_object(self._name, owner, wanted)
            await self._client.create(NODE_TOPOLOGIES.collection(), body)

    def _works(self) -> None:
        self._problem = ""
        self._failures.reset()
        self._trouble.ended("topology.report_resumed")

    def _failed(self, err: KubeError) -> float:
        """Record a failure; return the seconds to wait before the next attempt."""
        if self._problem or not isinstance(err, _OVERTAKEN):
            self._trouble.failed("topology.report_failed", error=str(err))
        self._problem = str(err)
        wanted = err.retry_after if isinstance(err, ApiError) else None
        pause = self._failures.next()
        if isinstance(err, _PASSING):
            pause = min(pause, LONGEST_PAUSE * (1 + self._draw()))
        return max(pause, wanted or 0.0)
