"""The runtime's protocol on the wire: multiplexed connections, ttrpc, protobuf. No I/O."""

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple, Self

from koord.util.errors import KoordError
from koord.util.protobuf import LENGTH, VARINT, MalformedMessage, append, fields_of


class WireError(KoordError):
    """Bytes that the protocol does not allow; their connection cannot be used any more."""


def malformed(what: str, wanted: str, found: object) -> WireError:
    """Return the error for a part of a message."""
    return unusable(f"{what}: wanted {wanted}, found {found!r:.80}")


def unusable(problem: str) -> WireError:
    """Return the error for bytes with a problem."""
    return WireError(f"{problem}; the connection is closed and made anew")


MAX_ITEMS = 65536  # of a repeated field or a map, and parts of a message
MAX_FIELDS = 4 * MAX_ITEMS  # in a message without those in it, whether named or not
_BITS64 = (1 << 64) - 1
_KEY = "protobuf"


class _Kind(NamedTuple):
    """Reads and writes the values of a field, as an int or as bytes, by the wire type."""

    wire: int
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]
    is_default: Callable[[Any], bool] = lambda value: not value


class _Numbered(NamedTuple):
    """A field. merged: a message, which may come in several parts."""

    number: int
    kind: _Kind
    repeated: bool = False
    by_key: bool = False
    merged: bool = False


class Message:
    """A message; its dataclass fields are made by the functions below."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def encode(self) -> bytes:
        """Return the message as bytes; fields in the order of their numbers."""
        out = bytearray()
        for name, numbered in _layout(type(self)).in_order:
            value = getattr(self, name)
            if numbered.by_key:
                for key, item in value.items():
                    append(out, numbered.number, _MapEntry(key, item).encode())
            elif numbered.repeated:
                for item in value:
                    append(out, numbered.number, numbered.kind.write(item))
            elif not numbered.kind.is_default(value):
                append(out, numbered.number, numbered.kind.write(value))
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the message in some bytes.

        Raises:
            WireError: they are cut off, or a field is not of its type.
        """
        layout = _layout(cls)
        values: dict[str, Any] = {}
        try:
            for count, (number, wire, value, _, _) in enumerate(fields_of(data)):
                if count == MAX_FIELDS:
                    raise malformed(cls.__name__, f"at most {MAX_FIELDS} fields", "more")
                if (found := layout.by_number.get(number)) is None:
                    continue
                name, numbered = found
                if numbered.kind.wire != wire:
                    wanted = f"wire type {numbered.kind.wire}"
                    raise malformed(f"{cls.__name__}.{name}", wanted, wire)
                _take(values, name, numbered, value)
        except MalformedMessage as err:
            raise unusable(f"{cls.__name__}: {err}") from err
        for name, numbered in layout.collected:
            if name in values:
                items = values[name]
                values[name] = (
                    numbered.kind.read(b"".join(items)) if numbered.merged else tuple(items)
                )
        return cls(**values)


def text(number: int) -> Any:
    """A string; absent: ""."""
    return _field(_Numbered(number, _TEXT), default="")


def data(number: int) -> Any:
    """Bytes; absent: none."""
    return _field(_Numbered(number, _BYTES), default=b"")


def integer(number: int) -> Any:
    """A signed integer of 32 or 64 bits, or an enumeration; absent: 0."""
    return _field(_Numbered(number, _INTEGER), default=0)


def boolean(number: int) -> Any:
    """A boolean; absent: False."""
    return _field(_Numbered(number, _BOOLEAN), default=False)


def optional_integer(number: int) -> Any:
    """A message with a signed integer as its field 1; absent: None."""
    return _field(_Numbered(number, _optional(_SignedValue)), default=None)


def optional_unsigned(number: int) -> Any:
    """A message with an unsigned integer as its field 1; absent: None."""
    return _field(_Numbered(number, _optional(_UnsignedValue)), default=None)


def message(number: int, of: type[Message]) -> Any:
    """A message; absent: None."""
    kind = _Kind(LENGTH, of.decode, of.encode, lambda value: value is None)
    return _field(_Numbered(number, kind, merged=True), default=None)


def messages(number: int, of: type[Message]) -> Any:
    """Several messages, as a tuple."""
    return _field(_Numbered(number, _Kind(LENGTH, of.decode, of.encode), repeated=True), default=())


