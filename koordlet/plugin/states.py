"""The desired state of this node for plugins: node, pods and NodeSLO."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from koord.api.nodes.node import Node
    from koord.api.slo.nodeslo import NodeSLO
    from koordlet.rules.nodetopology import NodeTopology
    from koordlet.statesinformer.callbacks import StateType, UpdateCbFn
    from koordlet.statesinformer.model import PodMeta


class States(Protocol):
    """The states of this node. Each value is immutable and replaced as a whole."""

    def node(self) -> "Node | None":
        """This node; None before it was seen."""

    def node_slo(self) -> "NodeSLO | None":
        """The quality-of-service settings of this node; None before they were seen."""

    def node_topology(self) -> "NodeTopology | None":
        """CPUs and NUMA zones of this node, and their allocation; None without a cluster."""

    def pods(self) -> "tuple[PodMeta, ...]":
        """The pods of this node, each with its cgroups."""

    def pod(self, uid: str) -> "PodMeta | None":
        """One pod; None when no such pod is on this node."""

    def has_synced(self) -> bool:
        """Whether the first look at everything is done."""

    def register_callbacks(
        self, state_type: "StateType | str", name: str, description: str, fn: "UpdateCbFn"
    ) -> None:
        """Call fn(type, state, target) after a change; changes in quick succession are one call.

        Only while the plugin is enabled, and first with the state of the moment when its run
        begins, if it is known. What fails in fn is charged to the plugin, and tried again.

        Raises:
            KoordError: the plugin has a callback of that type and name.
        """

    def send_callback(self, state_type: "StateType | str") -> None:
        """Have the callbacks of that type called soon, as if it had changed."""
