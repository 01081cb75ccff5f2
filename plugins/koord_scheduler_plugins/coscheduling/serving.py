"""What people and other components see of gangs: statuses of PodGroups, endpoints, advice."""

from collections.abc import Iterable, Mapping
from typing import Any

from koord.api.podgroup import (
    API_VERSION,
    KIND,
    PLURAL,
    Mode,
    PodGroup,
    is_of_pod_group,
    read_pod_group,
)
from koord.plugin import InvalidObject, get_logger
from koord.plugin.kube import ApiResource, Event, EventType, ObjectRef
from koord_scheduler.plugin import ClusterPod, Handle
from koord_scheduler.plugin.koordinator import PluginRequest
from koord_scheduler_plugins.coscheduling.gangs import Gang, Gangs, in_order, what_is_missing
from koord_scheduler_plugins.coscheduling.podgroup_status import (
    PodGroupStatuses,
    count_members,
    owners_of,
    status_patch,
)
from koord_scheduler_plugins.coscheduling.rounds import Rounds

POD_GROUPS = ApiResource(API_VERSION, PLURAL)
MAX_GANGS = 1000  # in one answer
_MAX_REMEMBERED = 1000  # PodGroups of which it was reported what is wrong with them

log = get_logger("koord_scheduler.coscheduling")


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
        """Have the status of a PodGroup looked at."""
        if self._statuses is not None:
            self._statuses.note(key)

    def new_statuses(self) -> PodGroupStatuses:
        """What writes statuses while this process leads."""
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
        """What its gang group lacks, and which members are held back or wait on their nodes."""
        gang = self._rounds.gang(pod)
        if gang is None:
            return
        group = self._gangs.group(gang)
        if self._rounds.once_satisfied(gang, group):
            return
        yield from what_is_missing(group)
        for one in group.values():
            if one is None:
                continue
            gated = sum(bool(each.scheduling_gates) for each in self._gangs.pods((one,)))
            if gated:
                yield f"gang {one.id}: {gated} of its pods have scheduling gates"
            waiting = len(self._rounds.waiting(one.id))
            if waiting:
                yield f"gang {one.id}: {waiting} of its pods wait on their nodes for the others"

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
