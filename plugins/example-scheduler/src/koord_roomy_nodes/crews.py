"""Crews: the pods of a crew are bound together, once as many as it needs have a node."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from koord.plugin import OK, InvalidObject, KoordError, PartHealth, Stop, get_logger
from koord.plugin.args import FieldError, Seconds, invalid, takes_args
from koord.plugin.kube import MERGE_PATCH, ApiResource
from koord_scheduler.plugin import (
    POD,
    Action,
    ClusterEvent,
    ClusterPod,
    CycleState,
    EnqueueExtensions,
    EventResource,
    FollowedResource,
    Handle,
    HintedEvent,
    PermitPlugin,
    PreEnqueuePlugin,
    QueuedPod,
    QueueingHint,
    QueueSortPlugin,
    ReservePlugin,
    Services,
    Status,
    Wait,
    claims_pods_with,
)
from koord_scheduler.plugin.koordinator import APIServiceProvider, Endpoint, PluginRequest

LABEL = "example.com/crew"  # of pods: the name of a Crew in their namespace
CREWS = ApiResource("example.com/v1", "crews")
MAX_SIZE = 1000
STATUS_INTERVAL = 5.0  # seconds

log = get_logger("koord_roomy_nodes.crews")


@dataclass(frozen=True, slots=True)
class Crew:
    """A Crew: how many pods are to be bound together."""

    key: str  # namespace/name
    size: int


def read_crew(found: Mapping[str, Any]) -> Crew:
    """Return what is kept of a Crew. Raises InvalidObject: its last good version counts."""
    meta, size = found["metadata"], (found.get("spec") or {}).get("size")
    key = f"{meta['namespace']}/{meta['name']}"
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MAX_SIZE:
        raise InvalidObject(f"Crew {key}: spec.size", wanted=f"1 to {MAX_SIZE}", found=size)
    return Crew(key, size)


def crew_of(pod: ClusterPod) -> str:
    """The key of a pod's crew; "": it has none."""
    name = pod.labels.get(LABEL)
    return f"{pod.namespace}/{name}" if name else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CrewsArgs:
    """How long pods wait for each other."""

    wait: Seconds = 60.0  # that a pod keeps its node for the others

    def validate(self) -> Iterator[FieldError]:
        if not 1 <= self.wait <= 900:
            yield invalid(("wait",), self.wait, "wanted 1s to 15m")


