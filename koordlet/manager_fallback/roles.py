"""The roles of a missing koord-manager: taken while its Lease shows none, given up else."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from koord.api.gojson import Json
from koord.api.node import Node
from koord.api.slocontroller import SLOConfig, load_config
from koord.kube.client import LEASES, ApiClient, field_selector
from koord.kube.errors import (
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
    PatchRejected,
    RequestTooLarge,
    Unauthorized,
)
from koord.kube.leases import LeaseHolding, read_holding
from koord.kube.managedobjects import (
    ManagedObject,
    SpecWriter,
    StoredObject,
    changes,
    new_object,
    only_if_unchanged,
)
from koord.kube.reflector import Change, Reflector, Watched, resource_version
from koord.kube.sloconfig import FOREVER, ConfigSource
from koord.util.clock import Clock
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop
from koord.util.timebudget import Backoff
from koordlet.manager_fallback import ManagerRoleMode
from koordlet.statesinformer.kube_sources import OwnObjectSource

# Seconds between attempts, doubled at most by jitter.
FIRST_PAUSE, MAX_PAUSE = 1.0, 30.0  # after an error that may pass by itself
FIRST_REST, MAX_REST = 60.0, 600.0  # after a fault to be mended: RBAC, a missing CRD
MISSING_REST = 8.0  # at most after 404, likewise: the CRD is missing, a request costs little
# From one write to the next, doubled each time: another writer may undo each at once.
FIRST_GAP, MAX_GAP = 10.0, 600.0
_EXPECTED_CONFLICTS = 3  # in a row; it was changed at the same time, and the watch will show it

_REJECTIONS = (BadRequest, Unauthorized, Forbidden, NotFound, RequestTooLarge, Invalid)


class WriteBackoff:
    """Paces the writes of one object by how the earlier ones went.

    uid is that of the object as the watch has shown it; empty while there is none.
    """

    def __init__(self, clock: Clock, *, draw: Callable[[], float] = random.random) -> None:
        self._clock = clock
        self._draw = draw
        self._pauses = Backoff(FIRST_PAUSE, MAX_PAUSE, jitter=1.0, draw=draw)
        self._rests = Backoff(FIRST_REST, MAX_REST, jitter=1.0, draw=draw)
        self._gaps = Backoff(FIRST_GAP, MAX_GAP)
        self._not_before = self._wrote_at = clock.monotonic()
        self._tried = ""  # uid in the latest attempt
        self._conflicts = 0

    @property
    def due_in(self) -> float:
        """Seconds until the next attempt; 0 or less: it may be made."""
        return self._not_before - self._clock.monotonic()

    def begin(self, uid: str) -> None:
        """Record that an attempt is made."""
        self._tried = uid

    def see(self, uid: str) -> None:
        """Record a version that the watch has shown: another object, or the cause of a conflict."""
        if uid != self._tried or self._conflicts:
            self._not_before = self._clock.monotonic()

    def wrote(self) -> None:
        """Record that the object was written; the next write waits for a while."""
        now = self._clock.monotonic()
        if now - self._wrote_at > 2 * MAX_GAP:
            self._gaps.reset()
        self._wrote_at, self._not_before = now, now + self._gaps.next()

    def works(self) -> None:
        """Forget failures: the object is as computed, or another agent has the role from now on."""
        self._conflicts = 0
        self._pauses.reset()
        self._rests.reset()

    def failed(self, err: KubeError) -> bool:
        """Record a failure; return whether it is worth a log line: a rare conflict is not."""
        refused = isinstance(err, _REJECTIONS) and not isinstance(err, PatchRejected)
        pause = (self._rests if refused else self._pauses).next()
        if isinstance(err, NotFound):
            pause = min(pause, MISSING_REST * (1 + self._draw()))
        wanted = err.retry_after if isinstance(err, ApiError) else None
        self._not_before = self._clock.monotonic() + max(pause, wanted or 0.0)
        self._conflicts = self._conflicts + 1 if isinstance(err, Conflict | PatchRejected) else 0
        return not 0 < self._conflicts <= _EXPECTED_CONFLICTS


FIELD_MANAGER = "koordlet-duties"
# Seconds without a write after which the object has no other writer. A writer without a Lease shows
# only by its writes, so this is long, and longer for one that came back: two agents that overwrite
# each other must stay rare.
FIRST_YIELD, MAX_YIELD = 3600.0, 86400.0


class OtherSpecWriter:
    """Remembers the other writer of one object's spec, and when its write was seen."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: frozenset[SpecWriter] = frozenset()
        self._silence = Backoff(FIRST_YIELD, MAX_YIELD)
        self._name = ""
        self._until = clock.monotonic()  # when its silence is long enough

    def look(self, stored: StoredObject | None) -> None:
        """Record the writers of a version; None: there is no object."""
        if stored is None:
            return
        others = {writer for writer in stored.writers if writer.name != FIELD_MANAGER}
        new = others - self._known
        self._known = frozenset(others)
        if new:
            self._name = max(new, key=lambda writer: writer.time).name
            self._until = self._clock.monotonic() + self._silence.next()

    @property
    def name(self) -> str:
        """The other writer of the object; empty: there is none."""
        return self._name if self.yield_in > 0 else ""

    @property
    def yield_in(self) -> float:
        """Seconds until there is no other writer, without a write meanwhile; 0: there is none."""
        return max(self._until - self._clock.monotonic(), 0.0)


