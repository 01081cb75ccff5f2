"""Where the API server has each kind of the cluster state."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from koord.cluster import decoding
from koord.cluster.decoder import Kind
from koord.cluster.storage import kinds as storage
from koord.kube.listwatch import Absent
from koord.kube.resource import (
    NODE_METRICS,
    NODES,
    PERSISTENT_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    Resource,
)

_PAGE = 500  # objects, about two megabytes of pods: read in a hundredth of a second
_LOOK_AGAIN = 60.0  # seconds between questions for a kind whose CRD is missing
_LOOK_NOW_AND_THEN = 600.0  # most clusters never have OpenKruise


@dataclass(frozen=True, slots=True)
class Served:
    """The place of one kind."""

    resource: Resource
    page_size: int = _PAGE
    absent: Absent | None = None  # None: each cluster has it
    without: str = ""  # what is missed where a role does not allow it, as Koordinator's does not


_NODE_METRICS_MISSING = Absent(
    pause=_LOOK_AGAIN,
    hint="install the CRD nodemetrics.slo.koordinator.sh and koordlet: nothing is known about the "
    "load of nodes without",
)

_VOLUMES = "a pod with volumes counts as fitting no other node"
_WORKLOADS = "it is not known how many pods they want"

SERVED: Mapping[Kind[Any], Served] = {
    decoding.NODE: Served(NODES, page_size=250),  # with their images, 20 kB each
    decoding.POD: Served(PODS),
    storage.CLAIM: Served(PERSISTENT_CLAIMS, without=_VOLUMES),
    storage.VOLUME: Served(PERSISTENT_VOLUMES, without=_VOLUMES),
    decoding.NAMESPACE: Served(Resource("v1", "namespaces")),
    decoding.NODE_METRIC: Served(NODE_METRICS, page_size=100, absent=_NODE_METRICS_MISSING),
    decoding.BUDGET: Served(
        Resource("policy/v1", "poddisruptionbudgets"),
        without="only the API server knows them, and refuses evictions by them",
    ),
    decoding.PRIORITY_CLASS: Served(Resource("scheduling.k8s.io/v1", "priorityclasses")),
    decoding.REPLICATION_CONTROLLER: Served(
        Resource("v1", "replicationcontrollers"), without=_WORKLOADS
    ),
    decoding.REPLICA_SET: Served(Resource("apps/v1", "replicasets")),
    decoding.DEPLOYMENT: Served(Resource("apps/v1", "deployments")),
    decoding.STATEFUL_SET: Served(Resource("apps/v1", "statefulsets")),
    decoding.CLONE_SET: Served(
        Resource("apps.kruise.io/v1alpha1", "clonesets"),
        absent=Absent(pause=_LOOK_AGAIN, hint="", longest=_LOOK_NOW_AND_THEN),
        without=_WORKLOADS,
    ),
}
"""What every daemon of the control plane follows."""

_STORAGE = "storage.k8s.io/v1"
_CLASSES = "pods with claims that wait for their first pod are not scheduled"

SERVED_TO_SCHEDULER: Mapping[Kind[Any], Served] = {
    **SERVED,
    decoding.SERVICE: Served(
        Resource("v1", "services"),
        without="pods without spread constraints are spread by their controller's selector alone",
    ),
    storage.STORAGE_CLASS: Served(Resource(_STORAGE, "storageclasses"), without=_CLASSES),
    storage.CSI_NODE: Served(
        Resource(_STORAGE, "csinodes"), without="limits of volumes on nodes are not known"
    ),
    storage.CSI_DRIVER: Served(
        Resource(_STORAGE, "csidrivers"), without="volumes count as having room everywhere"
    ),
    storage.STORAGE_CAPACITY: Served(
        Resource(_STORAGE, "csistoragecapacities"),
        without="drivers that report room for volumes count as having none",
    ),
    storage.VOLUME_ATTACHMENT: Served(
        Resource(_STORAGE, "volumeattachments"),
        without="volumes that are attached without a pod are not counted",
    ),
}
"""All kinds that a ClusterState keeps."""
