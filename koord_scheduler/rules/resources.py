"""The use of resources on nodes with a pod, which scores are made of."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.predicates.resources import Amounts, FreeResources
from koord.cluster.view import View

_NATIVE = ("cpu", "memory", "ephemeral-storage")
_UNCOUNTED = ("pods", "storage")
_NONZERO_DEFAULTS = {"cpu": 0, "memory": 1}  # columns of nonzero_requested


class ResourceUse(NamedTuple):
    """Use of a resource on one node."""

    allocatable: int
    requested: int  # with the pod


@dataclass(frozen=True, slots=True)
class UseColumns:
    """Use of a resource on all nodes; each column has shape (nodes,).

    The numbers are whole, also in float columns.
    """

    allocatable: Amounts
    taken: Amounts  # what is requested without the pod
    amount: int  # what the pod requests
    lacking: Mask | None = None  # nodes that have nothing of it; None: there is none
    spare: Amounts | None = None  # what is free without the pod; None: not computed yet

    @property
    def requested(self) -> Amounts:
        """With the pod; another column each time."""
        return self.taken + self.amount

    @property
    def free(self) -> Amounts:
        """With the pod, below zero where it does not fit; another column each time."""
        spare = self.allocatable - self.taken if self.spare is None else self.spare
        return spare - self.amount


def is_extended(name: str) -> bool:
    """Whether a resource is not one of Kubernetes' own, such as example.com/gpu."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def pod_amount(pod: ClusterPod, name: str, *, nonzero: bool) -> int:
    """Return the request of a pod for a resource.

    nonzero: cpu and memory as loads are compared, with a default for containers without a request.
    """
    if nonzero and name in _NONZERO_DEFAULTS:
        return pod.spec.nonzero_cpu if name == "cpu" else pod.spec.nonzero_memory
    for each, amount in pod.spec.requests:
        if each == name:
            return amount
    return 0


def use_of_all(
    pod: ClusterPod, nodes: View, name: str, *, nonzero: bool, table: FreeResources | None = None
) -> UseColumns | None:
    """The use of a resource on all nodes.

    None: it does not count; no node has it, or it is not native and the pod does not request it.
    nonzero as for pod_amount. table: what is known of it; without one it is looked up in the view.
    """
    amount, column = pod_amount(pod, name, nonzero=nonzero), nodes.resources.get(name)
    if column is None or not _counts(name, amount):
        return None
    which = _NONZERO_DEFAULTS.get(name) if nonzero else None
    lacking = nodes.lacking(column)
    if table is not None and lacking is None:
        known = table.of(nodes, column, which)
        if known is not None:
            return UseColumns(known.allocatable, known.taken, amount, None, known.free)
    taken = nodes.requested[:, column] if which is None else nodes.nonzero_requested[:, which]
    return UseColumns(nodes.allocatable[:, column], taken, amount, lacking)


def use_of_node(
    pod: ClusterPod, nodes: View, row: int, name: str, *, nonzero: bool
) -> ResourceUse | None:
    """Return the use of one node, as use_of_all does of all."""
    return uses_of_node(pod, nodes, row, (name,), nonzero=nonzero)[0]


def uses_of_node(
    pod: ClusterPod, nodes: View, row: int, names: Iterable[str], *, nonzero: bool
) -> list[ResourceUse | None]:
    """Return the uses of several resources on one node, each as use_of_node."""
    resources = nodes.resources
    found: list[ResourceUse | None] = []
    for name in names:
        amount, column = pod_amount(pod, name, nonzero=nonzero), resources.get(name)
        if column is None or not (name in _NATIVE or _counts(name, amount)):
            found.append(None)
            continue
        if nonzero and name in _NONZERO_DEFAULTS:
            requested = nodes.nonzero_requested_of(row)[_NONZERO_DEFAULTS[name]]
        else:
            requested = nodes.requested_of(row, column)
        found.append(ResourceUse(nodes.allocatable_of(row, column), requested + amount))
    return found


def _counts(name: str, amount: int) -> bool:
    return name in _NATIVE or (amount > 0 and name not in _UNCOUNTED)


def resource_counts(pod: ClusterPod, name: str, *, nonzero: bool) -> bool:
    """Whether a resource counts for a pod on nodes that have some; arguments as for use_of_all."""
    return name in _NATIVE or _counts(name, pod_amount(pod, name, nonzero=nonzero))
