"""What a round measures: how much CPU each part of the node used in the last second."""

from collections.abc import Sequence
from dataclasses import dataclass

from koord.api.node import Node
from koord.api.nodeslo import CgroupBase, NodeSLO
from koord.api.qos import KubeQoS
from koord.api.quantity import Quantity
from koordlet.plugin import AnyKind, MetricCache, PodMeta, kinds
from koordlet.plugin.rules import (
    UsageSplit,
    is_best_effort,
    is_best_effort_app,
    node_reserved,
    split_usage,
)
from koordlet_plugins.be_cpu_suppress.budget import Budget
from koordlet_plugins.be_cpu_suppress.fastlane import Frame


@dataclass(frozen=True, slots=True)
class Round:
    """One round's measurement. In cores."""

    frame: Frame
    used: UsageSplit  # by all but best-effort pods
    cores: int  # of the node


def measure(
    node: Node | None, slo: NodeSLO, pods: Sequence[PodMeta], cache: MetricCache
) -> Round | None:
    """Return what is known now; None: the node's capacity, its pods or their usage is not."""
    capacity = Quantity.parse(node.capacity.get("cpu", "0")) if node else Quantity(0)
    node_used = cache.last(kinds.NODE_CPU_USAGE)
    if node is None or capacity.nano <= 0 or node_used is None or not pods:
        return None
    pods_used = _by_name(cache, kinds.POD_CPU_USAGE)
    apps_used = _by_name(cache, kinds.HOST_APP_CPU_USAGE)
    reserved = node_reserved(node, "cpu").milli / 1000
    used = split_usage(
        node_used,
        reserved,
        pods=(meta.pod for meta in pods),
        pods_used=pods_used,
        counts_pod=lambda pod: not is_best_effort(pod),
        apps=slo.host_applications,
        apps_used=apps_used,
        counts_app=lambda app: not is_best_effort_app(app),
    )
    threshold = slo.threshold
    frame = Frame(
        budget=Budget(
            capacity.milli,
            threshold.cpu_suppress_threshold_percent,
            threshold.cpu_suppress_min_percent,
        ),
        reserved=reserved,
        system=used.system,
        apps_outside=sum(
            apps_used.get(app.name, 0.0)
            for app in slo.host_applications
            if app.base in (None, CgroupBase.CGROUP_ROOT)
        ),
        be_outside=sum(
            pods_used.get(meta.uid, 0.0)
            for meta in pods
            if meta.kube_qos is not KubeQoS.BEST_EFFORT and is_best_effort(meta.pod)
        ),
    )
    return Round(frame, used, capacity.integer)


def _by_name(cache: MetricCache, kind: AnyKind) -> dict[str, float]:
    return {name: value for (name,), value in cache.last_values(kind).items()}
