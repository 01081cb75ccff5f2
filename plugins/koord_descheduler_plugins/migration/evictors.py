"""The ways in which a pod leaves: eviction API, deletion, or an annotation for another agent."""

import json
from collections.abc import Mapping
from typing import Any

from koord.api.eviction import EvictionOutcome
from koord.api.podmigrationjob import SOFT_EVICTION, PodMigrationJob, time_text
from koord_descheduler.plugin import (
    PODS,
    ApiClient,
    ApiError,
    Clock,
    Deadline,
    EvictionPolicy,
    KoordError,
    KubeError,
    read_refusal,
)

PATIENCE = 10.0  # seconds for the whole of one request

Json = dict[str, Any]


class Refused(KoordError):
    """The pod was not evicted now, or that is not known; ask again later."""

    def __init__(self, message: str, *, certain: bool, retry_after: float | None) -> None:
        super().__init__(message)
        self.certain = certain  # it was not evicted
        self.retry_after = retry_after  # seconds, as the server wants it


class Evictors:
    """Asks for evictions of exactly one pod: its uid is a precondition of each request."""

    def __init__(self, client: ApiClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock

    async def evict(
        self, pod: Json, job: PodMigrationJob, policy: EvictionPolicy, why: str
    ) -> bool:
        """Ask once, for a pod as the server has it; return whether it was there to be asked for.

        Raises:
            Refused: the server does not allow it now, or did not answer.
        """
        metadata = pod["metadata"]
        path = PODS.object(metadata["name"], namespace=metadata["namespace"])
        try:
            async with Deadline(self._clock, f"{policy} of {path}") as deadline:
                deadline.enter("an answer", PATIENCE)
                await self._ask(path, pod, job, policy, why)
        except KubeError as err:
            answer = read_refusal(err)
            if answer.outcome is EvictionOutcome.GONE or _is_gone(err):
                return False
            raise Refused(
                answer.message or str(err), certain=answer.certain, retry_after=answer.retry_after
            ) from err
        return True

    async def _ask(
        self, path: str, pod: Json, job: PodMigrationJob, policy: EvictionPolicy, why: str
    ) -> None:
        metadata, options = pod["metadata"], dict(job.delete_options or {})
        bound = {**options, "preconditions": {"uid": metadata["uid"]}}
        if policy is EvictionPolicy.EVICTION:
            eviction = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
                "deleteOptions": bound,
            }
            await self._client.post(f"{path}/eviction", eviction)
        elif policy is EvictionPolicy.DELETE:
            await self._client.delete(path, uid=metadata["uid"], options=options)
        elif SOFT_EVICTION not in (metadata.get("annotations") or {}):
            await self._client.json_patch(path, self._soft_eviction(metadata, job, why))

    def _soft_eviction(
        self, metadata: Mapping[str, Any], job: PodMigrationJob, why: str
    ) -> list[Json]:
        text = {
            "timestamp": time_text(self._clock.wall()),
            **({"deleteOptions": dict(job.delete_options)} if job.delete_options else {}),
            "initiator": job.trigger,
            "reason": why,
        }
        pointer = f"/metadata/annotations/{SOFT_EVICTION.replace('/', '~1')}"
        parent: list[Json] = [{"op": "add", "path": "/metadata/annotations", "value": {}}]
        return [
            {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
            *([] if metadata.get("annotations") else parent),
            {"op": "add", "path": pointer, "value": json.dumps(text, separators=(",", ":"))},
        ]


def _is_gone(err: KubeError) -> bool:
    """Whether a patch was refused because another pod has the name by now."""
    return isinstance(err, ApiError) and err.status == 422 and "/metadata/uid" in err.message
