"""Ports of nodes. Source: Kubernetes, NodePorts."""

import numpy as np

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod, PodSpec
from koord.cluster.view import View


def has_free_ports(pod: ClusterPod, view: View) -> Mask:
    """Nodes on which no pod has a host port that this one needs; shape (nodes,)."""
    if not pod.spec.host_ports:
        return np.ones(len(view), np.bool_)
    conflicting = np.fromiter((_conflict(pod.spec, other) for other in view.specs), np.bool_)
    free: Mask = view.pods_per_node(conflicting[view.placed.spec]) == 0
    return free


def _conflict(spec: PodSpec, other: PodSpec | None) -> bool:
    return other is not None and any(
        mine.conflicts(theirs) for mine in spec.host_ports for theirs in other.host_ports
    )
