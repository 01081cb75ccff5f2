"""The cluster as the manager follows it: nodes, pods, reports, and objects beside each node."""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from koord.api.gojson import JsonObject
from koord.api.slocontroller import (
    CPU_NORMALIZATION,
    RESOURCE_AMPLIFICATION,
    STRATEGY_ANNOTATION,
)
from koord.cluster import kinds, wire
from koord.cluster.decoder import ObjectKind
from koord.cluster.facts import ClusterNode, ClusterPod
from koord.cluster.keptfields import NO_FIELDS, KeptFields
from koord.cluster.kinds import UsageReport, read_usage
from koord.cluster.lenient_decoding import UNREADABLE, DecodingFaults
from koord.cluster.pod_specs import SharedSpecs
from koord.cluster.state import ClusterState
from koord.controlplane.clusterfeed import SERVED_KINDS, ServedKind
from koord.kube.client import DEVICES, NODE_SLOS, NODE_TOPOLOGIES, ApiClient, Resource
from koord.kube.informer import SharedInformer
from koord.kube.managedobjects import BANDWIDTH_ANNOTATION, StoredObject, parse_stored
from koord.kube.reflector import Change, MissingKind, Watched
from koord.kube.transport import Object
from koord.util.clock import Clock
from koord_manager.framework.calculator import ORIGIN
from koord_manager.framework.facts import NodeDevices, NodeTopology, read_devices, read_topology

T = TypeVar("T")
_NODE_FIELDS = ClusterNode.__struct_fields__
_OWN_ANNOTATIONS = frozenset({ORIGIN, CPU_NORMALIZATION, RESOURCE_AMPLIFICATION})
_SPEC_ANNOTATIONS = frozenset({STRATEGY_ANNOTATION, BANDWIDTH_ANNOTATION})
POD_DELAY = 2.0  # seconds in which the pods of a node change together


class _ManagedMetric(wire.Wire):
    metadata: wire.Metadata
    spec: Raw = wire.NOTHING
    status: wire.NodeMetricStatus | None = None


class MetricObject(msgspec.Struct, frozen=True):
    """A NodeMetric: what it reports, and the version of its spec."""

    report: UsageReport
    stored: StoredObject

    @property
    def key(self) -> str:
        return self.report.node


_SPEC = msgspec.json.Decoder(wire.NodeMetricSpec | None)


@lru_cache(maxsize=1024)  # the nodes of a cluster have the same few
def _spec_of(data: bytes) -> tuple[JsonObject, wire.NodeMetricSpec | None]:
    found = msgspec.json.decode(data)
    try:
        known = _SPEC.decode(data)
    except UNREADABLE:
        known = None
    return MappingProxyType(found) if isinstance(found, dict) else {}, known


def _read_metric(
    found: _ManagedMetric, sharing: SharedSpecs, faults: DecodingFaults
) -> MetricObject:
    meta = found.metadata
    spec, known = _spec_of(bytes(found.spec))
    report = read_usage(wire.NodeMetric(meta, known, found.status), sharing, faults)
    owners = tuple([_owner_json(one) for one in meta.owner_references or ()])
    stored = StoredObject(meta.uid or "", meta.resource_version or "", spec, owners, frozenset())
    return MetricObject(report, stored)


def _owner_json(one: wire.OwnerReference) -> JsonObject:
    fields = {
        "apiVersion": one.api_version,
        "kind": one.kind,
        "name": one.name,
        "uid": one.uid,
        "controller": one.controller,
        "blockOwnerDeletion": one.block_owner_deletion,
    }
    return {key: value for key, value in fields.items() if value is not None}


METRIC = ObjectKind("NodeMetric", _ManagedMetric, _read_metric)
FOLLOWED: Mapping[ObjectKind[Any], ServedKind] = {
    kinds.NODE: SERVED_KINDS[kinds.NODE],
    kinds.POD: SERVED_KINDS[kinds.POD],
    METRIC: SERVED_KINDS[kinds.NODE_METRIC],
}
"""Objects that a ManagerCluster is fed with."""


class NodeChange(Enum):
    """The part of a node, or of what is beside it, that has changed."""

    NODE = "anything of the Node but offers"
    OFFERS = "what this daemon writes on the Node: extended resources, its own annotations"
    METADATA = "uid or labels of the Node, or annotations that specs depend on"
    PODS = "its pods"
    REPORT = "its NodeMetric"
    METRIC_SPEC = "uid, owners or spec of its NodeMetric"
    SLO = "its NodeSLO"
    TOPOLOGY = "its NodeResourceTopology"
    DEVICES = "its Device object"


Listener = Callable[[str, NodeChange, float], None]
"""Takes the name of a node, what has changed, and how many seconds that may wait."""


