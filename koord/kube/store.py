"""The objects of a watched collection as last known, and what changed about them."""

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Generic, TypeVar

from koord.kube.answers import Object
from koord.kube.errors import BadAnswer
from koord.util.errors import InvalidObject

T = TypeVar("T")


class ChangeKind(Enum):
    """The kind of a change. One SYNCED follows each list, when all its changes were reported."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    SYNCED = "synced"


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """One change of the object under key: namespace/name, or name where there are no namespaces.

    old is None for what was added, new for what was deleted, both (and no key) for SYNCED.
    """

    kind: ChangeKind
    key: str
    old: T | None
    new: T | None


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """An object as it came: what is kept of it, or why it is not understood."""

    uid: str
    version: str
    value: T | InvalidObject


class Store(Generic[T]):
    """Turns lists and events into changes. Belongs to one thread; objects is for any.

    read makes of an object what is kept of it. If it raises InvalidObject, the last good value of
    that object stays, and rejected says why. An object of the same name with another uid is another
    object: the old one is deleted, the new one added.
    """

    def __init__(self, read: Callable[[Object], T], where: str) -> None:
        self._read = read
        self._where = where
        self._values: dict[str, T] = {}
        self._versions: dict[
            str, tuple[str, str]
        ] = {}  # uid and version, as long as there is a value
        self._snapshot: Mapping[str, T] | None = None  # of _values; None: they have changed since
        self.rejected: dict[str, InvalidObject] = {}

    @property
    def objects(self) -> Mapping[str, T]:
        """The whole collection by key: a snapshot, which never changes again.

        Made when it is asked for, so that an event costs the same however many objects there are.
        """
        if self._snapshot is None:
            self._snapshot = MappingProxyType(self._values.copy())  # in one step for other threads
        return self._snapshot

    def read(self, item: Object) -> tuple[str, Reading[T]]:
        """Return key and reading of an object; one that is known in this version is not read again.

        Raises:
            BadAnswer: it has no name or no version.
        """
        key = _key(item, self._where)
        uid, version = identity = _uid(item), _version(item)
        if self._versions.get(key) == identity:
            return key, Reading(uid, version, self._values[key])
        try:
            return key, Reading(uid, version, self._read(item))
        except InvalidObject as err:
            return key, Reading(uid, version, err)

    def keep(self, listed: Container[str]) -> Iterator[Change[T]]:
        """Forget what is not listed."""
        known = [*self._versions, *(key for key in self.rejected if key not in self._versions)]
        for key in [key for key in known if key not in listed]:
            yield from self._remove(key)

    def take(self, key: str, reading: Reading[T]) -> Iterator[Change[T]]:
        """Take over an object that was read; yields at most its deletion and its addition."""
        uid, version = self._versions.get(key, ("", ""))
        known = key in self._versions
        if known and (uid, version) == (reading.uid, reading.version):
            return
        if known and uid != reading.uid:
            yield from self._remove(key)
            known = False
        if isinstance(reading.value, InvalidObject):
            self.rejected[key] = reading.value
            return
        self.rejected.pop(key, None)
        old = self._values.get(key)
        self._values[key] = reading.value
        self._versions[key] = reading.uid, reading.version
        self._snapshot = None
        kind = ChangeKind.MODIFIED if known else ChangeKind.ADDED
        yield Change(kind, key, old, reading.value)

    def put(self, item: Object) -> Iterator[Change[T]]:
        """Take over an object that was added or modified."""
        yield from self.take(*self.read(item))

    def remove(self, item: Object) -> Iterator[Change[T]]:
        """Forget an object that was deleted, unless another has taken its place already."""
        key = _key(item, self._where)
        if self._versions.get(key, (_uid(item), ""))[0] == _uid(item):
            yield from self._remove(key)

    def _remove(self, key: str) -> Iterator[Change[T]]:
        self.rejected.pop(key, None)
        if key in self._versions:
            del self._versions[key]
            self._snapshot = None
            yield Change(ChangeKind.DELETED, key, self._values.pop(key), None)


def without_managed_fields(item: Object) -> Object:
    """The object without its managedFields, which are often half of it."""
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