def texts(number: int) -> Any:
    """Several strings, as a tuple."""
    return _field(_Numbered(number, _TEXT, repeated=True), default=())


def texts_by_text(number: int) -> Any:
    """A map of strings to strings."""
    return _field(_Numbered(number, _BYTES, by_key=True), default_factory=dict)


def _field(numbered: _Numbered, **default: Any) -> Any:
    return field(metadata={_KEY: numbered}, **default)


class _Layout(NamedTuple):
    """The fields of a message. collected: those that are not complete before its end."""

    in_order: tuple[tuple[str, _Numbered], ...]
    by_number: Mapping[int, tuple[str, _Numbered]]
    collected: tuple[tuple[str, _Numbered], ...]


_LAYOUTS: dict[type, _Layout] = {}


def _layout(of: type[Message]) -> _Layout:
    found = _LAYOUTS.get(of)
    if found is None:
        table = [(each.name, each.metadata[_KEY]) for each in fields(of)]
        rows = tuple(sorted(table, key=lambda row: row[1].number))
        found = _LAYOUTS[of] = _Layout(
            rows,
            {row[1].number: row for row in rows},
            tuple(row for row in rows if row[1].merged or row[1].repeated),
        )
    return found


def _take(values: dict[str, Any], name: str, numbered: _Numbered, raw: Any) -> None:
    """Add one field that was found to the values of a message."""
    if numbered.by_key:
        entry = _MapEntry.decode(raw)
        items = values.setdefault(name, {})
        items[entry.key] = entry.value
        _check_count(name, len(items))
    elif numbered.repeated or numbered.merged:
        items = values.setdefault(name, [])
        items.append(raw if numbered.merged else numbered.kind.read(raw))
        _check_count(name, len(items))
    else:
        values[name] = numbered.kind.read(raw)


def _check_count(name: str, count: int) -> None:
    if count > MAX_ITEMS:
        raise malformed(name, f"at most {MAX_ITEMS} items", count)


def _read_text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as err:
        raise malformed("a string", "UTF-8", raw) from err


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _unsigned(value: int) -> int:
    return value & _BITS64


_TEXT = _Kind(LENGTH, _read_text, lambda value: value.encode())
_BYTES = _Kind(LENGTH, bytes, bytes)
_INTEGER = _Kind(VARINT, _signed, _unsigned)
_BOOLEAN = _Kind(VARINT, bool, int)


@dataclass(frozen=True, slots=True)
class _SignedValue(Message):
    value: int = integer(1)


@dataclass(frozen=True, slots=True)
class _UnsignedValue(Message):
    value: int = _field(_Numbered(1, _Kind(VARINT, _unsigned, _unsigned)), default=0)


@dataclass(frozen=True, slots=True)
class _MapEntry(Message):
    key: str = text(1)
    value: str = text(2)


def _optional(of: Callable[[int], Message]) -> _Kind:
    wrapper: Any = of
    return _Kind(
        LENGTH,
        lambda raw: wrapper.decode(raw).value,
        lambda value: wrapper(value).encode(),
        lambda value: value is None,
    )


RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"
PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"


class NriEvent(IntEnum):
    """Events that a plugin can subscribe to."""

    RUN_POD_SANDBOX = 1
    REMOVE_POD_SANDBOX = 3
    CREATE_CONTAINER = 4
    START_CONTAINER = 6
    UPDATE_CONTAINER = 8

    @property
    def bit(self) -> int:
        """Its bit in ConfigureResponse.events."""
        return 1 << (self - 1)


@dataclass(frozen=True, slots=True)
class RegisterPluginRequest(Message):
    name: str = text(1)
    index: str = text(2)  # two digits


@dataclass(frozen=True, slots=True)
class ConfigureRequest(Message):
    config: str = text(1)
    runtime_name: str = text(2)
    runtime_version: str = text(3)
    registration_timeout_ms: int = integer(4)
    request_timeout_ms: int = integer(5)
    nri_version: str = text(6)


@dataclass(frozen=True, slots=True)
class ConfigureResponse(Message):
    events: int = integer(2)  # 0 means all


