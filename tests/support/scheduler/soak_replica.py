"""One of the schedulers of a soak: what the daemon makes of itself, on simulated time."""

import asyncio
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from random import Random

import numpy as np

from koord.cluster import kinds, storage
from koord.component.plugins.discovery import discover
from koord.component.plugins.execution import RepeatedTimeLimit
from koord.controlplane.cluster_access import LeaderClient
from koord.controlplane.clusterfeed import SCHEDULER_KINDS, SERVED_KINDS, ClusterFeed
from koord.controlplane.testing import CapturedEvents
from koord.kube.client import ApiClient
from koord.util.health import Health
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop
from koord_scheduler.cache import SchedulerCache
from koord_scheduler.config.configuration import parse_configuration
from koord_scheduler.config.profiles import Profile
from koord_scheduler.framework.calls import TimeLimits
from koord_scheduler.framework.interfaces import Plugin
from koord_scheduler.framework.profile import PluginRegistry, build_profile, known_plugins
from koord_scheduler.scheduling.metrics import SchedulingMetrics
from koord_scheduler.scheduling.scheduler import Scheduler
from tests.support.scheduler.framework import Kit
from tests.support.scheduler.soak_server import Line, Server

FOLLOWED = {
    kinds.NODE: replace(SERVED_KINDS[kinds.NODE], page_size=3),
    kinds.POD: replace(SERVED_KINDS[kinds.POD], page_size=4),
    storage.CLAIM: replace(SERVED_KINDS[storage.CLAIM], page_size=4),
    **{
        kind: SCHEDULER_KINDS[kind]
        for kind in (storage.VOLUME, storage.STORAGE_CLASS, storage.CSI_NODE)
    },
}
# A step is measured in real time: one that a busy machine holds up is no part of a history.
LIMITS = TimeLimits(step=600.0)
CONFIGURATION = b"""\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
  - schedulerName: p
    plugins:
      reserve: {enabled: [{name: Unreliable}]}
      permit: {enabled: [{name: Unreliable}]}
      preBind: {enabled: [{name: Unreliable}]}
"""


class Replica(Kit):
    """A scheduler with the default plugins and one more, its copy of the cluster, its line."""

    def __init__(
        self,
        server: Server,
        clock: SimulatedClock,
        draw: Random,
        plugin: Plugin,
        limits: RepeatedTimeLimit,
    ) -> None:
        """limits: one for all replicas, as there is one for a process."""
        self.state = SchedulerCache(clock)
        super().__init__(clock, self.state)
        self.plugin = plugin
        self.is_leader = False
        self.line = Line(server, draw, lambda: self.is_leader)
        client = LeaderClient(self.line, clock, lambda: self.is_leader)
        client._draw = draw.random
        self.services = replace(
            self.services, client=client, activate=self._activate, limits=limits
        )
        self.feed = ClusterFeed(
            ApiClient(self.line, clock, draw=draw.random),
            self.state,
            clock,
            served=FOLLOWED,
            draw=draw.random,
        )
        self.stop = Stop(clock)
        self.background = Stop(clock)
        self.draw = draw
        self.following: asyncio.Task[None] | None = None
        self.working: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Make the scheduler, and follow the cluster."""
        discover(self.registry, _installed())
        self.registry.register("Unreliable", lambda args, handle: self.plugin)
        profile = _profile(self.registry)
        self.scheduler = Scheduler(
            [await build_profile(profile, self.registry, self.services, LIMITS)],
            self.state,
            self.services,
            SchedulingMetrics(self.exposition),
            draw=self.draw,
        )
        self.following = asyncio.create_task(self.feed.run(self.background))

    def lead(self) -> None:
        """Schedule, once: a process that has lost the lead ends."""
        self.is_leader = True
        self.working = asyncio.create_task(self._work(self.stop))

    async def end(self, *, lost: bool = False) -> None:
        """Stop, as the daemon does: the lease is held until the work has ended. lost: it is not."""
        self.stop.set()
        if self.working is not None:
            if lost:
                self.working.cancel()
            await self.clock.settle()
            while not self.working.done():
                await self.clock.advance(0.5)
            if not self.working.cancelled():
                self.working.result()
        self.background.set()
        if self.following is not None:
            await self.following

    def events(self, reason: str) -> list[tuple[str, str]]:
        """Pods by uid, and messages of the events."""
        assert isinstance(self.services.events, CapturedEvents)
        found = self.services.events.events
        return [(one.about.uid, one.message) for one in found if one.reason == reason]

    def leaks(self, server: Server) -> list[str]:
        """What the scheduler has otherwise than the server; all is quiet."""
        found, view = [], self.state.view()
        if (assumed := self.state.assumed_count) or self.scheduler.bindings:
            found.append(f"{assumed} pods assumed, {self.scheduler.bindings} bindings")
        if len(self.services.waiting):
            found.append(f"{len(self.services.waiting)} pods wait for permits")
        if {view.node(row).name for row in range(len(view))} != set(server.nodes):
            found.append("other nodes")
        column = view.resources["cpu"]
        for row in range(len(view)):
            name = view.node(row).name
            there = {
                key: int(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"])
                for key, pod in server.pods.items()
                if pod["spec"].get("nodeName") == name
            }
            if {pod.key for pod in view.pods(row)} != set(there):
                found.append(f"{name}: other pods than {sorted(there)}")
            if view.requested[row, column] != 1000 * sum(there.values()):
                found.append(f"{name}: {view.requested[row, column]} of {there}")
        pending = {
            key
            for key, pod in server.pods.items()
            if not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
        }
        queue = self.scheduler.queue
        places = {key: queue.place_of(server.pods[key]["metadata"]["uid"]) for key in pending}
        if wrong := {key: at for key, at in places.items() if at not in QUEUED}:
            found.append(f"not in the queue: {wrong}")
        if sum(queue.pending.values()) != len(pending):
            found.append(f"{dict(queue.pending)} in the queue, {len(pending)} are pending")
        if queue.in_flight.events:
            found.append(f"{queue.in_flight.events} events are kept for no pod in flight")
        assert np.all(view.requested >= 0)
        return found

    def _activate(self, uids: object) -> None:
        self.scheduler.activate(uids)  # type: ignore[arg-type]

    async def _work(self, stop: Stop) -> None:
        """As the daemon leads."""
        await stop.bound(self.feed.wait_synced())
        await stop.bound(self.feed.catch_up(kinds.POD))
        parts, shared = Stop(self.clock), self.services.shared
        async with asyncio.TaskGroup() as group:
            group.create_task(shared.run(parts, self.clock, Health()))
            await stop.bound(shared.wait_ready())
            try:
                if not stop.is_set():
                    await self.scheduler.run(stop)
            finally:
                parts.set()


_PROFILES: list[Profile] = []  # the one, when it has been read


def _profile(registry: PluginRegistry) -> Profile:
    """What the configuration says; to read it again for each replica takes longer than its work."""
    if not _PROFILES:
        read = parse_configuration(CONFIGURATION, Path("config"), known_plugins(registry))
        _PROFILES.extend(read.configuration.profiles)
    return _PROFILES[0]


@cache
def _installed() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=PluginRegistry().group))


QUEUED = ("active", "backoff", "unschedulable")
