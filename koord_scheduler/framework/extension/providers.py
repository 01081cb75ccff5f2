"""What plugins bring along beside extension points: controllers, REST endpoints, informers.

Source: Koordinator, pkg/scheduler/frameworkext (ControllerProvider, APIServiceProvider,
InformerFactoryProvider).
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from koord.component.plugins.shared import SharedPart, SharedParts
from koord.util.health import PartHealth
from koord.util.stop import Stop
from koord_scheduler.framework.interfaces import Plugin
from koord_scheduler.framework.profiles.profile import ProfilePlugins


class ControllerProvider(Plugin, ABC):
    """Has work that is done while this process leads; --controller-plugins says whose is."""

    @abstractmethod
    def new_controllers(self) -> Mapping[str, SharedPart]:
        """Return them by name. Asked of one instance of the plugin, whatever profiles name it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginRequest:
    """A request for an endpoint of a plugin."""

    parameters: Mapping[str, str] = field(default_factory=dict)  # of the path, by name
    query: Mapping[str, str] = field(default_factory=dict)
    body: object = None  # of JSON; None: there is none


Answer = Callable[[PluginRequest], Awaitable[object]]
"""Returns a JSON value; LookupError: there is no such thing, ValueError: the request is wrong."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A place that a plugin answers at, below /apis/v1/plugins/NAME."""

    method: str  # GET, PUT, POST or DELETE
    path: str  # "/node/{node}": braces name parameters, each a part between two slashes
    answer: Answer

    def match(self, method: str, path: str) -> dict[str, str] | None:
        """The parameters of a path; None: it is not this endpoint's."""
        wanted, found = self.path.strip("/").split("/"), path.strip("/").split("/")
        if method != self.method or len(wanted) != len(found):
            return None
        parameters = {}
        for mine, theirs in zip(wanted, found, strict=True):
            if mine.startswith("{") and mine.endswith("}"):
                parameters[mine[1:-1]] = theirs
            elif mine != theirs:
                return None
        return parameters


class APIServiceProvider(Plugin, ABC):
    """Answers HTTP requests on the leader."""

    @abstractmethod
    def endpoints(self) -> Iterable[Endpoint]:
        """Return them. Asked of one instance of the plugin, whatever profiles name it."""


class PrivateInformer(Protocol):
    """Follows objects for one plugin."""

    async def run(self, stop: Stop) -> None:
        """Follow them until stop; called again when it has raised."""

    async def wait_synced(self) -> None:
        """Return when all that there are have been taken over."""

    def health(self) -> PartHealth:
        """Whether it is up to date."""


class InformerFactoryProvider(Plugin, ABC):
    """Has informers of its own, which are run with the others; start hooks wait for them."""

    @abstractmethod
    def new_informers(self) -> Mapping[str, PrivateInformer]:
        """Return them by name. Asked of one instance of the plugin, whatever profiles name it."""


class Provided:
    """What the plugins of all profiles bring along; of each plugin the first instance counts."""

    def __init__(self, profiles: Iterable[ProfilePlugins]) -> None:
        """Raises ValueError: a plugin has two endpoints of one place."""
        plugins: dict[str, Plugin] = {}
        for profile in profiles:
            for name, plugin in profile.plugins.items():
                plugins.setdefault(name, plugin)
        self.endpoints: Mapping[str, tuple[Endpoint, ...]] = {
            name: tuple(plugin.endpoints())
            for name, plugin in plugins.items()
            if isinstance(plugin, APIServiceProvider)
        }
        for name, endpoints in self.endpoints.items():
            places = [(one.method, one.path) for one in endpoints]
            if len(set(places)) < len(places):
                raise ValueError(f"plugin {name}: two endpoints have one place: {places}")
        self.informers: Mapping[str, PrivateInformer] = {
            f"{name}/{each}": informer
            for name, plugin in plugins.items()
            if isinstance(plugin, InformerFactoryProvider)
            for each, informer in plugin.new_informers().items()
        }
        self._plugins = plugins

    def add_controllers(self, parts: SharedParts, selected: Iterable[str]) -> None:
        """Have controllers run while this process leads.

        selected: names of plugins, "*" for all, "-NAME" for all but that one.
        """
        names = set(selected)
        for name, plugin in self._plugins.items():
            is_selected = name in names or ("*" in names and f"-{name}" not in names)
            if isinstance(plugin, ControllerProvider) and is_selected:
                for each, controller in plugin.new_controllers().items():
                    parts.put(f"{name}/{each}", controller)
