"""Interfaces of plugins, what they may use of the daemon, and the registry that they are in."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from koord.component.flags import FeatureGates
from koord.component.plugins.registry import FactoryRegistry
from koord.kube.client import ApiClient, Resource
from koord.kube.events import Event
from koord.kube.informer import SharedInformer
from koord.kube.reflector import MissingKind
from koord.kube.transport import Object
from koord.util.clock import Clock
from koord.util.health import OK, PartHealth
from koord.util.stop import Stop
from koord_manager.framework.facts import Calculation, NodeFacts


class Plugin:
    """A plugin, made once by its factory. Everything runs on the daemon's event loop."""

    name: str
    """The name that it was registered under, which is its feature gate too; set by the framework"""

    async def close(self) -> None:
        """Clean up, at the end. By default there is nothing to do."""


class NodeResourcePlugin(Plugin, ABC):
    """Says what resources, annotations and labels nodes are to have."""

    order: ClassVar[int] = 100
    """Plugins of a lower order come first; of two that say something of one name the later wins."""
    reads_reports: ClassVar[bool] = True
    """Whether calculate depends on the NodeMetric, on the time, or on what a plugin that does so
    has said. If not, it is called only when something else of the node has changed."""

    @abstractmethod
    def calculate(self, node: NodeFacts, earlier: Calculation) -> Calculation:
        """Return what a node is to have. earlier is what the plugins before this one have said.

        Called at each change of the node: it must only compute. When it raises, the node keeps what
        it has of this plugin.
        """


class ControllerPlugin(Plugin, ABC):
    """Keeps objects of the cluster that belong to no node."""

    @abstractmethod
    async def run(self, stop: Stop) -> None:
        """Work until stop, while this replica leads. When it raises, it is started again."""

    def health(self) -> PartHealth:
        """Degraded while something cannot be kept as it should be."""
        return OK


class PodMutator(Plugin, ABC):
    """Says what becomes of pods that are created, where that is done by the webhook."""

    @abstractmethod
    def mutate_pod(self, pod: dict[str, Any], namespace: str) -> dict[str, Any]:
        """Return the pod as it is to be, in any replica. It must only compute.

        pod is its manifest, which must not be changed. When it raises, the pod stays as it is.
        """


class GetInformer(Protocol):
    """Returns the informer of a kind; see InformerFactory.informer."""

    def __call__(
        self, resource: Resource, *, absent: MissingKind | None = None, without: str = ""
    ) -> SharedInformer[Object]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Services:
    """The API server, as plugins use it. What changes something is sent by the leader alone."""

    client: ApiClient
    informer: GetInformer
    emit: Callable[[Event], None]
    dry_run: bool  # decide, but write nothing
    webhook: bool = False  # pods are mutated by the webhook, with what PodMutators say
    profiles_interval: float = 30.0  # seconds between looks at pods that profiles are to change
    all_profiles: bool = False  # each profile, not only those with a label, changes such pods


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle:
    """The services that a plugin may use."""

    name: str  # of the plugin
    clock: Clock
    gates: FeatureGates
    services: Services | None = None  # None: in a command beside the daemon


PluginFactory = Callable[[Any, Handle], Plugin]
"""Makes a plugin from its args (None: the configuration has none) and its handle."""


class PluginRegistry(FactoryRegistry[PluginFactory]):
    """Factories in the order of registration."""

    group = "koord_manager.plugins"
    shipped = "koordlet"
    base = Plugin
