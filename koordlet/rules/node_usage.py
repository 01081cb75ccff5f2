"""Split the node's usage into pods, host applications and system; the CPU normalization ratio."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from koord.api.node import Node, reserved_amounts
from koord.api.nodeslo import CgroupBase, HostApplication
from koord.api.pod import Pod
from koord.api.qos import KubeQoS, QoSClass
from koord.api.quantity import Quantity
from koord.util import goformat
from koord.util.errors import InvalidObject


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


NORMALIZATION_RATIO = "node.koordinator.sh/cpu-normalization-ratio"  # annotation of a Node
NOTICEABLE = 0.01  # smaller changes of the ratio are none


def normalization_ratio(annotations: Mapping[str, str]) -> float | None:
    """Return the ratio in a node's annotations; None: CPUs are not normalized.

    Raises:
        InvalidObject: it is no positive number.
    """
    text = annotations.get(NORMALIZATION_RATIO)
    if text is None:
        return None
    try:
        ratio = goformat.parse_float(text)
    except ValueError:
        ratio = math.nan
    if not 0 < ratio < math.inf:
        where = f"node: {NORMALIZATION_RATIO}"
        raise InvalidObject(where, wanted='a positive number like "1.25"', found=text)
    return ratio


def is_noticeable_change(ratio: float | None, previous: float | None) -> float | None:
    """Return the ratio in force: the previous one while the change is too small to matter."""
    if ratio is None or previous is None or abs(ratio - previous) >= NOTICEABLE:
        return ratio
    return previous
