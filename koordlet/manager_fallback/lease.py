"""koord-manager's Lease: held or not, by renewals seen and the time since, never by its clock.

A Lease in use changes every two seconds. Watching that on thousands of nodes would cost the API
server more than all their reports, so a watch ends with the first renewal; the next one begins some
minutes later. While the Lease is not renewed, the watch costs nothing and shows a manager at once.
"""

import asyncio
import random
from collections.abc import Callable
from enum import Enum

from koord.kube.client import ApiClient
from koord.kube.leases import LeaseHolding, read_holding
from koord.kube.reflector import Reflector, Watched
from koord.kube.resource import LEASES, field_selector
from koord.kube.store import Change
from koord.util.clock import Clock
from koord.util.health import OK, PartHealth
from koord.util.stop import Stop

LEASE = "koordinator-manager"
# Seconds without a renewal. A manager on a node that died comes back on another when Kubernetes
# has evicted its pod, after five minutes, and its image was pulled there.
GONE_AFTER = 600.0
LEFT_BEHIND = 4  # durations of a Lease that was never seen to be renewed: it has no holder
LOOK_AGAIN = 300.0  # seconds from a renewal to the next look, up to doubled to spread a fleet
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
        self._patience = 0.0  # seconds of quiet that mean that it is gone
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
            await stop.sleep(LOOK_AGAIN * (1 + self._draw()))

    async def _follow(self, stop: Stop) -> None:
        """Watch the Lease until it is renewed, or until stop."""
        self._renewed = False
        self._reflector, enough = self._make_reflector(), Stop(self._clock)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run(enough), name=self.name)
            while not self._renewed and not stop.is_set():
                self._seen.clear()
                self._judge()
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
            self._patience = GONE_AFTER if self._renewed else LEFT_BEHIND * found.duration
            self._holding, self._quiet_since = found, self._clock.monotonic()
            self._become(Presence.THERE)
        self._seen.set()

    def _judge(self) -> None:
        now = self._clock.monotonic()
        if self._reflector.health() != OK:
            self._quiet_since = now  # a manager that cannot reach the server cannot renew either
        elif self._reflector.synced and now - self._quiet_since >= self._patience:
            self._become(Presence.GONE)

    def _become(self, presence: Presence) -> None:
        if presence is not self.presence:
            self.presence = presence
            self._changed()
