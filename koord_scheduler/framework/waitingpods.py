"""Pods that are reserved and wait for permission to be bound.

Source: Kubernetes, pkg/scheduler/framework/runtime/waiting_pods_map.go.
"""

import asyncio
from collections.abc import Iterator, Mapping
from functools import partial

from koord.cluster.facts import ClusterPod
from koord.util import goformat
from koord.util.clock import Clock
from koord_scheduler.framework.status import MAX_PERMIT_WAIT, SUCCESS, Status


class WaitingPod:
    """A pod, and the plugins that have not allowed it yet. Each has its own time."""

    def __init__(self, pod: ClusterPod, waits: Mapping[str, float], clock: Clock) -> None:
        """waits: seconds by plugin, at most MOST_PERMIT_WAIT each."""
        self.pod = pod
        self._done: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        self._timers: dict[str, asyncio.Future[None]] = {}
        for plugin, wanted in waits.items():
            seconds = min(wanted, MAX_PERMIT_WAIT)
            timer = self._timers[plugin] = clock.timer(seconds)
            timer.add_done_callback(partial(self._expire, plugin, seconds))

    @property
    def pending_plugins(self) -> tuple[str, ...]:
        """The plugins that have not allowed it."""
        return tuple(self._timers)

    def allow(self, plugin: str) -> None:
        """A plugin gives its permit; with the last one the pod goes on."""
        timer = self._timers.pop(plugin, None)
        if timer is None:
            return
        timer.cancel()
        if not self._timers:
            self._end(SUCCESS)

    def reject(self, plugin: str, message: str) -> bool:
        """Reject the pod in the name of a plugin; return whether it was in time."""
        return self._end(Status.unschedulable(message).of(plugin))

    async def wait(self) -> Status:
        """Return how it ended: Success, or a rejection that names its plugin."""
        return await asyncio.shield(self._done)

    def _expire(self, plugin: str, seconds: float, timer: "asyncio.Future[None]") -> None:
        if timer.cancelled():
            return
        waited = goformat.format_duration(seconds)
        self.reject(plugin, f"rejected due to timeout after waiting {waited} at plugin {plugin}")

    def _end(self, status: Status) -> bool:
        if self._done.done():
            return False
        self._done.set_result(status)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        return True


class WaitingPods:
    """All pods that wait, by uid."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pods: dict[str, WaitingPod] = {}

    def __iter__(self) -> Iterator[WaitingPod]:
        return iter(tuple(self._pods.values()))

    def __len__(self) -> int:
        return len(self._pods)

    def get(self, uid: str) -> WaitingPod | None:
        return self._pods.get(uid)

    def add(self, pod: ClusterPod, waits: Mapping[str, float]) -> WaitingPod:
        """Make a pod wait for plugins, each so many seconds."""
        waiting = self._pods[pod.uid] = WaitingPod(pod, waits, self._clock)
        return waiting

    def remove(self, uid: str) -> None:
        self._pods.pop(uid, None)

    def reject(self, uid: str, message: str) -> bool:
        """Reject a pod, without a plugin's name; return whether it has waited."""
        waiting = self._pods.get(uid)
        return waiting is not None and waiting.reject("", message)
