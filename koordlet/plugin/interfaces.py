"""The API server and the states of the node as a plugin sees them, with and without Kubernetes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from koord.util.errors import Unavailable

if TYPE_CHECKING:
    from koord.api.node import Node
    from koord.api.nodeslo import NodeSLO
    from koordlet.rules.node_topology import NodeTopology
    from koordlet.statesinformer.informer import StateType, UpdateCbFn
    from koordlet.statesinformer.podmeta import PodMeta


Object = dict[str, Any]
"""A Kubernetes object as plain JSON."""


class Client(Protocol):
    """Requests to the Kubernetes API server. Paths are absolute, for example /api/v1/nodes/n1.

    Every call raises Unavailable when the agent runs without Kubernetes.
    """

    @property
    def available(self) -> bool:
        """Whether the agent runs with an API server at all; it may be unreachable now."""

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        """Return an object or a list."""

    async def create(self, path: str, body: Object) -> Object:
        """Create an object in a collection and return it as stored."""

    async def patch(self, path: str, body: object, content_type: str) -> Object:
        """Patch an object and return it as stored."""

    async def delete(self, path: str) -> None:
        """Delete an object."""


class UnavailableClient:
    """The client of an agent that has no API server."""

    available = False

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Object:
        _refuse("get", path)

    async def create(self, path: str, body: Object) -> Object:
        _refuse("create", path)

    async def patch(self, path: str, body: object, content_type: str) -> Object:
        _refuse("patch", path)

    async def delete(self, path: str) -> None:
        _refuse("delete", path)


def _refuse(verb: str, path: str) -> NoReturn:
    raise Unavailable(
        f"{verb} {path}: wanted the Kubernetes API server, found standalone mode; "
        "run the agent in a cluster or with --kubeconfig, or do without"
    )


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
        """Call the callbacks of that type soon, as if the state had changed."""
