"""A cluster in memory around MigrationController: API server, scheduler, kubelet, controller.

All in one event loop on simulated time, without a network; a process of koord-descheduler can be
killed at each of its requests, and another one started.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry

from koord.api.podmigrationjob import time_text
from koord.cluster.decoder import Decoder
from koord.cluster.facts import Workload
from koord.cluster.keptfields import reads_of
from koord.cluster.kinds import POD
from koord.kube.client import ApiClient
from koord.kube.errors import api_error
from koord.kube.events import Event, EventRecorder
from koord.kube.transport import Call, Transport
from koord.util.clock import Clock
from koord.util.health import Health
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop
from koord_descheduler.framework.evictor import Decisions, FrameworkMetrics
from koord_descheduler.framework.handle import Handle, Migrations, Services
from koord_descheduler.framework.interfaces import EvictOptions
from koord_descheduler_plugins.migration.args import MigrationControllerArgs, ObjectLimiter
from koord_descheduler_plugins.migration.controller import MigrationControl, MigrationController
from tests.support.descheduler.migration import make_cluster, pod_json
from tests.support.kube.apiserver import Place
from tests.support.kube.object_store import ObjectStore, Refused, json_patch, merge_patch

JOBS = "/apis/scheduling.koordinator.sh/v1alpha1/podmigrationjobs"
RESERVATIONS = "/apis/scheduling.koordinator.sh/v1alpha1/reservations"
PODS = "/api/v1/pods"
TICK = 0.5  # seconds
GRACE = 2.0  # seconds that a pod takes to end

Json = dict[str, Any]


class Events(EventRecorder):
    """Keeps events."""

    def __init__(self) -> None:
        self.seen: list[Event] = []

    def emit(self, event: Event) -> None:
        self.seen.append(event)

    def reasons(self, kind: str) -> list[str]:
        return [one.reason for one in self.seen if one.about.kind == kind]


class Shifted:
    """The clock of another machine: it goes as ours, its wall clock is off."""

    def __init__(self, clock: SimulatedClock, by: float) -> None:
        self._clock, self._by = clock, by

    def wall(self) -> float:
        return self._clock.wall() + self._by

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)


Script = Callable[[Call], Json | None]
"""What a test has to say to a request: a response, or an error that it raises; None: nothing."""


class World:
    """The API server's objects, and the agents that work on them."""

    def __init__(self, clock: SimulatedClock, *, replicas: int = 10) -> None:
        self.clock = clock
        self.store = ObjectStore()
        self.replicas = replicas
        self.evictions: Counter[str] = Counter()  # by uid of the pod, that were accepted
        self.asked: Counter[str] = Counter()  # by uid of the pod, requests for evictions
        self.writes: list[str] = []  # of processes, "VERB what"
        self.processes: list[Process] = []
        self.schedules = True  # the scheduler places Reservations
        self.replaces = True  # the controller makes new pods
        self.gets_ready = True  # pods become ready
        self._ending: dict[str, float] = {}
        self._numbers = iter(range(100, 10_000))

    def add_pod(self, name: str = "web-1", **rest: Any) -> Json:
        return self.store.create(PODS, pod_json(name, **rest))

    def add_job(
        self,
        pod: str = "web-1",
        name: str = "mine",
        *,
        annotations: dict[str, str] | None = None,
        status: Json | None = None,
        **spec: Any,
    ) -> Json:
        """A job that a user, or another descheduler, has made just now."""
        item: Json = {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "PodMigrationJob",
            "metadata": {"name": name, "creationTimestamp": time_text(self.clock.wall())},
            "spec": {"podRef": {"namespace": "default", "name": pod}, **spec},
        }
        if annotations:
            item["metadata"]["annotations"] = annotations
        return self.store.create(JOBS, item | ({"status": status} if status else {}))

    def jobs(self) -> list[Json]:
        return self.store.all(JOBS)

    def job(self) -> Json:
        (job,) = self.jobs()
        return job

    def job_named(self, name: str) -> Json:
        """A job, with a status even if it has none."""
        job = self.store.get(JOBS, name)
        return {"status": {}, **job}

    def reservations(self) -> list[Json]:
        return self.store.all(RESERVATIONS)

    def pods(self) -> list[Json]:
        return self.store.all(PODS)

    async def start(self, **settings: Any) -> "Process":
        """Start a process that leads, and wait until it knows all jobs."""
        process = Process(self, **settings)
        self.processes.append(process)
        process.start()
        await self.pass_time(0.0)
        return process

    async def pass_time(self, seconds: float) -> None:
        """Let agents and processes work for so long."""
        end = self.clock.monotonic() + seconds
        await self._settle()
        while self.clock.monotonic() < end - 1e-6:
            await self.clock.advance(min(TICK, end - self.clock.monotonic()))
            self._work()
            await self._settle()

    async def until(self, condition: Callable[[], bool], seconds: float = 120.0) -> None:
        end = self.clock.monotonic() + seconds
        while not condition():
            assert self.clock.monotonic() < end, [one.get("status") for one in self.jobs()]
            await self.pass_time(TICK)

    async def close(self) -> None:
        for process in self.processes:
            await process.kill()

    async def _settle(self) -> None:
        for process in self.processes:
            process.feed()
        await self.clock.settle()

    def _work(self) -> None:
        """One round of all agents of the cluster."""
        now = self.clock.monotonic()
        for pod in self.pods():
            meta = pod["metadata"]
            if "deletionTimestamp" in meta:
                if now - self._ending.setdefault(meta["uid"], now) >= GRACE:
                    self.store.delete(PODS, f"{meta['namespace']}/{meta['name']}")
            elif pod["spec"].get("nodeName") and self.gets_ready and not _is_ready(pod):
                self._put(PODS, pod, {"phase": "Running", "conditions": [_true("Ready")]})
        if self.schedules:
            for reservation in self.reservations():
                if not reservation.get("status"):
                    placed = {"phase": "Available", "nodeName": "n2",
                              "conditions": [_true("Scheduled", "Scheduled")]}  # fmt: skip
                    self._put(RESERVATIONS, reservation, placed)
        self._replace_pods()
        self._bind_pods()

    def _replace_pods(self) -> None:
        alive = [pod for pod in self.pods() if "deletionTimestamp" not in pod["metadata"]
                 and pod["metadata"].get("ownerReferences")]  # fmt: skip
        for _ in range(self.replicas - len(alive) if self.replaces else 0):
            name = f"web-{next(self._numbers)}"
            self.store.create(PODS, pod_json(name, node="", uid=f"uid-new-{name}"))

    def _bind_pods(self) -> None:
        for pod in self.pods():
            if pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"]:
                continue
            reservation = next((one for one in self.reservations()
                         if one.get("status", {}).get("phase") == "Available"), None)  # fmt: skip
            node = "n3"
            if reservation is not None:
                meta, node = pod["metadata"], reservation["status"]["nodeName"]
                owner = {key: meta[key] for key in ("namespace", "name", "uid")}
                taken = {"phase": "Succeeded", "currentOwners": [owner]}
                self._put(RESERVATIONS, reservation, reservation["status"] | taken)
            elif not self.schedules:
                continue
            bound = {**pod, "spec": {**pod["spec"], "nodeName": node}}
            self.store.replace(PODS, bound)

    def _put(self, collection: str, item: Json, status: Json) -> None:
        self.store.replace(collection, {**item, "status": {**item.get("status", {}), **status}})


