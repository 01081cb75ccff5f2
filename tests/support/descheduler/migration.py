"""Jobs, pods and Reservations of the tests."""

from typing import Any

from koord.api.podmigrationjob import (
    ConditionType,
    JobPhase,
    JobPod,
    JobReason,
    PodMigrationJob,
)
from koord.api.reservation import Reservation
from koord.cluster.facts import ClusterNode, ClusterPod, Workload
from koord.cluster.kinds import NODE, POD
from koord.cluster.state import ClusterState
from tests.support.clusters import read_pod

T0 = 1_790_000_000.0  # Unix seconds; when jobs of tests are created
Json = dict[str, Any]


def pod_json(
    name: str = "web-1",
    *,
    namespace: str = "default",
    node: str = "n1",
    owner: str = "rs",
    owner_kind: str = "ReplicaSet",
    ready: bool = True,
    phase: str = "Running",
    deleting: bool = False,
    uid: str = "",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    created: str = "2026-07-24T06:00:00Z",
    **spec: Any,
) -> Json:
    """A pod as the API server has it. owner "": it is bare."""
    metadata: Json = {
        "name": name,
        "namespace": namespace,
        "uid": uid or f"uid-{namespace}-{name}",
        "labels": labels or {},
        "annotations": annotations or {},
        "creationTimestamp": created,
    }
    if owner:
        reference = {"apiVersion": "apps/v1", "kind": owner_kind, "name": owner, "controller": True}
        metadata["ownerReferences"] = [{**reference, "uid": f"uid-{owner}"}]
    if deleting:
        metadata["deletionTimestamp"] = "2026-07-24T07:00:00Z"
    conditions = [{"type": "Ready", "status": str(ready)}]
    if not node:
        phase, unscheduled = "Pending", {"type": "PodScheduled", "status": "False"}
        conditions = [{"type": "Ready", "status": "False"}, unscheduled]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "nodeName": node,
            "schedulerName": "koord-scheduler",
            "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}],
            **spec,
        },
        "status": {"phase": phase, "conditions": conditions},
    }


def make_pod(*args: Any, **kwargs: Any) -> ClusterPod:
    """The same, as it is kept."""
    return read_pod(pod_json(*args, **kwargs))


def make_job(
    name: str = "job",
    *,
    pod: str = "web-1",
    namespace: str = "default",
    created: float = T0,
    passed: bool = True,
    phase: str = "",
    mode: str = "EvictDirectly",
    **rest: Any,
) -> PodMigrationJob:
    """A job of a test, for a pod of make_pod."""
    return PodMigrationJob(
        name=name,
        uid=f"uid-{name}",
        version="1",
        created=created,
        passed=passed,
        phase=phase,
        mode=mode,
        pod=JobPod(namespace, pod, f"uid-{namespace}-{pod}"),
        **rest,
    )


def make_reservation(job: PodMigrationJob, **rest: Any) -> Reservation:
    """The Reservation of a job."""
    known: Json = {"job_uid": job.uid, "job_name": job.name, "ordered": True}
    return Reservation(name=job.uid, uid="uid-reservation", **{**known, **rest})


def placed(job: PodMigrationJob, **rest: Any) -> Reservation:
    """The Reservation of a job, with a node."""
    known = {"phase": "Available", "node": "n2", "scheduled_by_condition": True}
    return make_reservation(job, **{**known, **rest})


def make_cluster(*pods: ClusterPod, replicas: int = 10, nodes: int = 3) -> ClusterState:
    """A cluster with a ReplicaSet "rs" that has so many replicas."""
    cluster = ClusterState()
    for number in range(1, nodes + 1):
        cluster.put(NODE, ClusterNode(name=f"n{number}", labels={}))
    for pod in pods:
        cluster.put(POD, pod)
    for namespace in {pod.namespace for pod in pods}:
        cluster.workloads.put(
            Workload(
                kind="ReplicaSet", namespace=namespace, name="rs", uid="uid-rs", replicas=replicas
            )
        )
    return cluster


__all__ = ["T0", "ConditionType", "JobPhase", "JobReason", "Reservation"]
