"""The specs that koord-manager writes for a node, for clusters that run without it.

Source: Koordinator, pkg/slo-controller nodemetric and nodeslo.
"""

import copy
from collections.abc import Mapping

from koord.api.gojson import Json, JsonObject
from koord.api.node import Node
from koord.api.nodemetric import MIN_REPORT_INTERVAL
from koord.api.quantity import Quantity
from koord.api.slocontroller import ColocationStrategy, SLOConfig, colocation_of_node
from koord.util import goformat
from koord.util.errors import InvalidObject

BANDWIDTH_ANNOTATION = "node.koordinator.sh/network-bandwidth"

Problems = tuple[InvalidObject, ...]

# The CRD's defaults for a networkQOS object, in percent of the bandwidth. Written out, so that the
# spec is the same before and after it was stored.
_NETWORK_DEFAULTS: JsonObject = {
    "ingressRequest": 0,
    "ingressLimit": 100,
    "egressRequest": 0,
    "egressLimit": 100,
}


def node_metric_spec_for(
    config: SLOConfig, node: Node, current: JsonObject | None = None
) -> tuple[Json, Problems]:
    """Return the spec of the node's NodeMetric as JSON, and the problems of the Node.

    current is the spec that the object has, if there is one: it stays while the cluster's
    configuration is not known. Where colocation is disabled, measuring goes on with the defaults.
    The report interval is one that the agent really keeps: the scheduler concludes from it which
    pods are too new to be in a report.
    """
    if current is not None and not config.colocation_known:
        return dict(current), ()
    strategy, problems = colocation_of_node(config.colocation.for_labels(node.labels), node)
    if not strategy.enable:
        strategy = ColocationStrategy()
    interval = max(strategy.metric_report_interval_seconds, int(MIN_REPORT_INTERVAL))
    durations = strategy.metric_aggregate_policy.durations
    policy: Json = {
        "aggregateDurationSeconds": strategy.metric_aggregate_duration_seconds,
        "reportIntervalSeconds": interval,
        "nodeAggregatePolicy": {"durations": [goformat.format_duration(one) for one in durations]},
        "nodeMemoryCollectPolicy": strategy.metric_memory_collect_policy,
    }
    return {"metricCollectPolicy": policy}, problems


def node_slo_for(
    config: SLOConfig, node: Node, current: JsonObject | None = None
) -> tuple[Json, Problems]:
    """Return the spec of the node's NodeSLO as JSON, and the problems of the Node.

    current is the spec that the object has, if there is one: its extensions belong to others and
    are kept.
    """
    labels = node.labels
    bandwidth, problems = _bandwidth(node.annotations)
    applications = config.host_applications.for_labels(labels).get("applications")
    strategies: Json = {
        "resourceUsedThresholdWithBE": config.threshold.for_labels(labels),
        "resourceQOSStrategy": _with_network_defaults(config.resource_qos.for_labels(labels)),
        "cpuBurstStrategy": config.cpu_burst.for_labels(labels),
        "systemStrategy": {**config.system.for_labels(labels), **bandwidth},
        **({"hostApplications": applications} if applications else {}),
    }
    extensions = (current or {}).get("extensions") or {"Object": {}}
    return {**copy.deepcopy(strategies), "extensions": extensions}, problems


def _bandwidth(annotations: Mapping[str, str]) -> tuple[Json, Problems]:
    text = annotations.get(BANDWIDTH_ANNOTATION)
    if text is None:
        return {}, ()
    try:
        return {"totalNetworkBandwidth": str(Quantity.parse_text(text))}, ()
    except ValueError:
        where = f"annotation {BANDWIDTH_ANNOTATION}"
        return {}, (InvalidObject(where, wanted="a quantity of bits per second", found=text),)


def _with_network_defaults(strategy: JsonObject) -> Json:
    return {key: _class_with_network_defaults(value) for key, value in strategy.items()}


def _class_with_network_defaults(settings: object) -> object:
    network = settings.get("networkQOS") if isinstance(settings, Mapping) else None
    if not isinstance(settings, Mapping) or not isinstance(network, Mapping):
        return settings
    return {**settings, "networkQOS": {**_NETWORK_DEFAULTS, **network}}