@takes_args(CrewsArgs)
@claims_pods_with(LABEL)
class Crews(PreEnqueuePlugin, ReservePlugin, PermitPlugin, EnqueueExtensions, APIServiceProvider):
    """Gates a pod until its crew is whole, and lets it wait until all of them have a node."""

    def __init__(self, args: CrewsArgs, handle: Handle) -> None:
        self._wait, self._services = args.wait, handle.services
        self._pods: dict[str, dict[str, ClusterPod]] = {}  # not finished; by uid, by crew
        self._placed: dict[str, set[str]] = {}  # uids of pods with a node, by crew
        self.crews: FollowedResource[Crew] = handle.services.custom_resources.follow(
            CREWS, read_crew, without="pods of crews are not tried"
        )
        handle.services.changes.subscribe(POD, self._pod_changed)
        self.reports = handle.services.shared.get("crews", lambda: CrewReports(handle.services))

    def pre_enqueue(self, pod: ClusterPod) -> Status | None:
        lacks = self._lacks(crew_of(pod))
        return Status.unschedulable(lacks) if lacks else None

    def events_to_register(self) -> Iterable[HintedEvent]:
        crew = ClusterEvent("crews.v1.example.com", Action.ADD | Action.UPDATE)
        room = ClusterEvent(EventResource.ASSIGNED_POD, Action.DELETE)
        return HintedEvent(crew, self._crew_helps), HintedEvent(room)

    def reserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        crew = crew_of(pod)
        if crew:
            placed = self._placed.setdefault(crew, set())
            placed.add(pod.uid)
            self._services.activate([uid for uid in self._pods[crew] if uid not in placed])
        return None

    def unreserve(self, state: CycleState, pod: ClusterPod, node_name: str) -> None:
        """Without this pod, others that wait would wait in vain."""
        crew = crew_of(pod)
        if pod.uid not in self._placed.get(crew, ()):
            return
        self._placed[crew].discard(pod.uid)
        for other in self._services.waiting:
            if crew_of(other.pod) == crew:
                other.reject(self.name, f"pod {pod.name} of the crew has lost its node")

    def permit(self, state: CycleState, pod: ClusterPod, node_name: str) -> Wait | Status | None:
        crew = crew_of(pod)
        if not crew:
            return None
        found, placed = self.crews.objects.get(crew), self._placed[crew]
        if found is None or len(placed) < found.size:
            return Wait(self._wait)
        for uid in placed:
            waiting = self._services.waiting.get(uid)
            if waiting is not None:
                waiting.allow(self.name)
        self.reports.note(crew, len(placed))
        return None

    def endpoints(self) -> Iterable[Endpoint]:
        """GET /apis/v1/plugins/Crews/crew/NAMESPACE/NAME."""
        return (Endpoint("GET", "/crew/{namespace}/{name}", self._answer),)

    async def _answer(self, request: PluginRequest) -> object:
        key = f"{request.parameters['namespace']}/{request.parameters['name']}"
        size, placed = self.crews.objects[key].size, len(self._placed.get(key, ()))
        return {"size": size, "pods": len(self._pods.get(key, ())), "placed": placed}

    def _lacks(self, crew: str) -> str:
        """Return what a crew still needs before it is tried; "": nothing."""
        if not crew:
            return ""
        found, pods = self.crews.objects.get(crew), len(self._pods.get(crew, ()))
        if found is None:
            return f"crew {crew} does not exist"
        return f"crew {crew} has {pods} of {found.size} pods" if pods < found.size else ""

    def _crew_helps(self, pod: ClusterPod, old: object, new: object) -> QueueingHint:
        crew = crew_of(pod)
        is_ours = isinstance(new, Crew) and new.key == crew
        return QueueingHint.SKIP if not is_ours or self._lacks(crew) else QueueingHint.QUEUE

    def _pod_changed(self, old: ClusterPod | None, new: ClusterPod | None) -> None:
        """Keep who is there; a pod that makes its crew whole wakes the others."""
        if old is not None and (new is None or new.finished or new.uid != old.uid):
            crew = crew_of(old)
            self._pods.get(crew, {}).pop(old.uid, None)
            self._placed.get(crew, set()).discard(old.uid)
            if not self._pods.get(crew):  # no entry stays of a crew that has gone
                self._pods.pop(crew, None)
                self._placed.pop(crew, None)
        if new is None or new.finished or not (crew := crew_of(new)):
            return
        self._pods.setdefault(crew, {})[new.uid] = new
        if new.node:
            self._placed.setdefault(crew, set()).add(new.uid)
        elif old is None and not self._lacks(crew):
            self._services.activate(self._pods[crew].keys() - {new.uid})


class CrewSort(QueueSortPlugin):
    """By priority; of one priority first pods without a crew, then crew by crew, the oldest first.

    All profiles have the same QueueSort plugin: it takes the place of PrioritySort.
    """

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        return self._key(first) < self._key(second)

    def _key(self, queued: QueuedPod) -> tuple[int, str, float]:
        return -(queued.pod.priority or 0), crew_of(queued.pod), queued.timestamp


class CrewReports:
    """Writes into the status of each Crew how many pods were placed, while this process leads."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._due: dict[str, int] = {}  # pods by crew

    def note(self, crew: str, placed: int) -> None:
        self._due[crew] = placed

    async def run(self, stop: Stop) -> None:
        async for _ in stop.every(STATUS_INTERVAL):
            await self.write()

    async def wait_ready(self) -> None:
        """It always is."""

    def health(self) -> PartHealth:
        return OK

    async def write(self) -> None:
        """Write what is due; what fails is written the next time."""
        for crew, placed in tuple(self._due.items()):
            namespace, name = crew.split("/")
            path = CREWS.object(name, namespace=namespace, subresource="status")
            try:
                await self._services.client.patch(path, {"status": {"placed": placed}}, MERGE_PATCH)
            except KoordError as err:
                log.warning("crew.status_failed", crew=crew, error=str(err))
            else:
                if self._due[crew] == placed:
                    del self._due[crew]
