"""A scheduler on simulated time, and an API server that binds pods, or fails to."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

from koord.cluster.facts import ClusterPod
from koord.cluster.kinds import NODE, POD
from koord.controlplane.testing import CapturedEvents, api_error_response
from koord.kube.client import ApiClient
from koord.kube.errors import KubeError
from koord.kube.transport import Call, Transport
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop
from koord_scheduler.cache import SchedulerCache
from koord_scheduler.config.v1 import Extender
from koord_scheduler.extenders import Extenders, FollowedObjects
from koord_scheduler.framework.interfaces import BindPlugin, Plugin
from koord_scheduler.framework.status import CycleState, Status
from koord_scheduler.scheduling.metrics import SchedulingMetrics
from koord_scheduler.scheduling.scheduler import Scheduler
from tests.support.clusters import DECODER, node, pod, read_node, read_pod
from tests.support.scheduler.framework import FreeCpu, Kit

Json = dict[str, Any]
Fault = Callable[[Call], None]
_OWN = ("timeouts", "max_in_unschedulable_pods", "debugging", "diagnoses", "budget")


class Api(Transport):
    """Pods and nodes as the API server has them. What changes comes to the state by deliver."""

    def __init__(self, state: SchedulerCache) -> None:
        self.state = state
        self.decoder = DECODER  # of pods; with what plugins declare to read, another one
        self.pods: dict[str, Json] = {}
        self.nodes: dict[str, Json] = {}
        self.bindings: list[tuple[str, str]] = []  # key of the pod and node
        self.patches: list[tuple[str, Json]] = []  # key of the pod and body
        self.requests = 0
        self.faults: list[Fault] = []  # called before each request is carried out
        self.lost: list[Fault] = []  # called after it was
        self.hanging: list[asyncio.Event] = []
        self.hang = False
        self._outbox: list[Callable[[], None]] = []

    def add_node(self, name: str, cpu: str = "4", **spec: Any) -> None:
        self.nodes[name] = node(name, None, {"cpu": cpu, "pods": "1000"}, **spec)
        item = read_node(self.nodes[name])
        self._outbox.append(lambda: self.state.put(NODE, item))

    def delete_node(self, name: str) -> None:
        del self.nodes[name]
        self._outbox.append(lambda: self.state.remove(NODE, name))

    def add_pod(
        self, name: str, cpu: str = "1", bound: str = "", namespace: str = "default", **spec: Any
    ) -> str:
        """A pod of profile p; return its key."""
        spec = {"schedulerName": "p", **spec}
        made = pod(name, bound, requests={"cpu": cpu}, namespace=namespace, **spec)
        made["status"] = {"phase": "Running" if bound else "Pending"}
        key = f"{namespace}/{name}"
        self.pods[key] = made
        self._publish(key)
        return key

    def change(self, key: str, **fields: Any) -> None:
        """Lay fields over metadata, spec or status."""
        for field, values in fields.items():
            self.pods[key][field] = {**self.pods[key].get(field, {}), **values}
        self._publish(key)

    def delete_pod(self, key: str) -> None:
        uid = self.pods.pop(key)["metadata"]["uid"]
        self._outbox.append(lambda: self.state.remove(POD, key, uid))

    def deliver(self, most: int | None = None) -> int:
        """Have watch events come; return how many."""
        now = self._outbox[:most]
        del self._outbox[: len(now)]
        for event in now:
            event()
        return len(now)

    def pod(self, key: str) -> ClusterPod:
        """As the state would have it."""
        return read_pod(self.pods[key], self.decoder)

    async def exchange(self, call: Call) -> bytes:
        self.requests += 1
        await asyncio.sleep(0)
        if self.hang:
            self.hanging.append(asyncio.Event())
            await self.hanging[-1].wait()
        if self.faults:
            self.faults.pop(0)(call)
        answer = self._carry_out(call)
        if self.lost:
            self.lost.pop(0)(call)
        return json.dumps(answer).encode()

    @asynccontextmanager
    async def stream(
        self, call: Call, silence: Callable[[], float]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        raise api_error_response(call, 404, "NotFound", "there is nothing to watch")
        yield  # makes it a generator

    async def close(self) -> None:
        """There are no connections."""

    def _carry_out(self, call: Call) -> Json:
        match call.path.strip("/").split("/"):
            case ["api", "v1", "namespaces", namespace, "pods", name]:
                if call.method == "DELETE":
                    return self._delete(call, f"{namespace}/{name}")
                return self._find(call, f"{namespace}/{name}", {"metadata": {}})
            case ["api", "v1", "namespaces", namespace, "pods", name, part]:
                key, body = f"{namespace}/{name}", json.loads(call.body or b"{}")
                if part == "binding":
                    return self._bind(call, key, body)
                if part == "status":
                    return self._patch(call, key, body)
        raise api_error_response(call, 404, "NotFound", f"no {call.path}")

    def _bind(self, call: Call, key: str, body: Json) -> Json:
        found = self._find(call, key, body)
        if found["spec"].get("nodeName"):
            raise api_error_response(
                call, 409, "Conflict", f"pod {key} is already assigned to node"
            )
        found["spec"]["nodeName"] = body["target"]["name"]
        self.bindings.append((key, body["target"]["name"]))
        self._publish(key)
        return {"kind": "Status", "status": "Success"}

    def _delete(self, call: Call, key: str) -> Json:
        """The pod begins to leave; delete_pod ends that."""
        options = json.loads(call.body or b"{}").get("preconditions", {})
        self._find(call, key, {"metadata": options})
        self.change(key, metadata={"deletionTimestamp": "2026-07-24T06:52:45Z"})
        return {"kind": "Status", "status": "Success"}

    def _patch(self, call: Call, key: str, body: Json) -> Json:
        found = self._find(call, key, body)
        self.patches.append((key, body["status"]))
        status = found["status"]
        if "nominatedNodeName" in body["status"]:
            status["nominatedNodeName"] = body["status"]["nominatedNodeName"]
        if "conditions" in body["status"]:
            status["conditions"] = body["status"]["conditions"]
        self._publish(key)
        return found

    def _find(self, call: Call, key: str, body: Json) -> Json:
        found = self.pods.get(key)
        if found is None:
            raise api_error_response(call, 404, "NotFound", f'pods "{key}" not found')
        if body["metadata"].get("uid") not in (None, found["metadata"]["uid"]):
            raise api_error_response(
                call, 409, "Conflict", "the UID in the precondition does not match"
            )
        return found

    def _publish(self, key: str) -> None:
        item = read_pod(self.pods[key], self.decoder)
        self._outbox.append(lambda: self.state.put(POD, item))


class PostingBinder(BindPlugin):
    """Binds pods by the API server."""

    def __init__(self) -> None:
        self.client: ApiClient | None = None

    async def bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        assert self.client is not None
        body = {"metadata": {"uid": pod.uid}, "target": {"kind": "Node", "name": node_name}}
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/binding"
        try:
            await self.client.post(path, body)
        except KubeError as err:
            return Status.failed(err)
        return None


class Loop(Kit):
    """A scheduler with one profile, and its cluster."""

    api_type: type[Api] = Api

    def __init__(self) -> None:
        clock = SimulatedClock()
        self.state = SchedulerCache(clock)
        super().__init__(clock, self.state)
        self.api = self.api_type(self.state)
        client = ApiClient(self.api, clock, draw=lambda: 0.0)
        self.services = replace(self.services, client=client, activate=self.activate)
        self.stop = Stop(clock)
        self.binder = PostingBinder()
        self.binder.client = client
        self._running: asyncio.Task[None] | None = None

    @property
    def events(self) -> list[tuple[str, str, str]]:
        """Pod, reason and message of the events."""
        assert isinstance(self.services.events, CapturedEvents)
        return [(one.about.name, one.reason, one.message) for one in self.services.events.events]

    def activate(self, uids: Any) -> None:
        self.scheduler.activate(uids)

    async def build(
        self, extenders: Sequence[Extender] = (), *, resizes: bool = False, **settings: Any
    ) -> "Loop":
        """Make the scheduler; settings as for Kit.profile, and of the scheduler itself."""
        own = {name: settings.pop(name) for name in _OWN if name in settings}
        points: dict[str, Mapping[str, Plugin]] = {
            "filter": {"FreeCpu": FreeCpu()},
            "bind": {"PostingBinder": self.binder},
        }
        profile = await self.profile(**{**points, **settings})
        self.metrics = SchedulingMetrics(self.exposition)
        self.scheduler = Scheduler(
            [profile],
            self.state,
            self.services,
            self.metrics,
            draw=Random(1),
            resizes=resizes,
            extenders=self._asking(extenders) if extenders else None,
            **own,
        )
        return self

    def _asking(self, extenders: Sequence[Extender]) -> Extenders:
        objects = FollowedObjects(self.services.client, self.services.informers, extenders)
        return Extenders(extenders, objects, self.clock)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let watch events come until a condition holds, in real time: for real connections."""

        def holds() -> bool:
            self.api.deliver()
            return condition()

        await self.clock.until(holds)

    async def start(self) -> None:
        self._running = asyncio.create_task(self.scheduler.run(self.stop))
        await self.settle()

    async def settle(self) -> None:
        """Let everything happen that happens without time, watch events too."""
        await self.clock.settle()
        while self.api.deliver():
            await self.clock.settle()

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds)
        await self.settle()

    async def end(self) -> None:
        """Stop the loop; it must end without time."""
        self.stop.set()
        await self.clock.settle()
        assert self._running is not None
        assert self._running.done()
        await self._running

    async def lose_lead(self) -> None:
        """Cancel the loop, as an elector does; it must end without time."""
        assert self._running is not None
        self._running.cancel()
        await self.clock.settle()
        assert self._running.cancelled()

    @property
    def ended(self) -> bool:
        """Whether the loop has returned."""
        return self._running is not None and self._running.done()

    def where(self, key: str) -> str:
        """The node of a pod, as the API server has it."""
        found: str = self.api.pods[key]["spec"].get("nodeName", "")
        return found

    def place(self, key: str) -> str:
        """Where the queue has a pod."""
        return self.scheduler.queue.place_of(self.api.pods[key]["metadata"]["uid"])
