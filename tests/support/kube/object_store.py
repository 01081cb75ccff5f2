"""The objects of a scripted API server: resource versions, history, patches, selectors."""

import asyncio
import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


class Refused(Exception):
    """A request that a real API server would refuse."""

    def __init__(self, status: int, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.status, self.reason, self.message = status, reason, message or reason


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the history."""

    version: int
    collection: str  # without namespace
    type: str
    object: Object


class ObjectStore:
    """Objects by collection path (without namespace) and key (namespace/name, or name)."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[str, Object]] = {}
        self._uids = itertools.count(1)
        self.version = 100
        self.history: list[Event] = []
        self.compacted = 100  # watches and exact lists from before are Gone
        self._changed: list[asyncio.Event] = []

    def all(self, collection: str, namespace: str = "") -> list[Object]:
        found = self._objects.get(collection, {}).items()
        return [item for key, item in sorted(found)
                if not namespace or key.startswith(f"{namespace}/")]  # fmt: skip

    def get(self, collection: str, key: str) -> Object:
        try:
            return self._objects[collection][key]
        except KeyError:
            raise Refused(404, "NotFound", f"{key} not found") from None

    def create(self, collection: str, item: Object) -> Object:
        key = _key(item)
        if key in self._objects.setdefault(collection, {}):
            raise Refused(409, "AlreadyExists", f"{key} already exists")
        item = copy.deepcopy(item)
        item["metadata"].setdefault("uid", f"uid-{next(self._uids)}")
        if collection.startswith("/apis/"):  # of the core kinds most have none
            item["metadata"].setdefault("generation", 1)
        return self._store(collection, item, "ADDED")

    def replace(self, collection: str, item: Object) -> Object:
        old = self.get(collection, _key(item))
        item = copy.deepcopy(item)
        version = item["metadata"].get("resourceVersion")
        if version not in (None, "", old["metadata"]["resourceVersion"]):
            raise Refused(409, "Conflict", "the object has been modified")
        item["metadata"]["uid"] = old["metadata"]["uid"]
        if "generation" in old["metadata"]:
            changed = _specified(item) != _specified(old)
            item["metadata"]["generation"] = old["metadata"]["generation"] + changed
        return self._store(collection, item, "MODIFIED")

    def delete(self, collection: str, key: str, uid: str = "") -> Object:
        item = self.get(collection, key)
        if uid and uid != item["metadata"]["uid"]:
            raise Refused(409, "Conflict", "the UID in the precondition does not match")
        del self._objects[collection][key]
        return self.note(collection, copy.deepcopy(item), "DELETED")

    def compact(self) -> None:
        """Forget the history, so that watches from before are Gone."""
        self.version += 1
        self.compacted = self.version

    def subscribe(self) -> asyncio.Event:
        """An event that is set after each change."""
        event = asyncio.Event()
        self._changed.append(event)
        return event

    def wake(self) -> None:
        for event in self._changed:
            event.set()

    def _store(self, collection: str, item: Object, kind: str) -> Object:
        self._objects.setdefault(collection, {})[_key(item)] = item
        return self.note(collection, item, kind)

    def note(self, collection: str, item: Object, kind: str) -> Object:
        """Write an event into the history, and send it to the watches."""
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self.history.append(Event(self.version, collection, kind, copy.deepcopy(item)))
        self.wake()
        return item


def selector(text: str) -> Callable[[Object], bool]:
    """The test of a field selector."""
    wanted = [part.split("=", 1) for part in text.split(",") if part]

    def matches(item: Object) -> bool:
        for path, value in wanted:
            found: Any = item
            for name in path.split("."):
                found = found.get(name, "") if isinstance(found, dict) else ""
            if found != value.lstrip("="):
                return False
        return True

    return matches


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def json_patch(target: Object, operations: list[Object]) -> Object:
    """RFC 6902, without move and copy."""
    result = copy.deepcopy(target)
    for operation in operations:
        *parents, last = [part.replace("~1", "/").replace("~0", "~")
                          for part in operation["path"].split("/")[1:]]  # fmt: skip
        holder: Any = result
        try:
            for name in parents:
                holder = holder[int(name)] if isinstance(holder, list) else holder[name]
            _apply(operation, holder, last)
        except (KeyError, IndexError, ValueError, TypeError) as err:
            raise Refused(422, "Invalid", f"{operation['path']}: {err}") from err
    return result


def _apply(operation: Object, holder: Any, last: str) -> None:
    kind = operation["op"]
    if isinstance(holder, list):
        index = len(holder) if last == "-" else int(last)
        if kind == "add":
            holder.insert(index, operation["value"])
            return
        last = index
    elif kind != "add":
        holder[last]
    if kind == "test" and holder[last] != operation["value"]:
        raise ValueError("test failed")
    if kind == "remove":
        del holder[last]
    elif kind in ("add", "replace"):
        holder[last] = operation["value"]


def _specified(item: Object) -> Object:
    """The desired content of an object, in place of the present one."""
    return {name: value for name, value in item.items() if name not in ("metadata", "status")}


def _key(item: Object) -> str:
    metadata = item["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else metadata["name"]
