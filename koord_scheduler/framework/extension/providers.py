"""Services that plugins add to extension points: controllers, REST endpoints, informers.

Source: Koordinator, pkg/scheduler/frameworkext (ControllerProvider, APIServiceProvider,
InformerFactoryProvider).
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar, cast

from koord.cluster.facts import ClusterPod
from koord.component.plugins.registry import interface_defects
from koord.component.plugins.shared import SharedPart, SharedParts
from koord.util.errors import KoordError, error_text
from koord.util.health import PartHealth
from koord.util.stop import Stop
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.calls import ExtensionPointError, Loaded
from koord_scheduler.framework.interfaces import Plugin
from koord_scheduler.framework.profile import ProfilePlugins
from koord_scheduler.framework.types import NodeInfo


class ControllerProvider(Plugin, ABC):
    """Has work that is done while this process leads; --controller-plugins selects the plugins."""

    @abstractmethod
    def new_controllers(self) -> Mapping[str, SharedPart]:
        """Return them by name. Asked of one instance of the plugin, whatever profiles name it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PluginRequest:
    """A request for an endpoint of a plugin."""

    parameters: Mapping[str, str] = field(default_factory=dict)  # of the path, by name
    query: Mapping[str, str] = field(default_factory=dict)
    body: object = None  # of JSON; None: there is none


P = TypeVar("P", bound=Plugin)
T = TypeVar("T")

METHODS = ("GET", "PUT", "POST", "DELETE")

EndpointHandler = Callable[[PluginRequest], Awaitable[object]]
"""Returns a JSON value; LookupError: there is no such thing, ValueError: the request is wrong."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A place that a plugin answers at, below /apis/v1/plugins/NAME."""

    method: str  # one of METHODS
    path: str  # "/node/{node}": braces name parameters, each a part between two slashes
    answer: EndpointHandler

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


class PendingAdvice(Plugin, ABC):
    """Knows what a pod waits for beyond nodes, such as further pods of its group."""

    @abstractmethod
    def pending_advice(self, pod: ClusterPod) -> Iterable[str]:
        """Return sentences for /explain on what a pending pod waits for; none: for nothing here.

        Of the first MAX_ADVICE the first MAX_ADVICE_LENGTH characters are shown. It changes
        nothing.
        """


MAX_ADVICE = 10  # sentences of one plugin
MAX_ADVICE_LENGTH = 400  # characters of each


def pending_advice(profile: ProfilePlugins, pod: ClusterPod) -> list[str]:
    """Return what plugins of a profile say that a pod waits for; one that fails says nothing."""
    found = []
    for name, plugin in profile.plugins.items():
        if isinstance(plugin, PendingAdvice):
            ask = partial(_sentences, plugin, pod)
            with suppress(ExtensionPointError):  # it is logged
                found += profile.calls.ask(profile.loaded(name), Point.PRE_ENQUEUE, ask)
    return found


def _sentences(plugin: PendingAdvice, pod: ClusterPod) -> list[str]:
    sentences = islice(plugin.pending_advice(pod), MAX_ADVICE)
    return [str(one)[:MAX_ADVICE_LENGTH] for one in sentences]


@dataclass(frozen=True, slots=True)
class NodePart:
    """A part of a node that pods can have of their own, such as a CPU or a device."""

    place: tuple[str, ...]  # where it is, the largest first: "socket 0", "NUMA node 1", "core 3"
    name: str
    pods: tuple[str, ...] = ()  # that have some of it, by namespace/name
    used: float = 0.0  # how much of it they have, 0 to 1
    note: str = ""  # why no pod gets it, or what is left


class NodePartsProvider(Plugin, ABC):
    """Knows the parts of nodes, for the picture of a node on the status page."""

    @abstractmethod
    def node_parts(self, node: NodeInfo) -> Iterable[NodePart]:
        """Return the parts of a node in the order in which they are shown.

        Of the first MAX_PARTS the first MAX_PART_LENGTH characters of each text are shown, and
        MAX_PART_PODS pods. It changes nothing.
        """


MAX_PARTS = 4608  # of a node and a plugin: 4,097 CPUs, and NUMA nodes
MAX_PART_LENGTH = 64  # characters of a name, a note or a place
MAX_PART_PODS = 16  # of a part
_MAX_KEY_LENGTH = 320  # characters of namespace/name
_MAX_DEPTH = 4  # of a place


def node_parts(profiles: Iterable[ProfilePlugins], node: NodeInfo) -> dict[str, list[NodePart]]:
    """Return the parts of a node by plugin, cut to size; a plugin that fails says nothing."""
    found: dict[str, list[NodePart]] = {}
    for profile in profiles:
        for name, plugin in profile.plugins.items():
            if isinstance(plugin, NodePartsProvider) and name not in found:
                ask = partial(_parts, plugin, node)
                with suppress(ExtensionPointError):  # it is logged
                    found[name] = profile.calls.ask(profile.loaded(name), Point.FILTER, ask)
    return {name: parts for name, parts in found.items() if parts}


def _parts(plugin: NodePartsProvider, node: NodeInfo) -> list[NodePart]:
    return [
        NodePart(
            tuple(_cut(text) for text in one.place[:_MAX_DEPTH]),
            _cut(one.name),
            tuple(str(pod)[:_MAX_KEY_LENGTH] for pod in one.pods[:MAX_PART_PODS]),
            min(max(float(one.used), 0.0), 1.0),
            _cut(one.note),
        )
        for one in islice(plugin.node_parts(node), MAX_PARTS)
    ]


