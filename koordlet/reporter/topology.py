"""Writes this node's topology to its NodeResourceTopology object where the two differ."""

import random
from collections.abc import Callable

from koord.api.node import Node
from koord.kube.client import NODE_TOPOLOGIES, ApiClient
from koord.util.clock import Clock
from koordlet.reporter.object_reconciler import ObjectReconciler
from koordlet.rules.node_resource_topology import (
    PublishedTopology,
    new_topology_object,
    topology_patch,
)
from koordlet.rules.node_topology import NodeTopology
from koordlet.rules.object_patch import Operation
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.kube_sources import KubeTopology


class _TopologyRules:
    resource = NODE_TOPOLOGIES
    subject = "topology"

    def __init__(self, states: StatesInformer, node_name: str) -> None:
        self.wanted = states.node_topology
        self._name = node_name

    def new(self, owner: Node, wanted: NodeTopology) -> dict[str, object]:
        return new_topology_object(self._name, owner, wanted)

    def patch(self, published: PublishedTopology, wanted: NodeTopology) -> list[Operation]:
        return topology_patch(published, wanted)


class TopologyReporter(ObjectReconciler[NodeTopology, PublishedTopology]):
    """Keeps the published topology of this node right."""

    def __init__(
        self,
        client: ApiClient,
        node_name: str,
        states: StatesInformer,
        own: KubeTopology,
        clock: Clock,
        *,
        interval: float,
        owner: Callable[[], Node | None],
        observe_only: Callable[[], str] = lambda: "",
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Arguments that are not named here are those of ObjectReconciler."""
        super().__init__(
            client,
            node_name,
            _TopologyRules(states, node_name),
            own,
            clock,
            interval=interval,
            owner=owner,
            observe_only=observe_only,
            draw=draw,
        )
