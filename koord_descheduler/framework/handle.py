"""What factories get: everything that a plugin may use, handed in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from koord.api.labelselector import LabelSelector
from koord.cluster.facts import ClusterNode, ClusterPod
from koord.cluster.state import ClusterState
from koord.cluster.view import View
from koord.component.plugins.shared import SharedParts
from koord.util.clock import Clock
from koord_descheduler.framework.decisions import Decisions
from koord_descheduler.framework.evictor import EvictorProxy
from koord_descheduler.framework.filters import FilterFunc, unfinished
from koord_descheduler.framework.gate import AdmissionGate, OpenGate
from koord_descheduler.framework.metrics import FrameworkMetrics
from koord_descheduler.framework.migrations import Migrations
from koord_descheduler.framework.status import Status

if TYPE_CHECKING:
    from koord.kube.client import ApiClient
    from koord.kube.events import EventRecorder
    from koord.kube.informer import SharedInformer
    from koord.kube.resource import Resource


class Informers(Protocol):
    """The collections that the daemon follows, one copy of each for all plugins."""

    def informer(self, resource: "Resource") -> "SharedInformer[Any]":
        """Return the informer of a kind; it is started with the others."""


class PluginsRunner(Protocol):
    """Runs the plugins of a profile."""

    async def run_deschedule_plugins(self, nodes: Sequence[ClusterNode]) -> Status: ...

    async def run_balance_plugins(self, nodes: Sequence[ClusterNode]) -> Status: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Services:
    """What all profiles of a process share."""

    client: "ApiClient"
    events: "EventRecorder"
    informers: Informers
    cluster: ClusterState
    """The cluster as it is known; plugins only read it."""
    decisions: Decisions
    migrations: Migrations
    clock: Clock
    metrics: FrameworkMetrics
    shared: SharedParts = field(default_factory=SharedParts)
    """Parts of plugins that exist once in this process, and run while it leads."""
    identity: str = "koord-descheduler"
    """The same for all replicas and after a restart: what this descheduler's objects are named by.

    The daemon gives namespace/name of its Lease.
    """
    gate: AdmissionGate = field(default_factory=OpenGate)
    """Asked before each eviction; the daemon gives the ledger."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle:
    """What the plugins of one profile get."""

    profile: str
    services: Services
    dry_run: bool
    node_selector: LabelSelector | None  # of the profile; None: all nodes
    runner: PluginsRunner
    evictor: Callable[[], EvictorProxy]
    """Returns a new proxy, which is stateless; all share the limits of the process."""

    def view_with_migrations(self) -> View:
        """Return the cluster as if all pods that are on their way were where they go.

        For decisions about what else has to move: a pod whose target is not known yet is nowhere.
        """
        return self.services.migrations.carried_out(self.services.cluster)

    def list_pods_on_node(
        self, node: str, wanted: FilterFunc = lambda pod: True
    ) -> list[ClusterPod]:
        """Return the pods of a node that have not ended for good and pass the filter."""
        return unfinished(self.services.cluster.pods_of_node(node), wanted)
