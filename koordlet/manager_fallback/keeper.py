"""Keeps the spec of one object of this node as the cluster's configuration asks."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from koord.api.decoding.jsonrules import Json
from koord.api.nodes.node import Node
from koord.kube.client import ApiClient
from koord.kube.errors import KubeError
from koord.kube.store import resource_version
from koord.util.clock import Clock
from koord.util.health import PartHealth, Status
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop
from koordlet.manager_fallback.attempts import Attempts
from koordlet.manager_fallback.changes import Duty, changes, new_object, only_if_unchanged
from koordlet.manager_fallback.config import FOREVER, ConfigSource
from koordlet.manager_fallback.writers import FIELD_MANAGER, OtherWriter
from koordlet.statesinformer.objects.kubesources import OwnObject
from koordlet.statesinformer.objects.stored import Stored

log = get_logger("koordlet.manager_fallback")


@dataclass(frozen=True, slots=True)
class DutyState:
    """Whether the duty is ours, and why."""

    held: bool
    reason: str

    def __str__(self) -> str:
        return f"{'kept' if self.held else 'left alone'}: {self.reason}"


NOT_JUDGED = DutyState(False, "owner not known yet")


class Keeper:
    """Creates the object when there is none, and patches it when it differs from the computed spec.

    judge decides whether the duty is ours, given the other writer of the object ("": none); changed
    is called when that has changed. Writes that the server refuses are retried, ever more rarely.
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
        judge: Callable[[str], DutyState],
        changed: Callable[[], None],
    ) -> None:
        self.duty = duty
        self.state = NOT_JUDGED
        self._source, self._node, self._config = source, node, config
        self._client, self._clock = client, clock
        self._judge, self._changed = judge, changed
        self._writer = OtherWriter(clock)
        self._wake = asyncio.Event()
        self._attempts = Attempts(clock)
        self._holding = Stop(clock)  # set when the duty is not ours any more
        self._futile: object = None  # a patch that was taken and changed nothing: its CRD drops it
        self._trouble = LogState(log)
        self._problem = ""  # why the object could not be brought in line
        self._doubts: tuple[str, ...] = ()  # problems of the Node
        source.listen(self._see)
        node.listen(self.wake)

    def wake(self) -> None:
        """Look again after a change; a running write that is no longer allowed is given up."""
        self._update_state()
        self._wake.set()

    def health(self) -> PartHealth:
        """Degraded while the object cannot be kept, or an annotation of the Node is invalid."""
        reasons = [*self._doubts, self._problem] if self._problem else self._doubts
        status = Status.DEGRADED if reasons else Status.OK
        return PartHealth(status, "; ".join(reasons), {"state": str(self.state)})

    async def run(self, stop: Stop) -> None:
        """Keep the object until stop."""
        while not stop.is_set():
            self._wake.clear()
            self._update_state()
            if self.state.held:
                await stop.bound(self._holding.bound(self._keep()))
            await stop.sleep(self._until_next(), wake=self._wake)

    def _see(self) -> None:
        found = self._source.stored()
        self._writer.look(found)
        self._attempts.see(found.uid if found else "")
        self.wake()

    def _update_state(self) -> None:
        state = self._judge(self._writer.name) if self._source.synced else NOT_JUDGED
        if state == self.state:
            return
        turned, self.state = state.held != self.state.held, state
        self._changed()
        log.info("duty.taken" if state.held else "duty.left", object=self.duty.name,
                 reason=state.reason)  # fmt: skip
        if turned:
            self._holding.set()
            self._holding = Stop(self._clock)
            self._works()
            self._futile, self._doubts = None, ()

    async def _keep(self) -> None:
        config, node, found = self._config.current, self._node.current(), self._source.stored()
        if config is None or not self._node.synced:
            return
        if node is None:
            self._problem = "wanted a Node to own it, found none of this name in the cluster"
            return
        spec, doubts = self.duty.spec(config, node, found.spec if found else None)
        self._note(tuple(map(str, doubts)))
        if self._attempts.due_in > 0:
            return
        self._attempts.begin(found.uid if found else "")
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
            self._attempts.wrote()
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
        self._attempts.wrote()
        if resource_version(answer, self.duty.name) == found.version:
            self._futile = attempt
            return
        fields = [operation["path"] for operation in operations]
        log.info("object.patched", object=self.duty.name, fields=fields)

    def _failed(self, err: KubeError) -> None:
        if self._attempts.failed(err):
            self._problem = str(err)
            self._trouble.failed("duty.failed", object=self.duty.name, error=self._problem)

    def _works(self) -> None:
        self._attempts.works()
        self._problem = ""
        self._trouble.ended("duty.recovered", object=self.duty.name)

    def _note(self, doubts: tuple[str, ...]) -> None:
        if doubts and doubts != self._doubts:
            note = "the rest of the configuration counts"
            log.warning("node.partly_rejected", object=self.duty.name, problems=doubts, note=note)
        self._doubts = doubts

    def _until_next(self) -> float:
        """Seconds until something is due without an event."""
        waits = [wait for wait in (self._attempts.due_in, self._writer.silent_in) if wait > 0]
        return min(waits, default=FOREVER)
