"""The Reservation of a migration, as it is created.

Source: Koordinator, pkg/descheduler/controllers/migration/reservation.
"""

import copy
from collections.abc import Mapping
from typing import Any

from koord.api.podmigrationjob import API_VERSION, PodMigrationJob
from koord.api.podmigrationjob import KIND as JOB_KIND
from koord.api.reservations import CREATED_BY_LABEL, KIND, ORDER_LABEL

CREATED_BY = "koord-descheduler"
Json = dict[str, Any]

_NOT_OF_A_TEMPLATE = (
    "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generation",
    "managedFields", "resourceVersion", "selfLink",
)  # fmt: skip


def reservation_name(job: PodMigrationJob) -> str:
    """The name of a job's Reservation: that of its template, by default the job's uid."""
    metadata = (job.template or {}).get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return name if isinstance(name, str) and name else job.uid


def is_waiting_for_a_node(pod: Mapping[str, Any]) -> bool:
    """Whether the scheduler has found no node for a pod, as JSON, so far."""
    status = pod.get("status") or {}
    conditions = status.get("conditions") or ()
    return status.get("phase") == "Pending" and any(
        one.get("type") == "PodScheduled" and one.get("status") == "False" for one in conditions
    )


def reservation_body(job: PodMigrationJob, pod: Mapping[str, Any], ttl: str, now: float) -> Json:
    """Return the Reservation for a pod, which is JSON of the API server; now is Unix seconds.

    ttl is a duration as Go writes it. The job owns the Reservation, so that it ends with the job
    even when no descheduler is there to delete it.
    """
    template = job.template or {}
    metadata: Json = copy.deepcopy(dict(template.get("metadata") or {}))  # type: ignore[call-overload]
    spec: Json = copy.deepcopy(dict(template.get("spec") or {}))  # type: ignore[call-overload]
    metadata["name"] = reservation_name(job)
    labels = {CREATED_BY_LABEL: CREATED_BY, ORDER_LABEL: str(int(now * 1000))}
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    metadata["ownerReferences"] = [
        {"apiVersion": API_VERSION, "kind": JOB_KIND, "name": job.name, "uid": job.uid}
    ]
    spec.setdefault("template", _pod_template(pod))
    _keep_off(spec["template"], (pod.get("spec") or {}).get("nodeName") or "")
    spec.setdefault("owners", [_owner(pod)])
    spec["allocateOnce"] = True
    if not spec.get("ttl") and not spec.get("expires"):
        spec["ttl"] = ttl
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def _pod_template(pod: Mapping[str, Any]) -> Json:
    metadata = {
        key: value for key, value in pod["metadata"].items() if key not in _NOT_OF_A_TEMPLATE
    }
    spec = {key: value for key, value in (pod.get("spec") or {}).items() if key != "nodeName"}
    return {"metadata": copy.deepcopy(metadata), "spec": copy.deepcopy(spec)}


def _owner(pod: Mapping[str, Any]) -> Json:
    """Those that may have the room: the pod itself while it has no node, else its successors."""
    metadata = pod["metadata"]
    if is_waiting_for_a_node(pod):
        reference = {key: metadata[key] for key in ("uid", "name", "namespace") if key in metadata}
        return {"object": {**reference, "kind": "Pod"}}
    owners = metadata.get("ownerReferences") or ()
    controller = next(one for one in owners if one.get("controller"))
    return {"controller": {**controller, "namespace": metadata.get("namespace", "default")}}


def _keep_off(template: Json, node: str) -> None:
    """Add to each required node affinity term that it is not this node."""
    if not node:
        return
    elsewhere = {"key": "metadata.name", "operator": "NotIn", "values": [node]}
    spec = template.setdefault("spec", {})
    affinity = spec["affinity"] = dict(spec.get("affinity") or {})
    by_node = affinity["nodeAffinity"] = dict(affinity.get("nodeAffinity") or {})
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    required = by_node[key] = dict(by_node.get(key) or {})
    terms = required.get("nodeSelectorTerms") or [{}]
    required["nodeSelectorTerms"] = [
        {**term, "matchFields": [*(term.get("matchFields") or ()), elsewhere]} for term in terms
    ]