class Server(Transport):
    """The API server as one process reaches it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.calls: list[Call] = []  # without lists and watches
        self.kill_at: int | None = None  # number of the call at which the process dies
        self.after = False  # the server has carried that call out
        self.dead = False
        self.script: Script = lambda call: None

    async def exchange(self, call: Call) -> bytes:
        await self._alive()
        listing = call.method == "GET" and not Place.of(call.path).name
        if not listing:
            self.calls.append(call)
        dies = not listing and self.kill_at == len(self.calls) - 1
        if dies and not self.after:
            self.dead = True
        await self._alive()
        try:
            answer = self.script(call) or self._answer(call)
        except Refused as err:
            status = {"kind": "Status", "reason": err.reason, "message": err.message}
            raise api_error(err.status, status, where=call.where) from None
        finally:
            self.dead = self.dead or dies
        await self._alive()
        return json.dumps(answer).encode()

    @asynccontextmanager
    async def stream(
        self, call: Call, silence: Callable[[], float]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        yield self._events(call)

    async def close(self) -> None:
        """There are no connections."""

    async def _alive(self) -> None:
        if self.dead:
            await asyncio.Event().wait()

    async def _events(self, call: Call) -> AsyncIterator[bytes]:
        store, since = self._world.store, int(call.query["resourceVersion"])
        wake = store.subscribe()
        while True:
            await self._alive()
            wake.clear()
            for event in [one for one in store.history if one.version > since]:
                since = event.version
                if event.collection == call.path:
                    yield json.dumps({"type": event.type, "object": event.object}).encode() + b"\n"
            await wake.wait()

    def _answer(self, call: Call) -> Json:
        world, place = self._world, Place.of(call.path)
        store, body = world.store, json.loads(call.body) if call.body else {}
        if call.method != "GET":
            what = place.collection.rsplit("/", 1)[1]
            world.writes.append(" ".join(filter(None, (call.method, what, place.subresource))))
        match call.method:
            case "GET" if not place.name:
                metadata = {"resourceVersion": str(store.version)}
                return {"kind": "List", "metadata": metadata, "items": store.all(place.collection)}
            case "GET":
                return store.get(place.collection, place.key)
            case "POST" if place.subresource == "eviction":
                return self._end(place, body.get("deleteOptions") or {})
            case "POST":
                body["metadata"]["creationTimestamp"] = time_text(world.clock.wall())
                return store.create(place.collection, body)
            case "PATCH":
                return self._patch(call, place, body)
            case "DELETE" if place.collection == PODS:
                return self._end(place, body)
        assert call.method == "DELETE", call
        uid = (body.get("preconditions") or {}).get("uid", "")
        return store.delete(place.collection, place.key, uid)

    def _end(self, place: Place, options: Json) -> Json:
        """Accept the end of a pod: it is there for its grace period."""
        world, pod = self._world, self._world.store.get(PODS, place.key)
        uid = pod["metadata"]["uid"]
        assert options["preconditions"]["uid"], "an eviction of whichever pod has the name"
        world.asked[uid] += 1
        if options["preconditions"]["uid"] != uid:
            raise Refused(409, "Conflict", "the UID in the precondition does not match")
        world.evictions[uid] += 1
        leaving = {**pod["metadata"], "deletionTimestamp": time_text(world.clock.wall())}
        world.store.replace(PODS, {**pod, "metadata": leaving})
        return {"kind": "Status", "status": "Success"}

    def _patch(self, call: Call, place: Place, patch: Any) -> Json:
        store = self._world.store
        old = store.get(place.collection, place.key)
        is_json = call.content_type == "application/json-patch+json"
        new = json_patch(old, patch) if is_json else merge_patch(old, patch)
        if place.subresource == "status":
            new = {**old, "status": new.get("status")}
        elif place.collection in (JOBS, RESERVATIONS):
            new = {**new, **({"status": old["status"]} if "status" in old else {})}
        return store.replace(place.collection, new)


class Process:
    """One process of koord-descheduler with MigrationController in its profiles."""

    def __init__(
        self,
        world: World,
        *,
        clock_off: float = 0.0,
        profiles: tuple[str, ...] = ("p",),
        identity: str = "koordinator-system/koord-descheduler",
        **args: Any,
    ) -> None:
        self._world = world
        self.clock: Clock = Shifted(world.clock, clock_off)  # type: ignore[assignment]
        self.server = Server(world)
        self.events = Events()
        self.exposition = CollectorRegistry()
        self.cluster = make_cluster()
        self.cluster.workloads.put(
            Workload(kind="ReplicaSet", namespace="default", name="rs", uid="uid-rs",
                     replicas=world.replicas)
        )  # fmt: skip
        self.services = Services(
            client=ApiClient(self.server, self.clock, draw=lambda: 0.0),
            events=self.events,
            informers=None,  # type: ignore[arg-type]
            cluster=self.cluster,
            decisions=Decisions(),
            migrations=Migrations(),
            clock=self.clock,
            metrics=FrameworkMetrics(self.exposition),
            identity=identity,
        )
        self.plugins = [self.plugin(name, **args) for name in profiles]
        self._decoder, self._fed = Decoder(reads_of(MigrationController)), 0
        self._stop = Stop(self.clock)
        self._task: asyncio.Task[None] | None = None

    def plugin(self, profile: str = "p", **args: Any) -> MigrationController:
        """The plugin of a profile."""
        handle = Handle(
            profile=profile,
            services=self.services,
            dry_run=False,
            node_selector=None,
            runner=None,  # type: ignore[arg-type]
            evictor=None,  # type: ignore[arg-type]
        )
        quick: Json = {
            "object_limiters": {"workload": ObjectLimiter(duration=0.0)},
            "max_migrating_per_node": 0,
            "skip_check_expected_replicas": True,
        }
        return MigrationController(MigrationControllerArgs(**{**quick, **args}), handle)

    @property
    def control(self) -> MigrationControl:
        """The part that all profiles share."""
        return self.plugins[0]._control

    def start(self) -> None:
        work = self.services.shared.run(self._stop, self.clock, Health())
        self._task = asyncio.create_task(work, name="descheduler")

    def feed(self) -> None:
        """Let the cluster state see what the pods' watch has shown."""
        if self.server.dead:
            return
        for event in self._world.store.history[self._fed :]:
            if event.collection != PODS:
                continue
            pod = self._decoder.object(POD, json.dumps(event.object).encode())
            if event.type == "DELETED":
                self.cluster.remove(POD, pod.key, pod.uid)
            else:
                self.cluster.put(POD, pod)
        self._fed = len(self._world.store.history)

    async def evict(self, name: str = "web-1", *, plugin: int = 0, reason: str = "hot") -> bool:
        pod = self.cluster.pod(f"default/{name}")
        assert pod is not None
        return await self.plugins[plugin].evict(pod, EvictOptions(plugin_name="T", reason=reason))

    async def stop(self) -> None:
        """End as a process does that has lost its lead."""
        self._stop.set()
        await self._end()

    async def kill(self) -> None:
        """End without another request."""
        self.server.dead = True
        await self._end(cancel=True)

    async def _end(self, *, cancel: bool = False) -> None:
        if self._task is None:
            return
        if cancel:
            self._task.cancel()
        await asyncio.wait({self._task})
        self._task = None
        if self in self._world.processes:
            self._world.processes.remove(self)


def ending(job: Json) -> tuple[str, str]:
    """Phase and reason of a job."""
    status = job.get("status") or {}
    return status.get("phase", ""), status.get("reason", "")


def _true(kind: str, reason: str = "") -> Json:
    return {"type": kind, "status": "True", "reason": reason}


def _is_ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
