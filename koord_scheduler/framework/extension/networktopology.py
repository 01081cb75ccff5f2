"""The network between nodes as a tree: blocks, spines, switches, by labels of nodes.

Source: Koordinator, pkg/scheduler/frameworkext/networktopology, and the custom resource
ClusterNetworkTopology of scheduling.koordinator.sh/v1alpha1.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from koord.cluster.facts import ClusterNode
from koord.cluster.kinds import NODE
from koord.kube.client import Resource
from koord.kube.reflector import Change, MissingKind
from koord.util.clock import Clock
from koord.util.errors import InvalidObject
from koord.util.logs import LimitedLog, get_logger
from koord_scheduler.framework.interfaces import Changes

if TYPE_CHECKING:
    from koord.cluster.state import ClusterState
    from koord.kube.informer import SharedInformer

CLUSTER_LAYER = "ClusterTopologyLayer"
NODE_LAYER = "NodeTopologyLayer"
TOPOLOGIES = Resource("scheduling.koordinator.sh/v1alpha1", "clusternetworktopologies")
MISSING = MissingKind(
    pause=60.0,
    hint="install the CRD clusternetworktopologies.scheduling.koordinator.sh, or do without "
    "--enable-network-topology-manager",
)
WITHOUT = "plugins see no network between nodes"
NAME = "default"  # of the only object that counts
MAX_LAYERS = 32

log = get_logger("koord_scheduler.networktopology")


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of the tree, such as that of switches."""

    name: str
    labels: tuple[str, ...]  # keys; of those that a node has the first one says where it is


@dataclass(eq=False, slots=True)
class TopologyNode:
    """A place in the network. Read-only."""

    layer: str
    name: str
    parent: "TopologyNode | None"
    children: dict[str, "TopologyNode"] = field(default_factory=dict)  # by name

    def node_names(self) -> Iterator[str]:
        """The names of all nodes below it; of a node its own."""
        if self.layer == NODE_LAYER:
            yield self.name
        for child in self.children.values():
            yield from child.node_names()


@dataclass(frozen=True, eq=False, slots=True)
class NetworkTree:
    """The tree as it was at one time. Read-only; another one comes after each change."""

    layers: tuple[str, ...]  # names, from the cluster's to the nodes'
    root: TopologyNode
    nodes: Mapping[str, TopologyNode]  # the leaves, by name of the node

    def is_ancestor(self, layer: str, other: str) -> bool:
        """Whether a layer is above another one; of a layer that is not there: False."""
        if layer not in self.layers or other not in self.layers:
            return False
        return self.layers.index(layer) < self.layers.index(other)

    def at(self, layer: str) -> Iterator[TopologyNode]:
        """All places of a layer."""
        places = [self.root]
        for _ in range(self.layers.index(layer) if layer in self.layers else 0):
            places = [child for one in places for child in one.children.values()]
        return iter(places if layer in self.layers else ())


def read_layers(found: Any) -> tuple[Layer, ...]:
    """Return the layers of a ClusterNetworkTopology below the cluster's, down to the nodes'.

    Raises:
        InvalidObject: they are no chain that begins at the cluster and ends at the nodes.
    """
    where = "ClusterNetworkTopology: spec.networkTopologySpec"
    spec = found.get("spec") if isinstance(found, Mapping) else None
    rows = spec.get("networkTopologySpec") if isinstance(spec, Mapping) else None
    if not isinstance(rows, list) or not 0 < len(rows) <= MAX_LAYERS:
        raise InvalidObject(where, wanted=f"1 to {MAX_LAYERS} layers", found=rows)
    layers: dict[str, tuple[Layer, str]] = {}
    for row in rows:
        if not isinstance(row, Mapping) or not isinstance(row.get("topologyLayer"), str):
            raise InvalidObject(where, wanted="an object with topologyLayer", found=row)
        keys, parent = row.get("labelKey") or [], row.get("parentTopologyLayer") or CLUSTER_LAYER
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise InvalidObject(where, wanted="labelKey to be names of labels", found=keys)
        name = row["topologyLayer"]
        if name in layers:
            raise InvalidObject(where, wanted="each layer once", found=name)
        layers[name] = Layer(name, tuple(keys)), str(parent)
    chain, name = list[Layer](), NODE_LAYER
    while name != CLUSTER_LAYER and name in layers:
        layer, name = layers.pop(name)
        chain.append(layer)
    if name == CLUSTER_LAYER:  # which may be listed itself
        layers.pop(CLUSTER_LAYER, None)
    if name != CLUSTER_LAYER or layers or not chain:
        raise InvalidObject(
            where, wanted=f"one chain from {NODE_LAYER} up to {CLUSTER_LAYER}", found=name
        )
    return tuple(reversed(chain))


def build_tree(layers: Sequence[Layer], nodes: Iterable[ClusterNode]) -> NetworkTree:
    """Return the tree of nodes; nodes that are nowhere in a layer are not in it.

    A node without a place in the layer right above the nodes, such as that of accelerators, gets
    one of its own there.
    """
    root = TopologyNode(CLUSTER_LAYER, "", None)
    leaves: dict[str, TopologyNode] = {}
    for node in nodes:
        path = _path(layers, node)
        if path is None:
            continue
        place = root
        for layer, name in zip(layers, path, strict=True):
            below = place.children.get(name)
            if below is None:
                below = place.children[name] = TopologyNode(layer.name, name, place)
            place = below
        leaves[node.name] = place
    return NetworkTree((CLUSTER_LAYER, *(one.name for one in layers)), root, leaves)


def _path(layers: Sequence[Layer], node: ClusterNode) -> list[str] | None:
    """The names of a node's places; None: it has none in some layer."""
    path = []
    for number, layer in enumerate(layers):
        if layer.name == NODE_LAYER:
            path.append(node.name)
            continue
        name = next((node.labels[key] for key in layer.labels if node.labels.get(key)), "")
        if not name and number == len(layers) - 2:
            name = node.name
        if not name:
            return None
        path.append(name)
    return path


class NetworkTopology:
    """Keeps the tree current: it is made anew when it is asked for and something has changed."""

    def __init__(
        self,
        cluster: "ClusterState",
        changes: Changes,
        informer: "SharedInformer[Any]",
        clock: Clock,
    ) -> None:
        """It is made before objects are followed."""
        self._cluster = cluster
        self._informer = informer
        self._object: object = None  # of which the layers are
        self._layers: tuple[Layer, ...] | None = None
        self._tree: NetworkTree | None = None
        self._faults = LimitedLog(log, clock)
        changes.subscribe(NODE, self._on_node)

    def tree(self) -> NetworkTree | None:
        """The tree; None: there is no ClusterNetworkTopology "default", or it cannot be used."""
        found = self._informer.objects.get(NAME)
        if found is not self._object:
            self._object, self._tree, self._layers = found, None, self._read(found)
        if self._tree is None and self._layers is not None:
            view = self._cluster.view()
            self._tree = build_tree(self._layers, (view.node(row) for row in range(len(view))))
        return self._tree

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Call on_change when the ClusterNetworkTopology has changed, or has come or gone."""

        def note(change: Change[Any]) -> None:
            if change.key == NAME:
                on_change()

        self._informer.add_handler(note)

    def _read(self, found: object) -> tuple[Layer, ...] | None:
        if found is None:
            return None
        try:
            return read_layers(found)
        except InvalidObject as err:
            self._faults.error("topology.invalid", error=str(err))
            return None

    def _on_node(self, old: ClusterNode | None, new: ClusterNode | None) -> None:
        if old is None or new is None or old.labels != new.labels:
            self._tree = None
