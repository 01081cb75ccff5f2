"""Pages and watch events of the API server, each object of whichever kind decoded once.

What the API server accepted is never rejected as a whole: a part that cannot be read, or is beyond
a bound, is left out and named (see lenient_decoding). Only an item without a name is no object,
and costs only itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec
from msgspec import Raw

from koord.cluster import wire
from koord.cluster.keptfields import NO_FIELDS, KeptFields
from koord.cluster.lenient_decoding import UNREADABLE, DecodingFaults, decode_leniently
from koord.cluster.pod_specs import SharedSpecs
from koord.util.errors import InvalidObject

MAX_OBJECT_BYTES = 16 << 20
"""Bytes. etcd stores 1.5 MiB, in which JSON writes one byte as six (\\u003c for <)."""
MAX_PAGE_BYTES = 256 << 20  # bytes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RejectedObject:
    """A malformed object of a page: its key as far as that can be read, and what is wrong."""

    key: str
    error: InvalidObject


@dataclass(frozen=True, slots=True)
class CutObject:
    """An object of which a part was left out: its key and uid, and what is missing and why."""

    key: str
    uid: str
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DecodedPage(Generic[T]):
    """A part of a list. continue_ asks for the next one; "" in the last."""

    objects: tuple[T, ...]
    rejected: tuple[RejectedObject, ...]
    cut: tuple[CutObject, ...]  # of the objects
    resource_version: str
    continue_: str


@dataclass(frozen=True, slots=True)
class DecodedEvent(Generic[T]):
    """A watch event: ADDED or MODIFIED with its object, DELETED, BOOKMARK or ERROR without.

    object is an InvalidObject where it is none; key and uid say which one it is even so, and which
    one was deleted. faults: what was left out of it.
    """

    type: str
    key: str = ""  # namespace/name, or name where there are no namespaces
    uid: str = ""
    resource_version: str = ""
    object: T | InvalidObject | None = None
    faults: tuple[str, ...] = ()
    code: int = 0  # of an ERROR: the HTTP status, 410 when the watch has expired


class _Read(Protocol):
    """An object as msgspec has read it."""

    metadata: wire.Metadata


R = TypeVar("R", bound=_Read)
Identity = wire.Metadata | wire.Identity


class ObjectKind(Generic[T]):
    """A kind of objects: its name in messages, and how one is read."""

    def __init__(
        self, name: str, shape: type[R], keep: Callable[[R, SharedSpecs, DecodingFaults], T]
    ) -> None:
        """keep takes the object as msgspec has it, what pods share, and where faults are noted."""
        self.name = name
        decoder = msgspec.json.Decoder(shape)

        def read(data: Raw, sharing: SharedSpecs, faults: DecodingFaults) -> tuple[Identity, T]:
            try:
                found = decoder.decode(data)
            except UNREADABLE as err:
                try:
                    found = decode_leniently(shape, data, name, faults)
                except UNREADABLE:
                    raise err from None  # it names the place
            return found.metadata, keep(found, sharing, faults)

        self._read = read

    def read(
        self, data: Raw, sharing: SharedSpecs, faults: DecodingFaults
    ) -> tuple[Identity, T | InvalidObject]:
        """Return which object it is, and what is kept of it, or why nothing is."""
        size = len(memoryview(data))
        if size > MAX_OBJECT_BYTES:
            return self._refuse(data, f"at most {MAX_OBJECT_BYTES} bytes", f"{size} bytes")
        try:
            return self._read(data, sharing, faults)
        except UNREADABLE as err:
            return self._refuse(data, "what Kubernetes has there", str(err))

    def _refuse(self, data: Raw, wanted: str, found: str) -> tuple[Identity, InvalidObject]:
        identity = _identify(data)
        where = f"{self.name} {_key(identity) or 'without a name'}"
        return identity, InvalidObject(where, wanted=wanted, found=found)


class Decoder:
    """Reads pages and events, in any thread.

    Equal pods, of whichever page or event, share what they have.
    """

    def __init__(self, kept: KeptFields = NO_FIELDS) -> None:
        """kept: what is kept of pods and nodes beyond what always is."""
        self._sharing = SharedSpecs(kept)

    @property
    def kept(self) -> KeptFields:
        """Fields that are kept because they are declared; set, they count for what comes next."""
        return self._sharing.kept

    @kept.setter
    def kept(self, kept: KeptFields) -> None:
        self._sharing.kept = kept

    def page(self, kind: ObjectKind[T], data: bytes) -> DecodedPage[T]:
        """Return the objects of a page, and what was wrong with those that are left out.

        Raises:
            InvalidObject: it is no list, or too large.
        """
        where = f"list of {kind.name}s"
        if len(data) > MAX_PAGE_BYTES:
            wanted = f"at most {MAX_PAGE_BYTES} bytes"
            raise InvalidObject(where, wanted=wanted, found=f"{len(data)} bytes")
        try:
            found = _LIST.decode(data)
        except UNREADABLE as err:
            raise InvalidObject(where, wanted="a list of objects", found=str(err)) from err
        objects: list[T] = []
        rejected: list[RejectedObject] = []
        cut: list[CutObject] = []
        for item in found.items or ():
            faults = DecodingFaults()
            identity, value = kind.read(item, self._sharing, faults)
            if isinstance(value, InvalidObject):
                rejected.append(RejectedObject(_key(identity), value))
                continue
            objects.append(value)
            if faults:
                cut.append(CutObject(_key(identity), identity.uid or "", tuple(faults)))
        meta = found.metadata or wire.PageMeta()
        return DecodedPage(
            tuple(objects),
            tuple(rejected),
            tuple(cut),
            meta.resource_version or "",
            meta.continue_ or "",
        )

    def object(self, kind: ObjectKind[T], data: bytes, faults: DecodingFaults | None = None) -> T:
        """Return what is kept of one object. faults: where is noted what was left out.

        Raises:
            InvalidObject: it is none, or too large; without faults also where a part is left out.
        """
        noted = DecodingFaults() if faults is None else faults
        identity, value = kind.read(Raw(data), self._sharing, noted)
        if isinstance(value, InvalidObject):
            raise value
        if faults is None and noted:
            where, found = f"{kind.name} {_key(identity)}", "; ".join(noted)
            raise InvalidObject(where, wanted="what Kubernetes has there", found=found)
        return value

    def event(self, kind: ObjectKind[T], line: bytes) -> DecodedEvent[T]:
        """Return a watch event.

        Raises:
            InvalidObject: it is no event, or one of a type that Kubernetes does not have.
        """
        where = f"event of a {kind.name}"
        try:
            found = _EVENT.decode(line)
            if found.type == "ERROR":
                return DecodedEvent("ERROR", code=_STATUS.decode(found.object).code or 0)
        except UNREADABLE as err:
            raise InvalidObject(where, wanted="a watch event", found=str(err)) from err
        if found.type == "BOOKMARK":
            version = _identify(found.object).resource_version or ""
            return DecodedEvent("BOOKMARK", resource_version=version)
        if found.type not in ("ADDED", "MODIFIED", "DELETED"):
            raise InvalidObject(where, wanted="ADDED, MODIFIED or DELETED", found=found.type)
        if found.type == "DELETED":
            gone = _identify(found.object)
            version = gone.resource_version or ""
            return DecodedEvent("DELETED", _key(gone), gone.uid or "", version)
        faults = DecodingFaults()
        meta, value = kind.read(found.object, self._sharing, faults)
        return DecodedEvent(
            found.type,
            _key(meta),
            meta.uid or "",
            meta.resource_version or "",
            value,
            tuple(faults),
        )


_LIST = msgspec.json.Decoder(wire.RawObjectList)
_EVENT = msgspec.json.Decoder(wire.RawWatchEvent)
_STATUS = msgspec.json.Decoder(wire.ErrorStatus)
_IDENTIFIED = msgspec.json.Decoder(wire.Identified)


def _identify(data: Raw) -> wire.Identity:
    """Return the identity of an object, as far as it can be read."""
    try:
        return _IDENTIFIED.decode(data).metadata
    except UNREADABLE:
        return wire.Identity()


def _key(found: Identity) -> str:
    name = found.name or ""
    return f"{found.namespace}/{name}" if found.namespace else name
