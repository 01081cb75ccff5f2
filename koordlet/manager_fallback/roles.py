"""The roles of a missing koord-manager: taken while its Lease shows none, given up else."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from koord.api.node import Node
from koord.api.slocontroller import SLOConfig, load_config
from koord.kube.client import LEASES, ApiClient, field_selector
from koord.kube.leases import LeaseHolding, read_holding
from koord.kube.managedobjects import ManagedObject
from koord.kube.reflector import Change, Reflector, Watched
from koord.kube.sloconfig import ConfigSource
from koord.util.clock import Clock
from koord.util.health import OK, PartHealth
from koord.util.stop import Stop
from koordlet.manager_fallback.mode import ManagerRoleMode
from koordlet.manager_fallback.reconciler import UNDECIDED, RoleState, SpecReconciler
from koordlet.statesinformer.kube_sources import OwnObjectSource

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
