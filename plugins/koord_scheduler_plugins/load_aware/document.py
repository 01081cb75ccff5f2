"""What is known of one node's load, as JSON for whoever asks why.

Source: Koordinator, pkg/scheduler/plugins/loadaware/service.go.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from koord_scheduler_plugins.load_aware.estimates import Assigned
from koord_scheduler_plugins.load_aware.loads import NodeLoad

Json = dict[str, Any]


def node_document(load: NodeLoad | None, resources: Sequence[str]) -> Json:
    """Return the pods that are counted, the oldest first, and their sums; {}: not known.

    The sums are there only if the node has a NodeMetric.
    """
    if load is None or (not load.assigned and load.reported is None):
        return {}
    pods = sorted(load.assigned.values(), key=lambda one: (one.since, one.key))
    found: Json = {"pods": [_pod(one) for one in pods]}
    if load.reported is None:
        return found
    usages = [(one, *load.usage_of(one)) for one in pods]
    estimated = [one for one in usages if one[0].estimate is not None]
    lacking = [one for one, usage, _ in estimated if any(load.lack(one, usage) or ())]
    doubted = [
        one
        for one, usage, as_prod in estimated
        if one.is_prod and usage is not None and not as_prod
    ]
    prod = [one for one in lacking if one.is_prod]
    prod += [one for one in doubted if one not in prod]
    return {
        **found,
        "prodUsage": _amounts(load.prod_usage(), resources),
        "nodeDelta": _amounts(load.node_delta, resources),
        "prodDelta": _amounts(load.prod_delta(), resources),
        "nodeEstimated": _amounts(load.estimated(), resources),
        "nodeDeltaPods": _keys(lacking),
        "prodDeltaPods": _keys(prod),
        "nodeEstimatedPods": _keys([one for one, _, _ in estimated]),
    }


def _pod(one: Assigned) -> Json:
    pod = one.pod
    meta = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
    found: Json = {"pod": {"metadata": meta, "spec": {"nodeName": pod.node}}}
    if isfinite(one.since):
        at = datetime.fromtimestamp(one.since, UTC)
        found["timestamp"] = at.isoformat().replace("+00:00", "Z")
    return found


def _amounts(vector: Sequence[int], resources: Sequence[str]) -> Mapping[str, str]:
    return {
        name: f"{amount}m" if name == "cpu" else str(amount)
        for name, amount in zip(resources, vector, strict=True)
    }


def _keys(pods: Sequence[Assigned]) -> list[str]:
    return sorted(one.key for one in pods)
