"""Writes this node's topology to its NodeResourceTopology object where the two differ."""

import random
from collections.abc import Callable

from koord.api.nodes.node import Node
from koord.kube.client import ApiClient
from koord.kube.resource import NODE_TOPOLOGIES
from koord.util.clock import Clock
from koordlet.reporter.objectkeeper import ObjectKeeper
from koordlet.rules.noderesourcetopology import PublishedTopology, new_object, patch
from koordlet.rules.nodetopology import NodeTopology
from koordlet.rules.objectpatch import Operation
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.objects.published import KubeTopology


class _TopologyRules:
    resource = NODE_TOPOLOGIES
    subject = "topology"

    def __init__(self, states: StatesInformer, node_name: str) -> None:
        self.wanted = states.node_topology
        self._name = node_name

    def new(self, owner: Node, wanted: NodeTopology) -> dict[str, object]:
        return new_object(self._name, owner, wanted)

    def patch(self, published: PublishedTopology, wanted: NodeTopology) -> list[Operation]:
        return patch(published, wanted)


class TopologyReporter(ObjectKeeper[NodeTopology, PublishedTopology]):
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
        """As ObjectKeeper."""
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
