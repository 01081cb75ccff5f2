"""Rules of Kubernetes over all nodes at once: pure functions from a pod and a view to a mask.

A pod that is in the view itself counts there as any other: remove it first, in a what-if.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.predicates.nodes import (
    has_free_ports,
    has_room,
    is_read,
    is_schedulable,
    matches_node_affinity,
    reaches_volumes,
    tolerates_taints,
)
from koord.cluster.predicates.pod_affinity import matches_pod_affinity, matches_pod_anti_affinity
from koord.cluster.predicates.spread import keeps_spread
from koord.cluster.view import View

Predicate = Callable[[ClusterPod, View], Mask]


class NodeRejectReason(IntEnum):
    """The first rule that forbids a node, in the order in which Kubernetes asks them."""

    NONE = 0  # it fits
    UNSCHEDULABLE = 1
    TAINTS = 2
    NODE_AFFINITY = 3
    HOST_PORTS = 4
    RESOURCES = 5
    VOLUMES = 6
    TOPOLOGY_SPREAD = 7
    POD_AFFINITY = 8
    POD_ANTI_AFFINITY = 9
    UNREAD = 10  # a part of the pod could not be read


RULES: Mapping[NodeRejectReason, Predicate] = {
    NodeRejectReason.UNREAD: is_read,
    NodeRejectReason.UNSCHEDULABLE: is_schedulable,
    NodeRejectReason.TAINTS: tolerates_taints,
    NodeRejectReason.NODE_AFFINITY: matches_node_affinity,
    NodeRejectReason.HOST_PORTS: has_free_ports,
    NodeRejectReason.RESOURCES: has_room,
    NodeRejectReason.VOLUMES: reaches_volumes,
    NodeRejectReason.TOPOLOGY_SPREAD: keeps_spread,
    NodeRejectReason.POD_AFFINITY: matches_pod_affinity,
    NodeRejectReason.POD_ANTI_AFFINITY: matches_pod_anti_affinity,
}


@dataclass(frozen=True, slots=True)
class Fit:
    """The nodes that all rules allow, and why the others do not fit."""

    mask: Mask
    misfits: NDArray[np.int8]  # (nodes,), values of NodeRejectReason


def fits(pod: ClusterPod, view: View, rules: Mapping[NodeRejectReason, Predicate] = RULES) -> Fit:
    """Return on which nodes the pod could run: the conjunction of the rules, by default of all.

    The pod's own node counts as any other, and the pod, if it is in the view, as any other pod.
    """
    misfits = np.zeros(len(view), np.int8)
    for misfit, rule in rules.items():
        misfits[(misfits == NodeRejectReason.NONE) & ~rule(pod, view)] = misfit
    return Fit(misfits == NodeRejectReason.NONE, misfits)
