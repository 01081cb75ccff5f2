"""koord-manager's duties for this node: its NodeMetric and its NodeSLO, and their owners."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from koord.api.nodes.node import Node
from koord.kube.client import ApiClient
from koord.util.clock import Clock
from koord.util.health import PartHealth
from koord.util.stop import Stop
from koordlet.manager_fallback.changes import Duty
from koordlet.manager_fallback.config import ConfigSource
from koordlet.manager_fallback.keeper import NOT_JUDGED, DutyState, Keeper
from koordlet.manager_fallback.lease import ManagerLease, Presence
from koordlet.manager_fallback.mode import DutyMode
from koordlet.statesinformer.objects.kubesources import OwnObject

LOOK = 5.0  # seconds between two checks of the permission to write


@dataclass(frozen=True, kw_only=True, slots=True)
class DutyOptions:
    """The mode of the duties, and the places of koord-manager's configuration and Lease."""

    mode: DutyMode
    config_namespace: str
    config_name: str


class ManagerDuties:
    """Keeps the objects while that is this agent's duty.

    With mode auto it is koord-manager's while that holds its Lease, and another client's for an
    object while that client writes it.
    """

    name = "manager duties"

    def __init__(
        self,
        options: DutyOptions,
        duties: Iterable[tuple[Duty, OwnObject[Any]]],
        node: OwnObject[Node],
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
        self._denied: str | None = None  # the latest answer of observe_only; None: none yet
        self._mode = options.mode
        self._config = ConfigSource(
            client, options.config_namespace, options.config_name, clock, self._wake, report
        )
        self._lease = (
            ManagerLease(client, options.config_namespace, clock, self._wake)
            if options.mode is DutyMode.AUTO
            else None
        )
        self._keepers = [
            Keeper(
                duty,
                source,
                node,
                self._config,
                client=client,
                clock=clock,
                judge=self._judge,
                changed=self._count,
            )
            for duty, source in duties
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
        return {keeper.duty.kind: str(keeper.state) for keeper in self._keepers}

    def health(self) -> Mapping[str, PartHealth]:
        """Health of the objects, of the configuration and of the watch for koord-manager."""
        parts = {keeper.duty.name: keeper.health() for keeper in self._keepers}
        parts[self._config.name] = self._config.health()
        if self._lease is not None:
            parts[self._lease.name] = self._lease.health()
        return parts

    async def run(self, stop: Stop) -> None:
        """Do the duties until stop."""
        runs = {"permission": self._follow_permission, self._config.name: self._config.run}
        runs |= {keeper.duty.name: keeper.run for keeper in self._keepers}
        if self._lease is not None:
            runs[self._lease.name] = self._lease.run
        async with asyncio.TaskGroup() as group:
            for name, run in runs.items():
                group.create_task(run(stop), name=f"{self.name} {name}")

    async def _follow_permission(self, stop: Stop) -> None:
        """Wake the keepers whenever the permission to write has changed."""
        async for _ in stop.every(LOOK):
            found = await stop.bound(self._observe_only())
            if found != self._denied:
                self._denied = found
                self._wake()

    def _judge(self, other_writer: str) -> DutyState:
        if self._denied is None:
            return NOT_JUDGED
        if self._denied:
            return DutyState(False, self._denied)
        if self._lease is None:
            return DutyState(True, f"--manager-duties={self._mode.value}")
        if self._lease.presence is Presence.UNKNOWN:
            return NOT_JUDGED
        if self._lease.presence is Presence.THERE:
            return DutyState(False, "koord-manager holds its Lease")
        if other_writer:
            return DutyState(False, f"{other_writer} writes its spec")
        return DutyState(True, "no koord-manager is seen")

    def _wake(self) -> None:
        for keeper in self._keepers:
            keeper.wake()

    def _count(self) -> None:
        for keeper in self._keepers:
            self._held.labels(keeper.duty.name).set(keeper.state.held)
        self._config.need(any(keeper.state.held for keeper in self._keepers))
