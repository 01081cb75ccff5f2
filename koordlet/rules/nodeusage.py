"""Splits the CPU or memory that a node uses into pods, host applications and the system.

Source: Koordinator, pkg/koordlet/qosmanager/helpers.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from koord.api.nodes.node import Node
from koord.api.nodes.reservation import reserved_amounts
from koord.api.pods.pod import Pod
from koord.api.qos import KubeQoS, QoSClass
from koord.api.quantity import Quantity
from koord.api.slo.nodeslo import CgroupBase, HostApplication


class UsageSplit(NamedTuple):
    """Parts of a node's usage, in cores or bytes."""

    pods: float  # the selected pods, and those that are not known
    apps: float  # the selected host applications
    system: float  # the rest: neither a pod's nor a host application's


def split_usage(
    node_used: float,
    reserved: float,
    *,
    pods: Iterable[Pod],
    pods_used: Mapping[str, float],
    counts_pod: Callable[[Pod], bool],
    apps: Iterable[HostApplication] = (),
    apps_used: Mapping[str, float] | None = None,
    counts_app: Callable[[HostApplication], bool] = lambda app: True,
) -> UsageSplit:
    """Return the parts; the system's is never below what is reserved for it.

    pods_used is by UID, apps_used by name. Usage of a pod that is not in the list counts.
    """
    apps_used = apps_used or {}
    left_out = {pod.uid for pod in pods if not counts_pod(pod)}
    counted = sum(used for uid, used in pods_used.items() if uid not in left_out)
    measured = [app for app in apps if app.name in apps_used]
    all_apps = sum(apps_used[app.name] for app in measured)
    counted_apps = sum(apps_used[app.name] for app in measured if counts_app(app))
    system = max(node_used - sum(pods_used.values()) - all_apps, 0.0, reserved)
    return UsageSplit(counted, counted_apps, system)


def is_best_effort(pod: Pod) -> bool:
    """Whether a pod is best-effort by Koordinator's label or by Kubernetes' class."""
    return pod.raw_qos_class is QoSClass.BE or pod.qos is KubeQoS.BEST_EFFORT


def is_best_effort_app(app: HostApplication) -> bool:
    """Whether a host application runs among the best-effort pods."""
    return app.qos == QoSClass.BE and app.base is CgroupBase.KUBEPODS_BEST_EFFORT


def node_reserved(node: Node, resource: str) -> Quantity:
    """Return the amount of a resource that is reserved for processes outside of pods.

    The larger of capacity minus allocatable and the reservation in the node's annotation.
    """
    capacity, allocatable = node.capacity.get(resource), node.allocatable.get(resource)
    kept = 0
    if capacity is not None and allocatable is not None:
        kept = Quantity.parse(capacity).nano - Quantity.parse(allocatable).nano
    reserved = reserved_amounts(node.annotations).get(resource, Quantity(0))
    return Quantity(max(kept, reserved.nano, 0))
