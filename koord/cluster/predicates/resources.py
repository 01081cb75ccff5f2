"""Room on nodes. Source: Kubernetes, NodeResourcesFit."""

import numpy as np

from koord.cluster.columns import Mask
from koord.cluster.facts import PODS, ClusterPod
from koord.cluster.view import View


def has_room(pod: ClusterPod, view: View) -> Mask:
    """Nodes that have room for one more pod and for what it requests; shape (nodes,).

    A resource that a node does not have counts as 0 there.
    """
    fits = _has_free(view, PODS, 1)
    for name, amount in pod.spec.requests:
        fits &= _has_free(view, name, amount)
    return fits


def _has_free(view: View, name: str, amount: int) -> Mask:
    column = view.resources.get(name)
    if column is None:
        return np.zeros(len(view), np.bool_)
    free: Mask = view.allocatable[:, column] - view.requested[:, column] >= amount
    return free