def _cut(text: str) -> str:
    return str(text)[:MAX_PART_LENGTH]


class PrivateInformer(Protocol):
    """Follows objects for one plugin."""

    async def run(self, stop: Stop) -> None:
        """Follow them until stop; called again when it has raised."""

    async def wait_synced(self) -> None:
        """Return when all that there are have been taken over."""

    def health(self) -> PartHealth:
        """Whether it is up to date."""


@dataclass(frozen=True, slots=True)
class OwnInformer:
    """An informer of a plugin."""

    plugin: str
    name: str  # that the plugin has given it
    informer: PrivateInformer


class ProvidedServicesError(KoordError):
    """Plugins bring along what cannot be used."""


class InformerFactoryProvider(Plugin, ABC):
    """Has informers of its own, which are run with the others; start hooks wait for them."""

    @abstractmethod
    def new_informers(self) -> Mapping[str, PrivateInformer]:
        """Return them by name. Asked of one instance of the plugin, whatever profiles name it."""


class ProvidedServices:
    """The services that the plugins of all profiles provide.

    Of each plugin, only the first instance counts.
    """

    def __init__(self, profiles: Iterable[ProfilePlugins]) -> None:
        """Ask all plugins.

        Raises:
            ProvidedServicesError: a service cannot be used; the message lists all that is wrong.
        """
        self._plugins: dict[str, Loaded] = {}
        for profile in profiles:
            for name in profile.plugins:
                self._plugins.setdefault(name, profile.loaded(name))
        self._errors: list[str] = []
        self.endpoints: Mapping[str, tuple[Endpoint, ...]] = {
            loaded.name: tuple(self._endpoints(loaded, plugin))
            for loaded, plugin in self._those(APIServiceProvider)  # type: ignore[type-abstract]
        }
        informers: dict[str, OwnInformer] = {}
        for loaded, plugin in self._those(InformerFactoryProvider):  # type: ignore[type-abstract]
            made = self._mapping(loaded, plugin.new_informers, PrivateInformer)
            informers |= {
                f"{loaded.name}/{each}": OwnInformer(loaded.name, each, informer)
                for each, informer in made.items()
            }
        self.informers: Mapping[str, OwnInformer] = informers
        self._raise()

    def add_controllers(self, parts: SharedParts, selected: Iterable[str]) -> None:
        """Run controllers while this process is the leader.

        selected: names of plugins, "*" for all, "-NAME" for all but that one.

        Raises:
            ProvidedServicesError: as above.
        """
        names = set(selected)
        for loaded, plugin in self._those(ControllerProvider):  # type: ignore[type-abstract]
            name = loaded.name
            if name in names or ("*" in names and f"-{name}" not in names):
                made = self._mapping(loaded, plugin.new_controllers, SharedPart)
                for each, controller in made.items():
                    parts.put(f"{name}/{each}", controller, name)
        self._raise()

    def _those(self, kind: type[P]) -> Iterator[tuple[Loaded, P]]:
        for loaded in self._plugins.values():
            if isinstance(loaded.plugin, kind):
                yield loaded, loaded.plugin

    def _endpoints(self, loaded: Loaded, plugin: APIServiceProvider) -> Iterator[Endpoint]:
        found, places = self._called(loaded, plugin.endpoints), set[tuple[str, str]]()
        if not isinstance(found, Iterable) or isinstance(found, str | Mapping):
            self._wrong(loaded, plugin.endpoints, f"wanted Endpoints, found {found!r:.80}")
            return
        for one in found:
            usable = isinstance(one, Endpoint) and one.method in METHODS and callable(one.answer)
            if not usable:
                wanted = f"wanted an Endpoint with {'|'.join(METHODS)} and an async function"
                self._wrong(loaded, plugin.endpoints, f"{wanted}, found {one!r:.120}")
            elif (one.method, one.path) in places:
                self._wrong(loaded, plugin.endpoints, f"{one.method} {one.path} is there twice")
            else:
                places.add((one.method, one.path))
                yield one

    def _mapping(
        self, loaded: Loaded, method: Callable[[], Mapping[str, T]], kind: type
    ) -> Mapping[str, T]:
        """Return the objects that a plugin makes, by name; nothing if any of them is wrong."""
        found = self._called(loaded, method)
        if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
            self._wrong(loaded, method, f"wanted a mapping by name, found {found!r:.80}")
            return {}
        wrong = [
            f"{name}: {text}"
            for name, one in found.items()
            for text in interface_defects(one, kind)
        ]
        for text in wrong[:1]:
            self._wrong(loaded, method, text)
        return {} if wrong else cast(Mapping[str, T], found)

    def _called(self, loaded: Loaded, method: Callable[[], object]) -> object:
        try:
            return loaded.code.call(_listed, method)
        except Exception as err:
            self._wrong(loaded, method, error_text(err))
            return {} if method.__name__ != "endpoints" else ()

    def _wrong(self, loaded: Loaded, method: Callable[[], object], text: str) -> None:
        self._errors.append(f"plugin {loaded.name}: {method.__name__}(): {text}")

    def _raise(self) -> None:
        if self._errors:
            raise ProvidedServicesError("; ".join(self._errors))


def _listed(method: Callable[[], object]) -> object:
    """Return the result of a method; of a generator, all that it yields."""
    found = method()
    return tuple(found) if isinstance(found, Iterator) else found
