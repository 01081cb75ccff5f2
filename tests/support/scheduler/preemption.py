"""A small cluster whose pods are tried by a profile with DefaultPreemption."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import asynccontextmanager
from typing import Any

from koord.cluster import kinds
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.controlplane.testing import CapturedEvents, api_error_response, make_pod, read
from koord.kube.transport import Call
from koord.util.stop import Stop
from koord_scheduler.framework.binding import PodBinding
from koord_scheduler.framework.interfaces import Plugin
from koord_scheduler.framework.nodes.search import NodeSearch
from koord_scheduler.framework.preemptions import Preemptions
from koord_scheduler.framework.profile import ProfilePlugins
from koord_scheduler.framework.status import CycleState, PostFilterResult
from koord_scheduler_plugins.default_preemption import DefaultPreemption, DefaultPreemptionArgs
from tests.support.scheduler.framework import FreeCpu, Kit

DELETED = {"kind": "Status", "apiVersion": "v1", "status": "Success"}


BY_SCHEDULER = {
    "conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    ]
}


def pending(name: str = "new", *, cpu: int = 4, priority: int = 10, **spec: Any) -> ClusterPod:
    """A pod that waits to be scheduled."""
    return make_pod(name, cpu=cpu, priority=priority, phase="Pending", spec=spec)


def leaving(name: str, node: str, *, cpu: int = 4, by_scheduler: bool = True) -> ClusterPod:
    """A pod that is being deleted."""
    return read(
        kinds.POD,
        {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"uid-default-{name}",
                "deletionTimestamp": "2026-07-24T06:52:45Z",
            },
            "spec": {
                "nodeName": node,
                "containers": [{"name": "main", "resources": {"requests": {"cpu": str(cpu)}}}],
            },
            "status": {"phase": "Running", **(BY_SCHEDULER if by_scheduler else {})},
        },
    )


class World:
    """The cluster, a profile with room as NodeResourcesFit says it, and the API server."""

    def __init__(self) -> None:
        self.kit = Kit()
        self.cluster, self.services = self.kit.cluster, self.kit.services
        self.requests: list[tuple[str, str]] = []  # method and path, in order
        self.answers: dict[tuple[str, str], int | str] = {}  # a status, or "hang"
        self.patches: list[Mapping[str, Any]] = []
        self._exchange = self.kit.server.exchange
        self.kit.server.answer(self._answer)
        self.kit.server.exchange = self._perhaps_hang  # type: ignore[method-assign]
        self.profile: ProfilePlugins
        self.search: NodeSearch

    async def build(
        self,
        args: DefaultPreemptionArgs | None = None,
        *,
        pre_filter: Mapping[str, Plugin] | None = None,
        **filters: Plugin,
    ) -> "World":
        """filters: plugins beside room."""
        registry = self.kit.registry

        def make(given: object, handle: Any) -> DefaultPreemption:
            return DefaultPreemption(args or DefaultPreemptionArgs(), handle)

        registry.register("DefaultPreemption", make)
        preemption: Any = {"DefaultPreemption": None}
        self.profile = await self.kit.profile(
            preFilter=pre_filter or {},
            filter={"NodeResourcesFit": FreeCpu(), **filters},
            postFilter=preemption,
            preEnqueue=preemption,
        )
        self.search = NodeSearch(self.profile, self.services.nominator)
        return self

    @property
    def plugin(self) -> DefaultPreemption:
        found = self.profile.plugins["DefaultPreemption"]
        assert isinstance(found, DefaultPreemption)
        return found

    @property
    def part(self) -> Preemptions:
        return Preemptions.of(self.services)

    @property
    def events(self) -> list[tuple[str, str, str]]:
        assert isinstance(self.services.events, CapturedEvents)
        return [(one.about.name, one.reason, one.message) for one in self.services.events.events]

    def view(self) -> View:
        return self.services.cluster.view()

    async def try_pod(self, pod: ClusterPod) -> PostFilterResult:
        """Search nodes, of which none is feasible, and then PostFilter; nominate as the cycle."""
        state, view = CycleState(), self.view()
        found = self.search.search(state, pod, view)
        assert not found.status.ok
        assert found.diagnosis.node_statuses is not None
        result = await PodBinding(self.profile).post_filter(
            state, pod, view, found.diagnosis.node_statuses
        )
        if result.nominated_node:
            self.services.nominator.nominate(pod, result.nominated_node)
        elif result.nominated_node == "":
            self.services.nominator.forget(pod.key)
        return result

    @asynccontextmanager
    async def leading(self) -> Any:
        """Have the shared part run."""
        stop = Stop(self.kit.clock)
        task = asyncio.create_task(self.part.run(stop))
        await self.settle()
        try:
            yield stop
        finally:
            stop.set()
            await task

    async def lose_leadership(self) -> None:
        """Have the shared part give up what is decided."""
        stop = Stop(self.kit.clock)
        stop.set()
        await self.part.run(stop)

    async def settle(self) -> None:
        await self.kit.clock.settle()

    def deleted(self) -> list[str]:
        return [path.rsplit("/", 1)[1] for method, path in self.requests if method == "DELETE"]

    def put(self, pod: ClusterPod | None, old: ClusterPod | None = None) -> None:
        """The watch brings a pod, or that one has gone."""
        if pod is not None:
            old = old or self.cluster.state.pod(pod.key)
            self.cluster.state.put(kinds.POD, pod)
        elif old is not None:
            self.cluster.state.remove(kinds.POD, old.key, old.uid)
        self.services.changes.notify(kinds.POD, old, pod)

    async def _perhaps_hang(self, call: Call) -> bytes:
        if self.answers.get((call.method, call.path)) == "hang":
            self.requests.append((call.method, call.path))
            await asyncio.get_running_loop().create_future()
        return await self._exchange(call)

    def _answer(self, call: Call) -> Any:
        self.requests.append((call.method, call.path))
        answer = self.answers.get((call.method, call.path), 200)
        assert isinstance(answer, int)
        if answer != 200:
            raise api_error_response(call, answer, "Conflict" if answer == 409 else "", "scripted")
        if call.method == "PATCH":
            self.patches.append(json.loads(call.body or b"{}"))
        return DELETED