@dataclass(frozen=True, slots=True)
class LinuxMemory(Message):
    limit: int | None = optional_integer(1)  # bytes; -1: no limit


@dataclass(frozen=True, slots=True)
class LinuxCPU(Message):
    shares: int | None = optional_unsigned(1)
    quota: int | None = optional_integer(2)  # us in a period; -1: no limit
    period: int | None = optional_unsigned(3)  # us
    cpus: str = text(6)  # "": unset, which cannot clear


@dataclass(frozen=True, slots=True)
class LinuxResources(Message):
    memory: LinuxMemory | None = message(1, LinuxMemory)
    cpu: LinuxCPU | None = message(2, LinuxCPU)


@dataclass(frozen=True, slots=True)
class LinuxPodSandbox(Message):
    cgroup_parent: str = text(3)  # path from the root of the hierarchy


@dataclass(frozen=True, slots=True)
class PodSandbox(Message):
    id: str = text(1)
    name: str = text(2)
    uid: str = text(3)
    namespace: str = text(4)
    labels: Mapping[str, str] = texts_by_text(5)
    annotations: Mapping[str, str] = texts_by_text(6)
    linux: LinuxPodSandbox | None = message(8, LinuxPodSandbox)


@dataclass(frozen=True, slots=True)
class LinuxContainer(Message):
    resources: LinuxResources | None = message(3, LinuxResources)


@dataclass(frozen=True, slots=True)
class Container(Message):
    id: str = text(1)
    pod_sandbox_id: str = text(2)
    name: str = text(3)
    state: int = integer(4)
    linux: LinuxContainer | None = message(11, LinuxContainer)


class ContainerState(IntEnum):
    """The states of a container."""

    CREATED = 1
    PAUSED = 2
    RUNNING = 3
    STOPPED = 4

    @classmethod
    def living(cls) -> "frozenset[int]":
        """Return the states of containers that have a cgroup."""
        return frozenset({cls.CREATED, cls.PAUSED, cls.RUNNING})


@dataclass(frozen=True, slots=True)
class LinuxContainerUpdate(Message):
    resources: LinuxResources | None = message(1, LinuxResources)


@dataclass(frozen=True, slots=True)
class ContainerUpdate(Message):
    container_id: str = text(1)
    linux: LinuxContainerUpdate | None = message(2, LinuxContainerUpdate)
    ignore_failure: bool = boolean(3)


@dataclass(frozen=True, slots=True)
class SynchronizeRequest(Message):
    pods: tuple[PodSandbox, ...] = messages(1, PodSandbox)
    containers: tuple[Container, ...] = messages(2, Container)
    more: bool = boolean(3)


@dataclass(frozen=True, slots=True)
class SynchronizeResponse(Message):
    update: tuple[ContainerUpdate, ...] = messages(1, ContainerUpdate)
    more: bool = boolean(2)


@dataclass(frozen=True, slots=True)
class PodSandboxRequest(Message):
    """RunPodSandbox, RemovePodSandbox."""

    pod: PodSandbox | None = message(1, PodSandbox)


@dataclass(frozen=True, slots=True)
class StateChangeEvent(Message):
    event: int = integer(1)
    pod: PodSandbox | None = message(2, PodSandbox)
    container: Container | None = message(3, Container)


@dataclass(frozen=True, slots=True)
class ContainerRequest(Message):
    """CreateContainer, StartContainer, UpdateContainer. resources: to update to."""

    pod: PodSandbox | None = message(1, PodSandbox)
    container: Container | None = message(2, Container)
    resources: LinuxResources | None = message(3, LinuxResources)


@dataclass(frozen=True, slots=True)
class KeyValue(Message):
    """An environment variable."""

    key: str = text(1)
    value: str = text(2)


@dataclass(frozen=True, slots=True)
class ContainerMount(Message):
    destination: str = text(1)  # in the container
    type: str = text(2)
    source: str = text(3)  # on the node
    options: tuple[str, ...] = texts(4)


@dataclass(frozen=True, slots=True)
class LinuxDevice(Message):
    path: str = text(1)
    type: str = text(2)  # c: of characters
    major: int = integer(3)
    minor: int = integer(4)
    file_mode: int | None = optional_unsigned(5)


