"""Keeps the spec of one object of this node as the cluster's configuration asks."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from koordlet.api.jsonrules import Json
from koordlet.api.node import Node
from koordlet.duties.changes import Duty, changes, new_object, only_if_unchanged
from koordlet.duties.config import FOREVER, ConfigSource
from koordlet.duties.writers import FIELD_MANAGER, OtherWriter
from koordlet.kube.client import ApiClient
from koordlet.kube.errors import (
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
    PatchRefused,
    RequestTooLarge,
    Unauthorized,
)
from koordlet.kube.store import resource_version
from koordlet.statesinformer.kubesources import OwnObject
from koordlet.statesinformer.stored import Stored
from koordlet.util.backoff import Backoff
from koordlet.util.clock import Clock
from koordlet.util.health import PartHealth, Status
from koordlet.util.logs import LogState, get_logger
from koordlet.util.stop import Stop

# Seconds between attempts, doubled at most by jitter.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # after what may pass by itself
FIRST_REST, LONGEST_REST = 60.0, 600.0  # after what somebody has to mend: RBAC, a missing CRD
# From one write to the next, doubled each time: somebody may undo each at once.
FIRST_GAP, LONGEST_GAP = 10.0, 600.0
_USUAL_CONFLICTS = 3  # in a row; it was changed at the same time, and the watch will tell

_REFUSALS = (BadRequest, Unauthorized, Forbidden, NotFound, RequestTooLarge, Invalid)

log = get_logger("koordlet.duties")


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether the duty is ours, and why."""

    held: bool
    reason: str

    def __str__(self) -> str:
        return f"{'kept' if self.held else 'left alone'}: {self.reason}"


NOT_JUDGED = Standing(False, "not known yet whose it is")


class Keeper:
    """Creates the object when there is none, and patches it when it is not as it should be.

    judge says whether the duty is ours, given who else writes the object ("" for nobody); told is
    called when that has changed. What the server refuses is tried again, ever more rarely.
    """

    def __init__(
        self,
        duty: Duty,
        source: OwnObject[Any],
        node: OwnObject[Node],
        config: ConfigSource,
        *,
        client: ApiClient,
        clock: Clock,
        judge: Callable[[str], Standing],
        told: Callable[[], None],
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.duty = duty
        self.standing = NOT_JUDGED
        self._source, self._node, self._config = source, node, config
        self._client, self._clock = client, clock
        self._judge, self._told = judge, told
        self._writer = OtherWriter(clock)
        self._wake = asyncio.Event()
        self._pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE, jitter=1.0, draw=draw)
        self._rests = Backoff(FIRST_REST, LONGEST_REST, jitter=1.0, draw=draw)
        self._gaps = Backoff(FIRST_GAP, LONGEST_GAP)
        self._not_before = self._wrote_at = clock.monotonic()
        self._tried = ""  # uid that the latest attempt was about; empty: to create it
        self._conflicts = 0
        self._futile: object = None  # a patch that was taken and changed nothing: its CRD drops it
        self._trouble = LogState(log)
        self._problem = ""  # why the object could not be brought in line
        self._doubts: tuple[str, ...] = ()  # what is wrong on the Node
        source.listen(self._see)
        node.listen(self.wake)

    def wake(self) -> None:
        """Look again soon: something has changed."""
        self._wake.set()

    def health(self) -> PartHealth:
        """Degraded while the object cannot be kept, or the Node asks for what cannot be."""
        reasons = [*self._doubts, self._problem] if self._problem else self._doubts
        status = Status.DEGRADED if reasons else Status.OK
        return PartHealth(status, "; ".join(reasons), {"state": str(self.standing)})

    async def run(self, stop: Stop) -> None:
        """Keep the object until stop."""
        while not stop.is_set():
            self._wake.clear()
            self._stand()
            if self.standing.held:
                await stop.bound(self._keep())
            await stop.sleep(self._until_next(), wake=self._wake)

    def _see(self) -> None:
        found = self._source.stored()
        self._writer.look(found)
        if (found.uid if found else "") != self._tried or self._conflicts:
            self._not_before = self._clock.monotonic()
        self.wake()

    def _stand(self) -> None:
        standing = self._judge(self._writer.name) if self._source.known else NOT_JUDGED
        if standing == self.standing:
            return
        turned, self.standing = standing.held != self.standing.held, standing
        self._told()
        log.info("duty.taken" if standing.held else "duty.left", object=self.duty.name,
                 reason=standing.reason)  # fmt: skip
        if turned:
            self._works()
            self._futile, self._doubts = None, ()

    async def _keep(self) -> None:
        config, node, found = self._config.current, self._node.current(), self._source.stored()
        if config is None or not self._node.known:
            return
        if node is None:
            self._problem = "wanted a Node to own it, found none of this name in the cluster"
            return
        spec, doubts = self.duty.spec(config, node, found.spec if found else None)
        self._note(tuple(map(str, doubts)))
        if self._clock.monotonic() < self._not_before:
            return
        self._tried = found.uid if found else ""
        try:
            await self._write(node, found, spec)
        except KubeError as err:
            self._failed(err)
        else:
            self._works()

    async def _write(self, node: Node, found: Stored | None, spec: Json) -> None:
        resource = self.duty.resource
        if found is None:
            body = new_object(self.duty, node, spec)
            await self._client.create(resource.collection(), body, field_manager=FIELD_MANAGER)
            self._wrote()
            log.info("object.created", object=self.duty.name)
            return
        operations = changes(self.duty, node, found, spec)
        attempt = (operations, found.uid, found.spec, found.owners)
        if not operations or attempt == self._futile:
            return
        answer = await self._client.json_patch(
            resource.object(node.name),
            [*only_if_unchanged(found), *operations],
            field_manager=FIELD_MANAGER,
        )
        self._wrote()
        if resource_version(answer, self.duty.name) == found.version:
            self._futile = attempt
            return
        fields = [operation["path"] for operation in operations]
        log.info("object.patched", object=self.duty.name, fields=fields)

    def _wrote(self) -> None:
        """Leave the object alone for a while, unless another one takes its place."""
        now = self._clock.monotonic()
        if now - self._wrote_at > 2 * LONGEST_GAP:
            self._gaps.reset()
        self._wrote_at, self._not_before = now, now + self._gaps.next()

    def _failed(self, err: KubeError) -> None:
        refused = isinstance(err, _REFUSALS) and not isinstance(err, PatchRefused)
        pause = (self._rests if refused else self._pauses).next()
        wanted = err.retry_after if isinstance(err, ApiError) else None
        self._not_before = self._clock.monotonic() + max(pause, wanted or 0.0)
        self._conflicts = self._conflicts + 1 if isinstance(err, Conflict | PatchRefused) else 0
        if 0 < self._conflicts <= _USUAL_CONFLICTS:
            return
        self._problem = str(err)
        self._trouble.failed("duty.failed", object=self.duty.name, error=self._problem)

    def _works(self) -> None:
        self._conflicts, self._problem = 0, ""
        self._pauses.reset()
        self._rests.reset()
        self._trouble.ended("duty.recovered", object=self.duty.name)

    def _note(self, doubts: tuple[str, ...]) -> None:
        if doubts and doubts != self._doubts:
            note = "the rest of the configuration counts"
            log.warning("node.partly_rejected", object=self.duty.name, problems=doubts, note=note)
        self._doubts = doubts

    def _until_next(self) -> float:
        """Seconds until something is due that no event tells of."""
        due = self._not_before - self._clock.monotonic()
        waits = [wait for wait in (due, self._writer.silent_in) if wait > 0]
        return min(waits, default=FOREVER)
