"""NodeMetric and NodeSLO: objects whose spec is kept as the cluster's configuration says.

By koord-manager, or by the agent of the node while there is none. Pure.

Source: Koordinator, pkg/slo-controller nodemetric and nodeslo.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from koord.api.gojson import Json, JsonObject
from koord.api.node import Node
from koord.api.nodemetric import MIN_REPORT_INTERVAL
from koord.api.quantity import Quantity
from koord.api.slocontroller import ColocationStrategy, SLOConfig, colocation_of_node
from koord.kube.client import NODE_METRICS, NODE_SLOS, Resource
from koord.kube.transport import Object
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
    strategy, problems = colocation_of_node(config.colocation, node)
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


Operation = dict[str, object]
"""One operation of a JSON patch."""


@dataclass(frozen=True, slots=True)
class SpecWriter:
    """A field manager that has set fields of the spec; time is that of the API server's clock."""

    name: str
    time: str


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One version of an object. spec is empty where it has none."""

    uid: str
    version: str
    spec: JsonObject
    owners: tuple[JsonObject, ...]
    writers: frozenset[SpecWriter]


def parse_stored(item: Object) -> StoredObject:
    """Return the version of an object from the API server; malformed fields count as absent."""
    metadata = item["metadata"]
    return StoredObject(
        uid=str(metadata.get("uid", "")),
        version=str(metadata["resourceVersion"]),
        spec=_as_object(item.get("spec")),
        owners=tuple(_as_objects(metadata.get("ownerReferences"))),
        writers=frozenset(_spec_writers(metadata.get("managedFields"))),
    )


def _spec_writers(managed_fields: object) -> Iterator[SpecWriter]:
    for entry in _as_objects(managed_fields):
        if "f:spec" in _as_object(entry.get("fieldsV1")) and not entry.get("subresource"):
            yield SpecWriter(str(entry.get("manager", "")), str(entry.get("time", "")))


def _as_object(value: object) -> JsonObject:
    return value if isinstance(value, Mapping) else {}


def _as_objects(value: object) -> Iterator[JsonObject]:
    return (item for item in (value if isinstance(value, list) else ()) if _as_object(item))


Field = tuple[str, ...]  # the path of a field, from the spec on


@dataclass(frozen=True, kw_only=True, slots=True)
class ManagedObject:
    """One kind of object with a spec to keep.

    spec computes it from the present spec, if any. Of a present spec only the managed fields are
    changed.
    """

    name: str
    kind: str
    resource: Resource
    managed: tuple[Field, ...]
    spec: Callable[[SLOConfig, Node, JsonObject | None], tuple[Json, Problems]]


_POLICY = "metricCollectPolicy"
NODE_METRIC = ManagedObject(
    name="nodemetric",
    kind="NodeMetric",
    resource=NODE_METRICS,
    managed=(
        (_POLICY, "aggregateDurationSeconds"),
        (_POLICY, "reportIntervalSeconds"),
        (_POLICY, "nodeAggregatePolicy"),
        (_POLICY, "nodeMemoryCollectPolicy"),
    ),
    spec=node_metric_spec_for,
)
NODE_SLO = ManagedObject(
    name="nodeslo",
    kind="NodeSLO",
    resource=NODE_SLOS,
    managed=(
        ("resourceUsedThresholdWithBE",),
        ("resourceQOSStrategy",),
        ("cpuBurstStrategy",),
        ("systemStrategy",),
        ("hostApplications",),
    ),
    spec=node_slo_for,
)


def new_object(managed_object: ManagedObject, node: Node, spec: JsonObject) -> Object:
    """Return the object to create for a node; it is deleted with its Node."""
    return {
        "apiVersion": managed_object.resource.api_version,
        "kind": managed_object.kind,
        "metadata": {"name": node.name, "ownerReferences": [_owner(node)]},
        "spec": spec,
    }


def changes(
    managed_object: ManagedObject, node: Node, found: StoredObject, spec: JsonObject
) -> list[Operation]:
    """Return the JSON patch that brings an object in line; empty when it is."""
    operations: list[Operation] = []
    wanted: JsonObject = found.spec
    for field in managed_object.managed:
        wanted = _with_field(wanted, spec, field)
    if wanted != found.spec:
        operations.append({"op": "add", "path": "/spec", "value": wanted})
    owners = _owners(node, found)
    if owners != list(found.owners):
        operations.append({"op": "add", "path": "/metadata/ownerReferences", "value": owners})
    return operations


def only_if_unchanged(found: StoredObject) -> list[Operation]:
    """Return the operations that make the server reject a patch of any other version."""
    return [
        {"op": "test", "path": "/metadata/uid", "value": found.uid},
        {"op": "test", "path": "/metadata/resourceVersion", "value": found.version},
    ]


def _with_field(spec: JsonObject, source: JsonObject, field: Field) -> JsonObject:
    """Return spec with one field as it is in source."""
    key, *inner = field
    if inner:
        return {**spec, key: _with_field(_inner(spec, key), _inner(source, key), tuple(inner))}
    rest = {name: value for name, value in spec.items() if name != key}
    return {**rest, key: source[key]} if key in source else rest


def _inner(spec: JsonObject, key: str) -> JsonObject:
    found = spec.get(key)
    return found if isinstance(found, Mapping) else {}


def _owners(node: Node, found: StoredObject) -> list[JsonObject]:
    """The owners, with this Node in place of any other one, such as an earlier one of its name."""
    others = [owner for owner in found.owners if not _is_node(owner)]
    nodes = [owner for owner in found.owners if _is_node(owner)]
    if [owner.get("uid") for owner in nodes] == [node.uid]:
        return list(found.owners)
    return [*others, _owner(node)]


def _is_node(owner: JsonObject) -> bool:
    return (owner.get("apiVersion"), owner.get("kind")) == ("v1", "Node")


def _owner(node: Node) -> JsonObject:
    return {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
