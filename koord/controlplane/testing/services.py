"""What daemons hand to plugins beside the cluster, for tests."""

from collections.abc import Callable, Mapping
from typing import Any

from koord.kube.eventobjects import Event
from koord.kube.events import EventRecorder
from koord.kube.informer import Handler, SharedInformer
from koord.kube.listwatch import Absent
from koord.kube.resource import Resource
from koord.kube.store import Change, ChangeKind
from koord.util.health import OK, PartHealth
from koord.util.stop import Stop

Json = Mapping[str, Any]


class CapturedEvents(EventRecorder):
    """Events that plugins have reported, the latest one last."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)


class FakeInformer(SharedInformer[Any]):
    """A collection that is known; it has what a test puts into it."""

    def __init__(self) -> None:
        self._found: dict[str, Json] = {}
        self._followers: list[Handler[Any]] = []

    @property
    def objects(self) -> Mapping[str, Any]:
        return self._found

    @property
    def synced(self) -> bool:
        return True

    answered = synced

    def indexed(self, index: str, name: str) -> Mapping[str, Any]:
        return {}

    def add_handler(self, handler: Handler[Any]) -> Callable[[], None]:
        for key, value in self._found.items():
            handler(Change(ChangeKind.ADDED, key, None, value))
        handler(Change(ChangeKind.SYNCED, "", None, None))
        self._followers.append(handler)
        return lambda: self._followers.remove(handler)

    async def wait_synced(self) -> None:
        """It is."""

    async def wait_answered(self) -> None:
        """It is."""

    def health(self) -> PartHealth:
        return OK

    async def run(self, stop: Stop) -> None:
        """Nothing but the test changes anything."""
        await stop.wait()

    def take(self, key: str, new: Json | None) -> None:
        """Have an object be added, changed, or (None) gone."""
        old = self._found.pop(key, None)
        if new is not None:
            self._found[key] = new
        if old is None and new is None:
            return
        kind = ChangeKind.ADDED if old is None else ChangeKind.MODIFIED
        change = Change(ChangeKind.DELETED if new is None else kind, key, old, new)
        for handler in tuple(self._followers):
            handler(change)


class FakeInformers:
    """Collections beside the cluster's state, empty until a test puts objects into them."""

    def __init__(self) -> None:
        self._informers: dict[Resource, FakeInformer] = {}

    def informer(
        self, resource: Resource, *, absent: Absent | None = None, without: str = ""
    ) -> FakeInformer:
        """Return the informer of a kind."""
        return self._informers.setdefault(resource, FakeInformer())

    def apply(self, resource: Resource, manifest: Json) -> None:
        """Add an object as it is in JSON, or change it; plugins that follow the kind learn of it.

        Raises:
            KeyError: it has no metadata.name.
        """
        self.informer(resource).take(_key(manifest), manifest)

    def delete(self, resource: Resource, key: str) -> None:
        """Remove an object by its key: namespace/name, or name where there are no namespaces."""
        self.informer(resource).take(key, None)


def _key(manifest: Json) -> str:
    meta = manifest["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])
