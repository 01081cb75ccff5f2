"""Custom resources that plugins follow: each decodes its own objects, and changes are events."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from koord.component.plugins.execution import FailureLog, running_plugin
from koord.kube.client import Resource
from koord.kube.reflector import Change, ChangeKind, MissingKind
from koord.util.clock import Clock
from koord.util.errors import InvalidObject, error_text
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import get_logger
from koord_scheduler.framework.types import Action, ClusterEvent, cluster_event

if TYPE_CHECKING:
    from koord.kube.informer import SharedInformer

T = TypeVar("T")
Json = Mapping[str, Any]

OnEvent = Callable[[ClusterEvent, object, object], object]
"""on_event(event, old, new) with a PluginObjects, or None where the object is absent."""

DISCOVERY_INTERVAL, MAX_DISCOVERY_INTERVAL = 60.0, 600.0  # seconds between questions for a CRD
MAX_NAMED = 5  # objects that are not understood, that health names

log = get_logger("koord_scheduler.framework")

_ACTIONS = {
    ChangeKind.ADDED: Action.ADD,
    ChangeKind.MODIFIED: Action.UPDATE,
    ChangeKind.DELETED: Action.DELETE,
}


class InformerSource(Protocol):
    """Where informers come from; see handle.Informers."""

    def informer(
        self, resource: Resource, *, absent: MissingKind | None = None, without: str = ""
    ) -> "SharedInformer[Any]":
        """Return the informer of a kind."""


@dataclass(frozen=True, slots=True)
class PluginObjects:
    """One object of an event, as each plugin that follows its kind has decoded it."""

    raw: Json
    decoded: Mapping[str, object] = field(default_factory=dict)  # by plugin

    def of(self, plugin: str) -> object:
        """The object for a plugin; as it is in JSON for one that does not follow the kind."""
        return self.decoded.get(plugin, self.raw)


def seen_by(plugin: str, found: object) -> object:
    """Return the object of an event as a plugin is to see it."""
    return found.of(plugin) if isinstance(found, PluginObjects) else found


class FollowedResource(Generic[T]):
    """The objects of one kind, as a plugin decodes them. Belongs to the event loop."""

    def __init__(
        self,
        plugin: str,
        name: str,
        read: Callable[[Json], T],
        on_change: Callable[[T | None, T | None], None],
        failures: FailureLog,
        items: Callable[[], Mapping[str, Json]],
    ) -> None:
        self.plugin = plugin
        self.rejected: dict[str, str] = {}
        """Why objects are not understood, by key; the last good version of each counts."""
        self._name = name
        self._read = read
        self._on_change = on_change
        self._failures = failures
        self._log = failures.limited
        self._items = items
        self._objects: dict[str, T] = {}

    @property
    def objects(self) -> Mapping[str, T]:
        """All objects by namespace/name, or name; live, and only to be read."""
        return self._objects

    @property
    def items(self) -> Mapping[str, Json]:
        """All objects by the same keys as they are in JSON, rejected ones too; only to be read."""
        return self._items()

    def take(self, change: Change[Json]) -> tuple[T | None, T | None]:
        """Take over a change; return the object before and after."""
        key, old = change.key, self._objects.get(change.key)
        if change.new is None:
            self.rejected.pop(key, None)
            self._objects.pop(key, None)
            self._notify(key, old, None)
            return old, None
        try:
            new = self._read(change.new)
        except Exception as err:  # of a plugin, about what a tenant has written
            self._reject(key, err)
            if change.old is not None and _uid(change.old) != _uid(change.new):
                self._objects.pop(key, None)  # another object of its name is gone
                self._notify(key, old, None)
                return old, None
            return old, old
        self.rejected.pop(key, None)
        self._objects[key] = new
        self._notify(key, old, new)
        return old, new

    def _notify(self, key: str, old: T | None, new: T | None) -> None:
        if old is None and new is None:
            return
        try:
            self._on_change(old, new)
        except Exception as err:
            facts = {"watched": self._name, "object": key}
            self._failures.failed("change.failed", self.plugin, err, **facts)

    def _reject(self, key: str, err: Exception) -> None:
        reason = error_text(err)
        if self.rejected.get(key) != reason:
            facts = {"watched": self._name, "object": key}
            if isinstance(err, InvalidObject):
                self._log.warning("object.rejected", of=f"{self.plugin} {key}", plugin=self.plugin,
                                  **facts, error=reason)  # fmt: skip
            else:
                self._failures.failed("object.rejected", self.plugin, err, **facts)
        self.rejected[key] = reason


class CustomResources:
    """The kinds that plugins follow or register events of; one copy of each. One event loop."""

    def __init__(self, informers: InformerSource, clock: Clock) -> None:
        self._informers = informers
        self._failures = FailureLog(log, clock)
        self._kinds: dict[Resource, _Kind] = {}
        self._on_event: OnEvent = _no_queue

    def follow(
        self,
        resource: Resource,
        read: Callable[[Json], T],
        on_change: Callable[[T | None, T | None], None] = lambda old, new: None,
        *,
        without: str = "",
        optional: bool = False,
    ) -> FollowedResource[T]:
        """Follow a kind; pods are tried after the first list of it has come.

        read makes of an object, as it is in JSON, what the plugin keeps; if it raises InvalidObject
        or anything else, that is logged, and the last good version stays, unless that was an object
        with another uid. on_change(old, new) is
        called after each change; it must be fast. Both are for one plugin: hints of its events
        about the kind get what read has made. Objects in JSON are shared: they are only read.

        A cluster need not have the kind, nor the role the right to list it: health says so and
        names the plugin, and it is asked for again. without: what is missed then. optional: a
        cluster without the kind is whole, and only a right that is missing is a matter of health.
        """
        plugin = running_plugin()
        kind = self._kind(resource, plugin, without, optional=optional)
        followed = FollowedResource(plugin, kind.name, read, on_change, self._failures, kind.items)
        kind.add(followed)
        return followed

    def watch(self, event_resource: str, plugin: str) -> None:
        """Follow a kind of whose events a plugin has registered, as resource.version.group.

        Unless the plugin follows it, its hints get objects as they are in JSON. Where one object of
        the kind is followed, only its events count.
        """
        followed = [kind for kind in self._kinds.values() if kind.name == event_resource]
        if not followed:
            self._kind(_resource_of(event_resource), plugin, "")
        for kind in followed:
            if plugin not in kind.plugins:
                kind.plugins.append(plugin)

    def deliver_to(self, on_event: OnEvent) -> None:
        """Call a function with each event from now on, after plugins have taken the change over."""
        self._on_event = on_event

    def health(self) -> PartHealth:
        """Degraded while a kind is missing, or objects are not understood; names the plugins."""
        found = [text for kind in self._kinds.values() for text in kind.problems()]
        return PartHealth(HealthStatus.DEGRADED, "; ".join(found)) if found else OK

    def _kind(
        self, resource: Resource, plugin: str, without: str, *, optional: bool = False
    ) -> "_Kind":
        kind = self._kinds.get(resource)
        if kind is None:
            name = event_resource_of(resource)
            missed = f": {without}" if without else ""
            hint = "" if optional else f"plugin {plugin} follows it: install its CRD{missed}"
            absent = MissingKind(
                pause=DISCOVERY_INTERVAL,
                hint=hint,
                max_pause=MAX_DISCOVERY_INTERVAL,
            )
            informer = self._informers.informer(
                resource, absent=absent, without=without or f"plugin {plugin} follows it"
            )
            kind = self._kinds[resource] = _Kind(name, informer, self._fire)
        if plugin not in kind.plugins:
            kind.plugins.append(plugin)
        return kind

    def _fire(self, event: ClusterEvent, old: object, new: object) -> None:
        self._on_event(event, old, new)


class _Kind:
    """One kind, and the plugins that follow it or register its events."""

    def __init__(self, name: str, informer: "SharedInformer[Any]", fire: OnEvent) -> None:
        self.name = name
        self.plugins: list[str] = []
        self._informer = informer
        self._fire = fire
        self._followers: list[FollowedResource[Any]] = []
        informer.add_handler(self._changed)

    def items(self) -> Mapping[str, Json]:
        """All objects by key as they are in JSON; only to be read."""
        found: Mapping[str, Json] = self._informer.objects
        return found

    def add(self, followed: FollowedResource[Any]) -> None:
        for key, item in self._informer.objects.items():
            followed.take(Change(ChangeKind.ADDED, key, None, item))
        self._followers.append(followed)

    def problems(self) -> list[str]:
        """Texts for people."""
        found, health = [], self._informer.health()
        if health != OK:
            names = ", ".join(self.plugins)
            found.append(f"{self.name} of plugin {names}: {health.reason}")
        for one in self._followers:
            if one.rejected:
                named = [f"{key}: {why}" for key, why in [*one.rejected.items()][:MAX_NAMED]]
                count = len(one.rejected)
                found.append(
                    f"plugin {one.plugin}: {count} of {self.name} not understood: "
                    f"{'; '.join(named)}"
                )
        return found

    def _changed(self, change: Change[Json]) -> None:
        action = _ACTIONS.get(change.kind)
        if action is None:
            return
        before: dict[str, object] = {}
        after: dict[str, object] = {}
        for one in self._followers:
            old, new = one.take(change)
            before.setdefault(one.plugin, old)
            after.setdefault(one.plugin, new)
        self._fire(
            cluster_event(self.name, action),
            None if change.old is None else PluginObjects(change.old, before),
            None if change.new is None else PluginObjects(change.new, after),
        )


def _uid(item: Json) -> object:
    meta = item.get("metadata")
    return meta.get("uid") if isinstance(meta, Mapping) else None


def event_resource_of(resource: Resource) -> str:
    """Return a kind as events name it: podgroups.v1alpha1.scheduling.sigs.k8s.io."""
    group, _, version = resource.api_version.rpartition("/")
    return f"{resource.plural}.{version}.{group}" if group else f"{resource.plural}.{version}"


def _resource_of(event_resource: str) -> Resource:
    plural, version, group = (*event_resource.split(".", 2), "")[:3]
    return Resource(f"{group}/{version}" if group else version, plural)


def _no_queue(event: ClusterEvent, old: object, new: object) -> None:
    """There is none yet, or none at all, as in a plan."""
