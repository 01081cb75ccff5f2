"""Gangs as others see them: statuses of PodGroups, endpoints, advice."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from koord.api.elasticquota import quantity_text
from koord.api.podgroup import (
    API_VERSION,
    KIND,
    PLURAL,
    Mode,
    PodGroup,
    is_of_pod_group,
    read_pod_group,
)
from koord.plugin import InvalidObject, LastingFailure, PartHealth, Stop, get_logger
from koord.plugin.kube import (
    ApiClient,
    ApiResource,
    Conflict,
    Event,
    EventType,
    KubeError,
    NotFound,
    ObjectRef,
)
from koord_scheduler.plugin import ClusterPod, Handle, Status
from koord_scheduler.plugin.koordinator import NoGroupPlan, PluginRequest
from koord_scheduler_plugins.coscheduling.gangs import Gang, Gangs, in_order, what_is_missing
from koord_scheduler_plugins.coscheduling.rounds import Rounds

PENDING, PRE_SCHEDULING, SCHEDULING, SCHEDULED = (
    "Pending",
    "PreScheduling",
    "Scheduling",
    "Scheduled",
)
RUNNING, FINISHED, FAILED = "Running", "Finished", "Failed"
TERMINAL = (FINISHED, FAILED)
PAUSE = 0.2  # seconds between two writes: at most five a second
RETRY = 10.0  # seconds after an error

log = get_logger("koord_scheduler.coscheduling")


@dataclass(frozen=True, slots=True)
class MemberCounts:
    """The pods of a gang, finished ones too."""

    members: int = 0
    scheduled: int = 0  # those that have a node
    running: int = 0
    succeeded: int = 0
    failed: int = 0


def count_members(pods: Iterable[ClusterPod], is_assumed: Callable[[str], bool]) -> MemberCounts:
    """Count pods by phase; one that is only assumed to be on its node is not scheduled yet."""
    found = list(pods)
    phases = [pod.phase for pod in found]
    return MemberCounts(
        len(found),
        sum(bool(pod.node) and not is_assumed(pod.uid) for pod in found),
        phases.count("Running"),
        phases.count("Succeeded"),
        phases.count("Failed"),
    )


def next_phase(phase: str, minimum: int, counts: MemberCounts) -> str:
    """Return the phase that follows from the pods; a terminal one stays."""
    if phase in TERMINAL:
        return phase
    if not phase:
        return PENDING
    if phase == PENDING:
        return PRE_SCHEDULING if 0 < minimum <= counts.members else PENDING
    if not counts.members:
        return PENDING
    found = SCHEDULING if counts.scheduled < minimum else SCHEDULED
    if found == SCHEDULED and counts.succeeded + counts.running >= minimum:
        found = RUNNING
    if counts.failed and counts.failed + counts.running + counts.succeeded >= minimum:
        found = FAILED
    return FINISHED if counts.succeeded >= minimum else found


def status_patch(
    group: PodGroup, counts: MemberCounts, owners: str, now: float
) -> Mapping[str, object]:
    """Return the fields of the status that have changed; empty: none.

    owners: of the first member, for occupiedBy. now: Unix seconds.
    """
    old, minimum = group.status, group.spec.min_members
    before = str(old.get("phase") or "")
    if before in TERMINAL:
        return {}
    phase = next_phase(before, minimum, counts)
    wanted: dict[str, object] = {"phase": phase}
    if phase == PRE_SCHEDULING and owners:
        wanted["occupiedBy"] = owners
    if before and before != PENDING and counts.members:
        wanted["scheduled"] = counts.scheduled
        wanted["running"] = counts.running
        wanted["succeeded"] = counts.succeeded
        wanted["failed"] = counts.failed
    if phase == SCHEDULING and not old.get("scheduleStartTime"):
        wanted["scheduleStartTime"] = datetime.fromtimestamp(int(now), UTC).strftime(
            "%Y-%m-%dT%H:%M:%SZ"
        )
    return {key: value for key, value in wanted.items() if (old.get(key) or 0) != value}


def owners_of(pod: ClusterPod) -> str:
    """The owners of a member, as occupiedBy has them."""
    return ",".join(sorted(f"{pod.namespace}/{one.name}" for one in pod.owners))


class PodGroupStatuses:
    """Writes the statuses of PodGroups while this process leads. One event loop."""

    def __init__(
        self,
        client: ApiClient,
        resource: ApiResource,
        keys: Callable[[], Iterable[str]],
        patch_of: Callable[[str], tuple[PodGroup, Mapping[str, object]] | None],
    ) -> None:
        """keys returns all PodGroups, by namespace/name.

        patch_of returns one of them with what is to be written; None: it has gone.
        """
        self._keys = keys
        self._client = client
        self._resource = resource
        self._patch_of = patch_of
        self._changed: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._failure = LastingFailure(log)

    def note(self, key: str) -> None:
        """Something has changed about a PodGroup or its pods."""
        self._changed[key] = None
        self._wake.set()

    async def run(self, stop: Stop) -> None:
        """Write statuses until stop; another replica may have left some unwritten."""
        for key in tuple(self._keys()):
            self.note(key)
        while not stop.is_set():
            if not self._changed:
                self._wake.clear()
                await stop.bound(self._wake.wait())
                continue
            key = next(iter(self._changed))
            del self._changed[key]
            await stop.sleep(await self._sync(key))

    async def wait_ready(self) -> None:
        """No cycle waits for it."""

    def health(self) -> PartHealth:
        """Degraded while statuses cannot be written."""
        return self._failure.health()

    async def _sync(self, key: str) -> float:
        """Write a status if something of it has changed; return seconds to wait afterwards."""
        found = self._patch_of(key)
        if found is None or not found[1]:
            return 0.0
        group, patch = found
        path = self._resource.object(group.name, namespace=group.namespace)
        try:
            await self._client.merge_patch(
                path, {"metadata": {"uid": group.uid}, "status": dict(patch)}
            )
        except (NotFound, Conflict):
            return PAUSE  # it has gone, or another one has its name: the watch says so
        except KubeError as err:
            reason = f"status of PodGroup {key} cannot be written: {err}"
            self._failure.failed("pod_group.patch_failed", reason, pod_group=key, error=str(err))
            self._changed[key] = None
            return RETRY
        self._failure.ended("pod_group.patch_ok", pod_group=key)
        return PAUSE


POD_GROUPS = ApiResource(API_VERSION, PLURAL)
MAX_GANGS = 1000  # in one answer
_MAX_REMEMBERED = 1000  # PodGroups of which it was reported what is wrong with them


class PodGroupReader:
    """Reads PodGroups, and says on the object what is wrong with one, by an event."""

    def __init__(self, handle: Handle) -> None:
        self._events = handle.services.events
        self._profile = handle.profile
        self._reported: dict[tuple[str, str], str] = {}  # by key and uid

    def read(self, item: Mapping[str, Any]) -> PodGroup:
        """Return a PodGroup from its JSON.

        Raises:
            InvalidObject: it makes no gang. The last good version of it counts.
        """
        try:
            found = read_pod_group(item)
        except InvalidObject as err:
            self._report(item, str(err))
            raise
        if found.problem:
            if self._report(item, found.problem):
                log.warning("pod_group.invalid", pod_group=found.key, error=found.problem)
        else:
            self._reported.pop((found.key, found.uid), None)
        return found

    def _report(self, item: Mapping[str, Any], problem: str) -> bool:
        """Emit an event; return whether this was not reported already."""
        meta = item["metadata"]
        name, namespace = str(meta.get("name", "")), str(meta.get("namespace", ""))
        uid = str(meta.get("uid", ""))
        key = f"{namespace}/{name}", uid
        if self._reported.get(key) == problem:
            return False
        if len(self._reported) >= _MAX_REMEMBERED:
            self._reported.clear()
        self._reported[key] = problem
        about = ObjectRef(API_VERSION, KIND, name, namespace, uid)
        self._events.emit(
            Event(about, EventType.WARNING, "InvalidPodGroup", problem[:1000], self._profile)
        )
        return True


class GangServing:
    """Answers questions about the gangs of a profile, and has their PodGroups say how they are."""

    def __init__(self, handle: Handle, gangs: Gangs, rounds: Rounds) -> None:
        self._handle = handle
        self._gangs = gangs
        self._rounds = rounds
        self._pods: dict[str, dict[str, ClusterPod]] = {}  # of PodGroups, finished ones too
        self._statuses: PodGroupStatuses | None = None

    def pod_changed(self, gang: str, pod: ClusterPod, *, gone: bool) -> None:
        """Count a pod of a PodGroup."""
        if not is_of_pod_group(pod.labels):
            return
        pods = self._pods.setdefault(gang, {})
        if gone:
            pods.pop(pod.key, None)
        else:
            pods[pod.key] = pod
        if not pods:
            del self._pods[gang]
        self.pod_group_changed(gang)

    def pod_group_changed(self, key: str) -> None:
        """Queue a PodGroup for a look at its status."""
        if self._statuses is not None:
            self._statuses.note(key)

    def new_statuses(self) -> PodGroupStatuses:
        """Make the writer of statuses, which works while this process leads."""
        client, groups = self._handle.services.client, self._gangs.pod_groups
        self._statuses = PodGroupStatuses(client, POD_GROUPS, groups.keys, self._status_patch)
        return self._statuses

    def _status_patch(self, key: str) -> tuple[PodGroup, Mapping[str, object]] | None:
        group = self._gangs.pod_groups.get(key)
        if group is None:
            return None
        pods = in_order(self._pods.get(key, {}).values())
        counts = count_members(pods, self._is_assumed)
        owners = owners_of(pods[0]) if pods else ""
        return group, status_patch(group, counts, owners, self._handle.services.clock.wall())

    def _is_assumed(self, uid: str) -> bool:
        return self._handle.scheduler().is_assumed(uid)

    def advice(self, pod: ClusterPod) -> Iterable[str]:
        """Say what its gang group lacks, and which members are held back or wait on their nodes."""
        gang = self._rounds.gang(pod)
        if gang is None:
            return
        group = self._gangs.group(gang)
        if self._rounds.once_satisfied(gang, group):
            return
        missing = list(what_is_missing(group))
        yield from missing
        gated = 0
        for one in group.values():
            if one is None:
                continue
            count = sum(bool(each.scheduling_gates) for each in self._gangs.pods((one,)))
            gated += count
            if count:
                yield f"gang {one.id}: {count} of its pods have scheduling gates"
            waiting = len(self._rounds.waiting(one.id))
            if waiting:
                yield f"gang {one.id}: {waiting} of its pods wait on their nodes for the others"
        if not missing and not gated:
            yield from self._lacking_room(pod)

    def _lacking_room(self, pod: ClusterPod) -> Iterable[str]:
        """Say how many of the pods have nodes together, and how large a node for the rest is."""
        members = self._rounds.members_of(pod)
        if isinstance(members, Status):
            return
        plan = self._rounds.try_plan(members, self._handle.services.cluster.view(), None)
        if not isinstance(plan, NoGroupPlan) or plan.statuses is None:
            return  # it has room, or PreFilter has rejected a pod: no node would help
        count = len(members.needed)
        yield f"{plan.placed} of {count} pods that its gang group needs have nodes together"
        left: dict[str, list[int]] = {}
        for one in members.needed:
            for name, amount in one.spec.requests:
                left.setdefault(name, []).append(amount)
        rest = {  # whichever of them have no node: the largest
            name: sum(sorted(amounts, reverse=True)[: count - plan.placed])
            for name, amounts in left.items()
        }
        text = ",".join(f"{name}:{quantity_text(name, rest[name])}" for name in sorted(rest))
        if text:
            yield f"its gang group would have room with a node with {text} free"

    async def answer_gang(self, request: PluginRequest) -> object:
        key = f"{request.parameters['namespace']}/{request.parameters['name']}"
        gang = self._gangs.gang(key)
        if gang is None:
            raise LookupError(f"cannot find gang {key}")
        return self._summary(gang)

    async def answer_gangs(self, request: PluginRequest) -> object:
        found = {one: self._gangs.gang(one) for one in self._gangs.known()[:MAX_GANGS]}
        return {one: self._summary(gang) for one, gang in found.items() if gang is not None}

    def _summary(self, gang: Gang) -> Mapping[str, object]:
        """A gang as Koordinator's endpoint has it; sets are objects with empty values."""
        spec, waiting = gang.spec, self._rounds.waiting(gang.id)
        nothing: Mapping[str, object] = {}
        bound = {key: nothing for key, node in gang.members.items() if node and key not in waiting}
        pending = {key: nothing for key, node in gang.members.items() if not node}
        return {
            "name": gang.id,
            "waitTime": int(gang.wait * 1e9),
            "mode": str(Mode.STRICT if spec is None else spec.mode),
            "gangMatchPolicy": str(gang.policy),
            "minRequiredNumber": 0 if spec is None else spec.min_members,
            "totalChildrenNum": 0 if spec is None else spec.total,
            "gangGroup": list(gang.group),
            "children": dict.fromkeys(gang.members, nothing),
            "pendingChildren": pending,
            "waitingForBindChildren": dict.fromkeys(waiting, nothing),
            "boundChildren": bound,
            "onceResourceSatisfied": bool(bound),
            "gangFrom": "GangFromPodGroupCrd"
            if spec is not None and spec.from_pod_group
            else "GangFromPodAnnotation",
            "hasGangInit": spec is not None,
        }
