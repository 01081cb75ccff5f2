"""The objects of a watched collection as last known, and what changed about them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Generic, TypeVar

from koordlet.kube.answers import Object
from koordlet.kube.errors import BadAnswer
from koordlet.util.errors import InvalidObject

T = TypeVar("T")


class ChangeKind(Enum):
    """What happened. After each list comes one SYNCED, when all its changes were told."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    SYNCED = "synced"


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """One change. old is None for what was added, new for what was deleted, both for SYNCED.

    objects is the whole collection afterwards, by namespace/name, or name where there are no
    namespaces. It never changes again.
    """

    kind: ChangeKind
    key: str
    old: T | None
    new: T | None
    objects: Mapping[str, T]


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    uid: str
    version: str
    value: T


class Store(Generic[T]):
    """Turns lists and events into changes.

    read makes of an object what is kept of it. If it raises InvalidObject, the last good value of
    that object stays, and rejected says why. An object of the same name with another uid is another
    object: the old one is deleted, the new one added.
    """

    def __init__(self, read: Callable[[Object], T], where: str) -> None:
        self._read = read
        self._where = where
        self._entries: dict[str, _Entry[T]] = {}
        self.objects: Mapping[str, T] = MappingProxyType({})
        self.rejected: dict[str, InvalidObject] = {}

    def replace(self, items: list[Object]) -> Iterator[Change[T]]:
        """Take over a list; yield what differs from before."""
        listed = {_key(item, self._where): item for item in items}
        for key in [key for key in {**self._entries, **self.rejected} if key not in listed]:
            yield from self._remove(key)
        for key, item in listed.items():
            yield from self._put(key, item)
        yield Change(ChangeKind.SYNCED, "", None, None, self.objects)

    def put(self, item: Object) -> Iterator[Change[T]]:
        """Take over an object that was added or modified."""
        yield from self._put(_key(item, self._where), item)

    def remove(self, item: Object) -> Iterator[Change[T]]:
        """Forget an object that was deleted, unless another has taken its place already."""
        key = _key(item, self._where)
        entry = self._entries.get(key)
        if entry is None or entry.uid == _uid(item):
            yield from self._remove(key)

    def _put(self, key: str, item: Object) -> Iterator[Change[T]]:
        entry, uid, version = self._entries.get(key), _uid(item), _version(item)
        if entry is not None and entry.uid == uid and entry.version == version:
            return
        if entry is not None and entry.uid != uid:
            yield from self._remove(key)
            entry = None
        try:
            value = self._read(item)
        except InvalidObject as err:
            self.rejected[key] = err
            return
        self.rejected.pop(key, None)
        kind = ChangeKind.MODIFIED if entry else ChangeKind.ADDED
        yield self._changed(kind, key, _Entry(uid, version, value))

    def _remove(self, key: str) -> Iterator[Change[T]]:
        self.rejected.pop(key, None)
        if key in self._entries:
            yield self._changed(ChangeKind.DELETED, key, None)

    def _changed(self, kind: ChangeKind, key: str, entry: _Entry[T] | None) -> Change[T]:
        old = self._entries.pop(key, None)
        if entry is not None:
            self._entries[key] = entry
        # A new mapping each time, so that a reader in another thread never sees one that changes.
        values = {name: kept.value for name, kept in self._entries.items()}
        self.objects = MappingProxyType(values)
        before, after = old.value if old else None, entry.value if entry else None
        return Change(kind, key, before, after, self.objects)


def without_managed_fields(item: Object) -> Object:
    """The object without the record of who wrote what, which is often half of it."""
    metadata = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    return {**item, "metadata": metadata}


def resource_version(item: Object, where: str) -> str:
    """The resource version of an object.

    Raises:
        BadAnswer: it has none.
    """
    metadata = item.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if not isinstance(version, str) or not version:
        raise BadAnswer(where, wanted="an object with a resourceVersion", found=f"{item!r:.80}")
    return version


def _key(item: Object, where: str) -> str:
    resource_version(item, where)
    metadata = item["metadata"]
    name, namespace = metadata.get("name"), metadata.get("namespace")
    if not isinstance(name, str) or not name:
        raise BadAnswer(where, wanted="an object with a name", found=f"{item!r:.80}")
    return f"{namespace}/{name}" if namespace else name


def _uid(item: Object) -> str:
    return str(item["metadata"].get("uid", ""))


def _version(item: Object) -> str:
    return str(item["metadata"]["resourceVersion"])