log = get_logger("koordlet.manager_fallback")


@dataclass(frozen=True, slots=True)
class RoleState:
    """Whether this agent has the manager role, and why."""

    held: bool
    reason: str

    def __str__(self) -> str:
        return f"{'kept' if self.held else 'left alone'}: {self.reason}"


UNDECIDED = RoleState(False, "owner not known yet")


class SpecReconciler:
    """Creates the object when there is none, and patches it when it differs from the computed spec.

    decide returns whether this agent has the role, given the other writer of the object ("": none);
    changed is called when that has changed. Writes that the server rejects are retried, ever more
    rarely.
    """

    def __init__(
        self,
        managed_object: ManagedObject,
        source: OwnObjectSource[Any],
        node: OwnObjectSource[Node],
        config: ConfigSource[SLOConfig],
        *,
        client: ApiClient,
        clock: Clock,
        decide: Callable[[str], RoleState],
        changed: Callable[[], None],
    ) -> None:
        self.managed_object = managed_object
        self.state = UNDECIDED
        self._source, self._node, self._config = source, node, config
        self._client, self._clock = client, clock
        self._decide, self._changed = decide, changed
        self._writer = OtherSpecWriter(clock)
        self._wake = asyncio.Event()
        self._attempts = WriteBackoff(clock)
        self._holding = Stop(clock)  # set when the role is not ours any more
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
        status = HealthStatus.DEGRADED if reasons else HealthStatus.OK
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
        state = self._decide(self._writer.name) if self._source.synced else UNDECIDED
        if state == self.state:
            return
        turned, self.state = state.held != self.state.held, state
        self._changed()
        event = "manager_role.taken" if state.held else "manager_role.released"
        log.info(event, object=self.managed_object.name,
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
        spec, doubts = self.managed_object.spec(config, node, found.spec if found else None)
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

    async def _write(self, node: Node, found: StoredObject | None, spec: Json) -> None:
        resource = self.managed_object.resource
        if found is None:
            body = new_object(self.managed_object, node, spec)
            await self._client.create(resource.collection(), body, field_manager=FIELD_MANAGER)
            self._attempts.wrote()
            log.info("object.created", object=self.managed_object.name)
            return
        operations = changes(self.managed_object, node, found, spec)
        attempt = (operations, found.uid, found.spec, found.owners)
        if not operations or attempt == self._futile:
            return
        response = await self._client.json_patch(
            resource.object(node.name),
            [*only_if_unchanged(found), *operations],
            field_manager=FIELD_MANAGER,
        )
        self._attempts.wrote()
        if resource_version(response, self.managed_object.name) == found.version:
            self._futile = attempt
            return
        fields = [operation["path"] for operation in operations]
        log.info("object.patched", object=self.managed_object.name, fields=fields)

    def _failed(self, err: KubeError) -> None:
        if self._attempts.failed(err):
            self._problem = str(err)
            self._trouble.failed(
                "manager_role.failed", object=self.managed_object.name, error=self._problem
            )

    def _works(self) -> None:
        self._attempts.works()
        self._problem = ""
        self._trouble.ended("manager_role.recovered", object=self.managed_object.name)

    def _note(self, doubts: tuple[str, ...]) -> None:
        if doubts and doubts != self._doubts:
            note = "the rest of the configuration counts"
            log.warning(
                "node.partly_rejected", object=self.managed_object.name, problems=doubts, note=note
            )
        self._doubts = doubts

    def _until_next(self) -> float:
        """Seconds until something is due without an event."""
        waits = [wait for wait in (self._attempts.due_in, self._writer.yield_in) if wait > 0]
        return min(waits, default=FOREVER)


LEASE = "koordinator-manager"
# Seconds without a renewal. A manager on a node that died comes back on another when Kubernetes
# has evicted its pod, after five minutes, and its image was pulled there.
GONE_AFTER = 600.0
ABANDONED_AFTER = 4  # durations of a Lease that was never seen to be renewed: it has no holder
RECHECK_INTERVAL = 300.0  # seconds from a renewal to the next look, up to doubled to spread a fleet
TICK = 5.0  # seconds


class Presence(Enum):
    """Whether there is a koord-manager, as far as its Lease shows."""

    UNKNOWN = "unknown"  # its Lease could not be read yet
    THERE = "there"
    GONE = "gone"


class ManagerLease:
    """Follows the Lease of koord-manager; changed is called when its presence does."""

    name = "manager lease"

    def __init__(
        self,
        client: ApiClient,
        namespace: str,
        clock: Clock,
        changed: Callable[[], None],
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.presence = Presence.UNKNOWN
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._changed = changed
        self._draw = draw  # a number from 0 to 1
        self._holding: LeaseHolding | None = None  # seen last
        self._quiet_since = clock.monotonic()
        self._gone_after = 0.0  # seconds of quiet that mean that it is gone
        self._renewed = False  # since the watch began
        self._seen = asyncio.Event()
        self._reflector = self._make_reflector()

    def health(self) -> PartHealth:
        """Degraded while the Lease cannot be read."""
        return self._reflector.health()

    async def run(self, stop: Stop) -> None:
        """Look until stop."""
        while not stop.is_set():
            await self._follow(stop)
            await stop.sleep(RECHECK_INTERVAL * (1 + self._draw()))

    async def _follow(self, stop: Stop) -> None:
        """Watch the Lease until it is renewed, or until stop."""
        self._renewed = False
        self._reflector, enough = self._make_reflector(), Stop(self._clock)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run(enough), name=self.name)
            while not self._renewed and not stop.is_set():
                self._seen.clear()
                self._decide()
                await stop.sleep(TICK, wake=self._seen)
            enough.set()

    def _make_reflector(self) -> Reflector[LeaseHolding | None]:
        watched = Watched(
            name=self.name,
            path=LEASES.collection(self._namespace),
            query={"fieldSelector": field_selector({"metadata.name": LEASE})},
            read=read_holding,
            on_change=self._see,
            component="manager-duties",
        )
        return Reflector(self._client, watched, self._clock)

    def _see(self, change: Change[LeaseHolding | None]) -> None:
        found = change.new
        if found is not None and found != self._holding:
            self._renewed = self._holding is not None
            self._gone_after = GONE_AFTER if self._renewed else ABANDONED_AFTER * found.duration
            self._holding, self._quiet_since = found, self._clock.monotonic()
            self._become(Presence.THERE)
        self._seen.set()

    def _decide(self) -> None:
        now = self._clock.monotonic()
        if self._reflector.health() != OK:
            self._quiet_since = now  # a manager that cannot reach the server cannot renew either
        elif self._reflector.synced and now - self._quiet_since >= self._gone_after:
            self._become(Presence.GONE)

    def _become(self, presence: Presence) -> None:
        if presence is not self.presence:
            self.presence = presence
            self._changed()


PERMISSION_INTERVAL = 5.0  # seconds between two checks of the permission to write


@dataclass(frozen=True, kw_only=True, slots=True)
class ManagerRoleOptions:
    """The mode of the manager roles, and the places of koord-manager's configuration and Lease."""

    mode: ManagerRoleMode
    config_namespace: str
    config_name: str


class ManagerRoles:
    """Reconciles the objects while this agent has the manager role.

    With mode auto, koord-manager has the role while it holds its Lease, and another client has the
    role for an object while that client writes it.
    """

    name = "manager duties"

    def __init__(
        self,
        options: ManagerRoleOptions,
        managed_objects: Iterable[tuple[ManagedObject, OwnObjectSource[Any]]],
        node: OwnObjectSource[Node],
        *,
        client: ApiClient,
        clock: Clock,
        registry: CollectorRegistry,
        observe_only: Callable[[], Awaitable[str]],
        report: Callable[[str], None],
    ) -> None:
        """observe_only returns why nothing may be written, once that is known; "": it may.

        report gets sentences about the configuration for people in the cluster.
        """
        self._observe_only = observe_only
        self._denied: str | None = None  # the latest response of observe_only; None: none yet
        self._mode = options.mode
        self._config = ConfigSource(
            client,
            options.config_namespace,
            options.config_name,
            clock,
            self._wake,
            report,
            load=load_config,
            unset=SLOConfig(),
        )
        self._lease = (
            ManagerLease(client, options.config_namespace, clock, self._wake)
            if options.mode is ManagerRoleMode.AUTO
            else None
        )
        self._reconcilers = [
            SpecReconciler(
                managed_object,
                source,
                node,
                self._config,
                client=client,
                clock=clock,
                decide=self._decide,
                changed=self._count,
            )
            for managed_object, source in managed_objects
        ]
        self._held = Gauge(
            "koordlet_manager_duty_held",
            "Whether this agent keeps the spec of the object in place of koord-manager.",
            ["object"],
            registry=registry,
        )
        self._count()

    def state(self) -> Mapping[str, str]:
        """The owner of each object, and why, in words."""
        return {
            reconciler.managed_object.kind: str(reconciler.state)
            for reconciler in self._reconcilers
        }

    def health(self) -> Mapping[str, PartHealth]:
        """Health of the objects, of the configuration and of the watch for koord-manager."""
        parts = {
            reconciler.managed_object.name: reconciler.health() for reconciler in self._reconcilers
        }
        parts[self._config.name] = self._config.health()
        if self._lease is not None:
            parts[self._lease.name] = self._lease.health()
        return parts

    async def run(self, stop: Stop) -> None:
        """Reconcile the objects until stop."""
        runs = {"permission": self._follow_permission, self._config.name: self._config.run}
        runs |= {reconciler.managed_object.name: reconciler.run for reconciler in self._reconcilers}
        if self._lease is not None:
            runs[self._lease.name] = self._lease.run
        async with asyncio.TaskGroup() as group:
            for name, run in runs.items():
                group.create_task(run(stop), name=f"{self.name} {name}")

    async def _follow_permission(self, stop: Stop) -> None:
        """Wake the keepers whenever the permission to write has changed."""
        async for _ in stop.every(PERMISSION_INTERVAL):
            found = await stop.bound(self._observe_only())
            if found != self._denied:
                self._denied = found
                self._wake()

    def _decide(self, other_writer: str) -> RoleState:
        if self._denied is None:
            return UNDECIDED
        if self._denied:
            return RoleState(False, self._denied)
        if self._lease is None:
            return RoleState(True, f"--manager-duties={self._mode.value}")
        if self._lease.presence is Presence.UNKNOWN:
            return UNDECIDED
        if self._lease.presence is Presence.THERE:
            return RoleState(False, "koord-manager holds its Lease")
        if other_writer:
            return RoleState(False, f"{other_writer} writes its spec")
        return RoleState(True, "no koord-manager is seen")

    def _wake(self) -> None:
        for reconciler in self._reconcilers:
            reconciler.wake()

    def _count(self) -> None:
        for reconciler in self._reconcilers:
            self._held.labels(reconciler.managed_object.name).set(reconciler.state.held)
        self._config.need(any(reconciler.state.held for reconciler in self._reconcilers))