class ManagerCluster(ClusterState):
    """Nodes, pods and NodeMetrics; listeners hear which node changed."""

    def __init__(self, kept: KeptFields = NO_FIELDS) -> None:
        """kept: what plugins read of nodes and pods, which whoever feeds it keeps."""
        super().__init__()
        self.kept = kept
        self.metrics: dict[str, MetricObject] = {}  # by node, of deleted nodes too
        self.seen: dict[str, tuple[float | None, float]] = {}
        """Time of each node's newest report, and when it came; Unix seconds."""
        self.now: Callable[[], float] = lambda: 0.0
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Tell a listener of each change from now on. It must not block."""
        self._listeners.append(listener)

    def put(self, kind: ObjectKind[T], item: T) -> None:
        if isinstance(item, MetricObject):
            name, before = item.key, self.metrics.get(item.key)
            self.metrics[name] = item
            if before is not None:
                item.report.pod_columns().share(before.report.pod_columns())
            if before is None or before.report.update_time != item.report.update_time:
                self.seen[name] = (item.report.update_time, self.now())
            super().put(kinds.NODE_METRIC, item.report)
            self._tell(name, NodeChange.REPORT)
            if before is None or _has_other_spec(before.stored, item.stored):
                self._tell(name, NodeChange.METRIC_SPEC)
            return
        if isinstance(item, ClusterNode):
            known = self.snapshot.node(item.name)
            super().put(kind, item)
            if known != item:
                only_offers = known is not None and _differs_in_offers_only(known, item)
                self._tell(item.name, NodeChange.OFFERS if only_offers else NodeChange.NODE)
                if known is None or _has_other_metadata(known, item):
                    self._tell(item.name, NodeChange.METADATA)
            return
        if isinstance(item, ClusterPod):
            old = self.snapshot.pod(item.key)
            super().put(kind, item)
            if old is None or (old.node, old.phase, old.spec) != (item.node, item.phase, item.spec):
                for name in {item.node, old.node if old else ""} - {""}:
                    self._tell(name, NodeChange.PODS, POD_DELAY)
            return
        super().put(kind, item)

    def remove(self, kind: ObjectKind[Any], key: str, uid: str = "") -> None:
        if kind is METRIC:
            self.metrics.pop(key, None)
            self.seen.pop(key, None)
            super().remove(kinds.NODE_METRIC, key, uid)
            self._tell(key, NodeChange.REPORT)
            self._tell(key, NodeChange.METRIC_SPEC)
            return
        pod = self.snapshot.pod(key) if kind is kinds.POD else None
        super().remove(kind, key, uid)
        if kind is kinds.NODE:
            self._tell(key, NodeChange.NODE)
            self._tell(key, NodeChange.METADATA)
        elif pod is not None and pod.node:
            self._tell(pod.node, NodeChange.PODS, POD_DELAY)

    def keys(self, kind: ObjectKind[Any]) -> Iterable[str]:
        return self.metrics if kind is METRIC else super().keys(kind)

    def _tell(self, name: str, change: NodeChange, delay: float = 0.0) -> None:
        for listener in self._listeners:
            listener(name, change, delay)


def _has_other_spec(old: StoredObject, new: StoredObject) -> bool:
    return (old.uid, old.spec, old.owners) != (new.uid, new.spec, new.owners)


def _differs_in_offers_only(old: ClusterNode, new: ClusterNode) -> bool:
    return all(_without_offers(name, old) == _without_offers(name, new) for name in _NODE_FIELDS)


def _without_offers(field: str, node: ClusterNode) -> object:
    if field == "allocatable":
        return [one for one in node.allocatable if "/" not in one[0]]
    if field == "annotations":
        return [one for one in node.annotations if one[0] not in _OWN_ANNOTATIONS]
    found: object = getattr(node, field)
    return found


def _has_other_metadata(old: ClusterNode, new: ClusterNode) -> bool:
    return (old.uid, old.labels, _for_specs(old)) != (new.uid, new.labels, _for_specs(new))


def _for_specs(node: ClusterNode) -> list[tuple[str, str]]:
    return [one for one in node.annotations if one[0] in _SPEC_ANNOTATIONS]


_DISCOVERY = 60.0  # seconds between questions for a kind whose CRD is missing
_PAGE = 250  # objects


class NodeObjects:
    """NodeResourceTopologies, Devices and NodeSLOs by node, followed while run runs."""

    def __init__(self, client: ApiClient, clock: Clock, changed: Listener) -> None:
        self._changed = changed
        self._specs: dict[bytes, JsonObject] = {}
        make = self._informer
        self.topologies: SharedInformer[NodeTopology] = make(
            client,
            clock,
            NODE_TOPOLOGIES,
            read_topology,
            NodeChange.TOPOLOGY,
            "zones and CPU models are not known",
        )
        self.devices: SharedInformer[NodeDevices] = make(
            client,
            clock,
            DEVICES,
            read_devices,
            NodeChange.DEVICES,
            "GPUs and RDMA devices are not known",
        )
        self.slos: SharedInformer[StoredObject] = make(
            client, clock, NODE_SLOS, self._read_slo, NodeChange.SLO, "no NodeSLO is kept"
        )
        self.all: Mapping[str, SharedInformer[Any]] = {
            "topologies": self.topologies,
            "devices": self.devices,
            "slos": self.slos,
        }

    def _informer(
        self,
        client: ApiClient,
        clock: Clock,
        resource: Resource,
        read: Callable[[Object], T],
        kind: NodeChange,
        without: str,
    ) -> SharedInformer[T]:
        def note(change: Change[T]) -> None:
            if change.key and change.old != change.new:
                self._changed(change.key, kind, 0.0)

        watched = Watched(
            name=resource.plural,
            path=resource.collection(),
            read=read,
            on_change=note,
            page_size=_PAGE,
            is_large=True,
            absent=MissingKind(pause=_DISCOVERY, hint=f"install its CRD: {without}"),
            without=without,
        )
        return SharedInformer(client, watched, clock)

    def _read_slo(self, item: Object) -> StoredObject:
        """The NodeSLO; equal specs are one object."""
        found = parse_stored(item)
        key = msgspec.json.encode(found.spec, order="deterministic")
        if len(self._specs) > 1024:
            self._specs.clear()
        spec = self._specs.setdefault(key, found.spec)
        return StoredObject(found.uid, found.version, spec, found.owners, frozenset())
