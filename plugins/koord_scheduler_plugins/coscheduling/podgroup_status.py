"""The status of PodGroups: which phase follows from their pods, and what writes it.

Source: Koordinator, pkg/scheduler/plugins/coscheduling/controller.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from koord.api.podgroup import PodGroup
from koord.plugin import LastingFailure, PartHealth, Stop, get_logger
from koord.plugin.kube import ApiClient, ApiResource, Conflict, KubeError, NotFound
from koord_scheduler.plugin import ClusterPod

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
