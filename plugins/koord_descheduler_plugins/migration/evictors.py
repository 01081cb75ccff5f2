"""The ways in which a pod leaves: eviction API, deletion, or an annotation for another agent."""

import json
from collections.abc import Mapping
from typing import Any

from koord.api.eviction import EvictionAnswer, EvictionOutcome
from koord.api.podmigrationjob import SOFT_EVICTION, JobPod, PodMigrationJob, time_text
from koord_descheduler.plugin import (
    PODS,
    Deadline,
    EvictionPolicy,
    KoordError,
    KubeError,
    PatchRefused,
    PodEvictions,
    Services,
    read_refusal,
)

PATIENCE = 10.0  # seconds for the whole of one request

Json = dict[str, Any]


class Refused(KoordError):
    """The pod was not evicted now, or that is not known; ask again later."""

    def __init__(self, answer: EvictionAnswer) -> None:
        super().__init__(answer.message or answer.outcome.value)
        self.certain = answer.certain  # it was not evicted
        self.retry_after = answer.retry_after  # seconds, as the server wants it


class Evictors:
    """Asks for evictions of exactly one pod: its uid is a precondition of each request."""

    def __init__(self, services: Services, evictions: PodEvictions) -> None:
        self._client = services.client
        self._clock = services.clock
        self._evictions = evictions

    async def evict(self, pod: Json, job: PodMigrationJob, policy: EvictionPolicy) -> bool:
        """Ask once, for a pod as the server has it; return whether it was there to be asked for.

        Raises:
            Refused: the server does not allow it now, or did not answer.
        """
        if policy is EvictionPolicy.EVICTION:
            answer = await self._evictions.evict(_reference(pod), options=job.delete_options)
        else:
            answer = await self._otherwise(pod, job, policy)
        if answer.outcome is EvictionOutcome.GONE:
            return False
        if answer.outcome is not EvictionOutcome.EVICTED:
            raise Refused(answer)
        return True

    async def _otherwise(
        self, pod: Json, job: PodMigrationJob, policy: EvictionPolicy
    ) -> EvictionAnswer:
        reference = _reference(pod)
        path = PODS.object(reference.name, namespace=reference.namespace)
        try:
            async with Deadline(self._clock, f"{policy} of {path}") as deadline:
                deadline.enter("an answer", PATIENCE)
                if policy is EvictionPolicy.DELETE:
                    options = job.delete_options
                    await self._client.delete(path, uid=reference.uid, options=options)
                elif SOFT_EVICTION not in (pod["metadata"].get("annotations") or {}):
                    await self._client.json_patch(path, self._annotation(pod, job))
        except PatchRefused as err:  # another pod has the name, or other annotations
            return EvictionAnswer(EvictionOutcome.FAILED, str(err))
        except KubeError as err:
            return read_refusal(err)
        return EvictionAnswer(EvictionOutcome.EVICTED)

    def _annotation(self, pod: Json, job: PodMigrationJob) -> list[Json]:
        """The patch by which another agent is asked to end a pod."""
        text = {
            "timestamp": time_text(self._clock.wall()),
            **({"deleteOptions": dict(job.delete_options)} if job.delete_options else {}),
            "initiator": job.trigger,
            "reason": job.evict_reason,
        }
        metadata: Mapping[str, Any] = pod["metadata"]
        version = metadata["resourceVersion"]
        pointer = f"/metadata/annotations/{SOFT_EVICTION.replace('/', '~1')}"
        parent: list[Json] = [{"op": "add", "path": "/metadata/annotations", "value": {}}]
        return [
            {"op": "test", "path": "/metadata/uid", "value": metadata["uid"]},
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            *([] if metadata.get("annotations") else parent),
            {"op": "add", "path": pointer, "value": json.dumps(text, separators=(",", ":"))},
        ]


def _reference(pod: Json) -> JobPod:
    metadata = pod["metadata"]
    return JobPod(metadata["namespace"], metadata["name"], metadata["uid"])
