"""The list of this node's pods: the kubelet's or, while that is not available, the API server's."""

import asyncio
import dataclasses
from collections.abc import Callable

from koord.api.nodes.node import Node
from koord.api.pods.pod import PodList
from koord.kube.errors import Forbidden, KubeError, Unauthorized
from koord.util.backoff import Backoff
from koord.util.clock import Clock
from koord.util.health import PartHealth, Status
from koord.util.logs import get_logger
from koord.util.stop import Stop
from koordlet.statesinformer.pods.kubeletpods import KubeletPods, is_refusal
from koordlet.statesinformer.pods.kubepods import KubePods
from koordlet.statesinformer.pods.podlistguard import PodListGuard

NODE_INTERVAL = 0.25  # seconds between two looks for the Node, which has the kubelet's address
FIRST_RETRY, LAST_RETRY = 10.0, 300.0  # seconds between attempts with a kubelet given up

log = get_logger("koordlet.statesinformer")


class NodePods:
    """Keeps the list of pods; PodSource joins it with the cgroup tree.

    The kubelet knows its pods first and costs the API server nothing. When it refuses, or does not
    answer for long, the API server is followed in its place, and the kubelet is tried again at
    growing intervals.
    """

    name = "pod list"
    problem = ""  # see health

    def __init__(
        self,
        kubelet: KubeletPods,
        server: Callable[[], KubePods],
        guard: PodListGuard,
        node: Callable[[], Node | None],
        clock: Clock,
    ) -> None:
        self._kubelet = kubelet
        self._make_server = server
        self._guard = guard
        self._node = node
        self._clock = clock
        self._server: KubePods | None = None  # None: the kubelet is the source
        self._reason: KubeError | None = None  # why the kubelet is not the source

    def poll(self) -> PodList | None:
        """Return the list when it has changed since the last call. For any thread."""
        return self._guard.poll()

    async def run(self, stop: Stop) -> None:
        """Keep the list until stop."""
        while self._node() is None and not stop.is_set():
            await stop.sleep(NODE_INTERVAL)
        while not stop.is_set():
            self._server = None
            self._reason = await self._kubelet.follow(stop)
            if self._reason is not None:
                log.warning("pods.from_server", reason=_sentence(self._reason))
                await self._follow_server(stop)

    def health(self) -> PartHealth:
        """Degraded while the list is old, not believed, or not from the kubelet as it should be."""
        if self._server is None:
            found = self._kubelet.health()
            return dataclasses.replace(found, detail={**found.detail, "source": "kubelet"})
        found = self._server.health()
        reason = f"pods come from the API server: {_sentence(self._reason)}"
        if found.reason:
            reason += f"; {found.reason}"
        return PartHealth(Status.DEGRADED, reason, {**found.detail, "source": "API server"})

    async def _follow_server(self, stop: Stop) -> None:
        """Follow the API server until the kubelet answers again, or stop."""
        end, self._server = Stop(self._clock), self._make_server()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._server.run(end), name="pods of the API server")
            await self._until_answered(stop)
            end.set()

    async def _until_answered(self, stop: Stop) -> None:
        pauses = Backoff(FIRST_RETRY, LAST_RETRY)
        while not await stop.sleep(pauses.next()):
            error = await self._kubelet.ask()
            if error is None:
                log.info("pods.from_kubelet")
                return
            self._reason = error


def _sentence(error: KubeError | None) -> str:
    """The reason why the kubelet is not the source, and what to do about it."""
    if isinstance(error, Unauthorized | Forbidden):
        return f"{error}; grant get on nodes/pods, which kubelets from Kubernetes 1.33 on look at"
    if error is not None and is_refusal(error):
        return f"{error}; --kubelet-sync-interval=0 chooses the API server for good"
    return str(error)
