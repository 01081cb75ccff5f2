"""What a node has of a resource, and what is requested there with one more pod.

Source: Kubernetes, plugins/noderesources/resource_allocation.go.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View

_NATIVE = ("cpu", "memory", "ephemeral-storage")
_UNCOUNTED = ("pods", "storage")
_NONZERO = {"cpu": 0, "memory": 1}  # columns of nonzero_requested


class Use(NamedTuple):
    """Of one node."""

    allocatable: int
    requested: int  # with the pod


class UseColumns(NamedTuple):
    """Of all nodes; each column has shape (nodes,)."""

    allocatable: NDArray[np.int64]
    requested: NDArray[np.int64]  # with the pod
    lacking: Mask | None = None  # nodes that have nothing of it; None: there is none


def is_extended(name: str) -> bool:
    """Whether a resource is not one of Kubernetes' own, such as example.com/gpu."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def pod_amount(pod: ClusterPod, name: str, *, nonzero: bool) -> int:
    """What a pod requests of a resource.

    nonzero: cpu and memory as loads are compared, with a default for containers without a request.
    """
    if nonzero and name in _NONZERO:
        return pod.spec.nonzero_cpu if name == "cpu" else pod.spec.nonzero_memory
    return next((amount for each, amount in pod.spec.requests if each == name), 0)


def use_of_all(pod: ClusterPod, nodes: View, name: str, *, nonzero: bool) -> UseColumns | None:
    """The use of a resource on all nodes.

    None: it does not count; no node has it, or it is not native and the pod does not request it.
    nonzero as for pod_amount.
    """
    amount, column = pod_amount(pod, name, nonzero=nonzero), nodes.resources.get(name)
    if column is None or not _counts(name, amount):
        return None
    if nonzero and name in _NONZERO:
        requested = nodes.nonzero_requested[:, _NONZERO[name]]
    else:
        requested = nodes.requested[:, column]
    return UseColumns(nodes.allocatable[:, column], requested + amount, nodes.lacking(column))


def use_of_node(pod: ClusterPod, nodes: View, row: int, name: str, *, nonzero: bool) -> Use | None:
    """As use_of_all, of one node."""
    amount, column = pod_amount(pod, name, nonzero=nonzero), nodes.resources.get(name)
    if column is None or not _counts(name, amount):
        return None
    if nonzero and name in _NONZERO:
        requested = nodes.nonzero_requested_of(row)[_NONZERO[name]]
    else:
        requested = nodes.requested_of(row, column)
    return Use(nodes.allocatable_of(row, column), requested + amount)


def _counts(name: str, amount: int) -> bool:
    return name in _NATIVE or (amount > 0 and name not in _UNCOUNTED)


def resource_counts(pod: ClusterPod, name: str, *, nonzero: bool) -> bool:
    """Whether a resource counts for a pod on nodes that have some; arguments as for use_of_all."""
    return _counts(name, pod_amount(pod, name, nonzero=nonzero))