@dataclass(frozen=True, slots=True)
class LinuxContainerAdjustment(Message):
    devices: tuple[LinuxDevice, ...] = messages(1, LinuxDevice)
    resources: LinuxResources | None = message(2, LinuxResources)


@dataclass(frozen=True, slots=True)
class ContainerAdjustment(Message):
    mounts: tuple[ContainerMount, ...] = messages(3, ContainerMount)
    env: tuple[KeyValue, ...] = messages(4, KeyValue)
    linux: LinuxContainerAdjustment | None = message(6, LinuxContainerAdjustment)


@dataclass(frozen=True, slots=True)
class CreateContainerResponse(Message):
    adjust: ContainerAdjustment | None = message(1, ContainerAdjustment)


@dataclass(frozen=True, slots=True)
class UpdateContainerResponse(Message):
    update: tuple[ContainerUpdate, ...] = messages(1, ContainerUpdate)


HEADER_BYTES = 10
MAX_DATA = 4 << 20  # bytes of a message behind its header

_HEADER = struct.Struct(">IIBB")


class MessageType(IntEnum):
    """The kind of a message."""

    REQUEST = 1
    RESPONSE = 2


class Code(IntEnum):
    """The result of a call, as of gRPC."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    UNIMPLEMENTED = 12


@dataclass(frozen=True, slots=True)
class Status(Message):
    """The error of a call."""

    code: int = integer(1)
    message: str = text(2)


@dataclass(frozen=True, slots=True)
class Request(Message):
    """A call. timeout_ns 0: none."""

    service: str = text(1)
    method: str = text(2)
    payload: bytes = data(3)
    timeout_ns: int = integer(4)


@dataclass(frozen=True, slots=True)
class Response(Message):
    """The answer to a call. status None: it went well."""

    status: Status | None = message(1, Status)
    payload: bytes = data(2)


class Frame(NamedTuple):
    """One message of a stream: a call and its response have the same stream."""

    stream: int
    kind: int
    content: bytes


def packed(stream: int, kind: MessageType, content: bytes) -> bytes:
    """Return a message with its header. Raises WireError: it is too long."""
    if len(content) > MAX_DATA:
        raise malformed("a message", f"at most {MAX_DATA} bytes", len(content))
    return _HEADER.pack(len(content), stream, kind, 0) + content


class StreamReader:
    """Takes the messages of one connection apart, however the bytes arrive."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, arrived: bytes) -> Iterator[Frame]:
        """Yield each message that is complete. Raises WireError."""
        self._rest += arrived
        while len(self._rest) >= HEADER_BYTES:
            length, stream, kind, _ = _HEADER.unpack_from(self._rest)
            if length > MAX_DATA:
                raise malformed("a message", f"at most {MAX_DATA} bytes", length)
            end = HEADER_BYTES + length
            if len(self._rest) < end:
                return
            content = bytes(self._rest[HEADER_BYTES:end])
            del self._rest[:end]
            yield Frame(stream, kind, content)


PLUGIN, RUNTIME = 1, 2  # connections: requests of the runtime to us, and ours to the runtime
MAX_RECEIVED = MAX_DATA + HEADER_BYTES  # bytes
MAX_SENT = 4096  # bytes: the runtime reads with a buffer of that size, and fails with more

_FRAME_HEADER = struct.Struct(">II")


def frames(connection: int, content: bytes) -> bytes:
    """Return bytes of one connection as frames."""
    out = bytearray()
    for start in range(0, len(content), MAX_SENT):
        piece = content[start : start + MAX_SENT]
        out += _FRAME_HEADER.pack(connection, len(piece)) + piece
    return bytes(out)


class FrameReader:
    """Takes frames apart, however the bytes arrive."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, arrived: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield connection and content of each frame that is complete. Raises WireError."""
        self._rest += arrived
        while len(self._rest) >= _FRAME_HEADER.size:
            connection, length = _FRAME_HEADER.unpack_from(self._rest)
            if length > MAX_RECEIVED:
                raise malformed("a frame", f"at most {MAX_RECEIVED} bytes", length)
            end = _FRAME_HEADER.size + length
            if len(self._rest) < end:
                return
            content = bytes(self._rest[_FRAME_HEADER.size : end])
            del self._rest[:end]
            yield connection, content
