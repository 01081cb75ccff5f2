"""The runtime's protocol in bytes: spec examples, round trips, and what is not the protocol."""

import contextlib
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.runtimehooks import wire
from koordlet.runtimehooks.wire import (
    ConfigureResponse,
    Container,
    ContainerAdjustment,
    ContainerMount,
    ContainerRequest,
    ContainerUpdate,
    CreateContainerResponse,
    KeyValue,
    LinuxContainer,
    LinuxContainerAdjustment,
    LinuxContainerUpdate,
    LinuxCPU,
    LinuxDevice,
    LinuxMemory,
    LinuxPodSandbox,
    LinuxResources,
    PodSandbox,
    RegisterPluginRequest,
    StateChangeEvent,
    SynchronizeRequest,
    SynchronizeResponse,
    WireError,
)

QUOTA = LinuxResources(LinuxMemory(1 << 30), LinuxCPU(shares=512, quota=50_000))

# As Go's runtime encodes them; tests/e2e/test_nri.py has it encode pods and containers too.
OF_GO = [
    (RegisterPluginRequest("koordlet_nri", "00"), "0a0c6b6f6f72646c65745f6e726912023030"),
    (
        CreateContainerResponse(
            ContainerAdjustment(linux=LinuxContainerAdjustment(resources=QUOTA))
        ),
        "0a1b321912170a080a06088080808004120b0a03088004120408d08603",
    ),
    (
        ContainerAdjustment(
            mounts=(ContainerMount("/d", "bind", "/s", ("rbind",)),), env=(KeyValue("K", "V"),)
        ),
        "1a150a022f64120462696e641a022f7322057262696e6422060a014b120156",
    ),
    (
        LinuxContainerAdjustment(devices=(LinuxDevice("/dev/r", "c", 10, 58, 0o666),)),
        "0a140a062f6465762f72120163180a203a2a0308b603",
    ),
    (LinuxResources(cpu=LinuxCPU(quota=-1)), "120d120b08ffffffffffffffffff01"),
    (ConfigureResponse(141), "108d01"),
    (LinuxResources(cpu=LinuxCPU(shares=0, cpus="0-3")), "12070a003203302d33"),
]


@pytest.mark.parametrize(("message", "text"), OF_GO)
def test_messages_are_those_of_go(message, text):
    """A present optional value of 0 is an empty message, an absent one is nothing."""
    assert message.encode().hex() == text
    assert type(message).decode(bytes.fromhex(text)) == message


def test_the_reply_to_configure_is_that_of_the_reference():
    """Header, response and payload, as the chapter of the protocol has them."""
    response = wire.Response(payload=ConfigureResponse(141).encode())
    packed = wire.packed(1, wire.MessageType.RESPONSE, response.encode())

    framed = wire.frames(wire.PLUGIN, packed)

    assert framed.hex() == "000000010000000f000000050000000102001203108d01"


texts = st.text(max_size=20)
maps = st.dictionaries(texts, texts, max_size=4)
signed = st.none() | st.integers(-(1 << 63), (1 << 63) - 1)
unsigned = st.none() | st.integers(0, (1 << 64) - 1)
resources = st.none() | st.builds(
    LinuxResources,
    memory=st.none() | st.builds(LinuxMemory, signed),
    cpu=st.none() | st.builds(LinuxCPU, shares=unsigned, quota=signed, period=unsigned, cpus=texts),
)
pods = st.builds(
    PodSandbox,
    id=texts,
    name=texts,
    uid=texts,
    namespace=texts,
    labels=maps,
    annotations=maps,
    linux=st.none() | st.builds(LinuxPodSandbox, texts),
)
containers = st.builds(
    Container,
    id=texts,
    pod_sandbox_id=texts,
    name=texts,
    state=st.integers(0, 4),
    linux=st.none() | st.builds(LinuxContainer, resources),
)
updates = st.builds(
    ContainerUpdate,
    container_id=texts,
    linux=st.none() | st.builds(LinuxContainerUpdate, resources),
    ignore_failure=st.booleans(),
)
long = st.integers(-(1 << 63), (1 << 63) - 1)
devices = st.builds(LinuxDevice, path=texts, type=texts, major=long, minor=long, file_mode=unsigned)
mounts = st.builds(ContainerMount, texts, texts, texts, st.lists(texts, max_size=3).map(tuple))
adjustments = st.builds(
    ContainerAdjustment,
    mounts=st.lists(mounts, max_size=2).map(tuple),
    env=st.lists(st.builds(KeyValue, texts, texts), max_size=3).map(tuple),
    linux=st.none()
    | st.builds(
        LinuxContainerAdjustment,
        devices=st.lists(devices, max_size=2).map(tuple),
        resources=resources,
    ),
)
all_messages = st.one_of(
    pods,
    st.builds(CreateContainerResponse, st.none() | adjustments),
    containers,
    updates,
    st.builds(ContainerRequest, pods, containers, resources),
    st.builds(SynchronizeRequest, st.lists(pods, max_size=3).map(tuple), more=st.booleans()),
    st.builds(SynchronizeResponse, st.lists(updates, max_size=3).map(tuple), more=st.booleans()),
    st.builds(StateChangeEvent, st.integers(-1, 14), st.none() | pods),
)


@given(all_messages)
def test_every_message_comes_back_as_it_was(message):
    assert type(message).decode(message.encode()) == message


@given(all_messages, st.data())
def test_a_message_that_is_cut_off_is_refused_or_shorter(message, data):
    """Never an exception of another kind."""
    encoded = message.encode()
    cut = data.draw(st.integers(0, len(encoded)))
    with contextlib.suppress(WireError):
        type(message).decode(encoded[:cut])


@given(st.sampled_from([SynchronizeRequest, ContainerRequest, wire.Request]), st.binary())
def test_any_bytes_are_a_message_or_refused(of, content):
    with contextlib.suppress(WireError):
        of.decode(content)


@given(all_messages, st.integers(100, 5000), st.binary(max_size=40), st.integers(0, 1 << 60))
def test_fields_that_are_not_known_are_passed_over(message, number, content, value):
    """As newer runtimes send them: of each wire type."""
    unknown = bytearray()
    for wire_type, raw in ((0, _varint(value)), (2, _varint(len(content)) + content)):
        unknown += _varint(number << 3 | wire_type) + raw
    unknown += _varint(number << 3 | 1) + b"12345678" + _varint(number << 3 | 5) + b"1234"

    assert type(message).decode(bytes(unknown) + message.encode()) == message


def test_parts_of_a_message_are_put_together():
    """The last of a scalar counts; parts of a message in it are merged."""
    parts = [
        LinuxResources(cpu=LinuxCPU(quota=1, cpus="0")),
        LinuxResources(cpu=LinuxCPU(cpus="1")),
    ]

    found = LinuxResources.decode(b"".join(part.encode() for part in parts))

    assert found == LinuxResources(cpu=LinuxCPU(quota=1, cpus="1"))


@pytest.mark.parametrize(
    "content",
    [
        b"\x0a\x05ab",  # shorter than it says
        b"\xff" * 11,  # an integer without an end
        b"\x0a\x02\xff\xfe",  # no UTF-8
        b"\x08\x01",  # a number where a string should be
        b"\x0b",  # a group
    ],
)
def test_what_is_malformed_is_refused(content):
    with pytest.raises(WireError, match="wanted"):
        PodSandbox.decode(content)


def test_more_items_than_a_node_has_are_refused(monkeypatch):
    """Empty messages take two bytes each, and a hundred in memory."""
    monkeypatch.setattr(wire, "MAX_ITEMS", 3)
    SynchronizeRequest.decode(b"\x0a\x00" * 3)
    for content in (b"\x0a\x00" * 4, b"\x12\x00" * 4):
        with pytest.raises(WireError, match="at most 3"):
            SynchronizeRequest.decode(content)
    with pytest.raises(WireError, match="at most 3"):
        PodSandbox(labels=dict.fromkeys(string.ascii_lowercase, "")).decode(
            PodSandbox(labels=dict.fromkeys(string.ascii_lowercase, "")).encode()
        )


def test_a_message_in_too_many_parts_is_refused(monkeypatch):
    """Of one field, and of all fields, also of those that are not known."""
    part = ContainerRequest(pod=PodSandbox(id="x")).encode()
    assert ContainerRequest.decode(part * 60_000).pod.id == "x"
    monkeypatch.setattr(wire, "MAX_ITEMS", 3)
    assert ContainerRequest.decode(part * 3).pod.id == "x"
    with pytest.raises(WireError, match=r"pod: wanted at most 3 items"):
        ContainerRequest.decode(part * 4)
    monkeypatch.setattr(wire, "MAX_FIELDS", 5)
    for unknown in (b"\x98\x06\x01", b"\x9a\x06\x00"):
        ContainerRequest.decode(unknown * 5)
        with pytest.raises(WireError, match="at most 5 fields"):
            ContainerRequest.decode(unknown * 6)


@given(st.binary(max_size=20_000), st.lists(st.integers(1, 9000), max_size=8))
def test_frames_are_small_and_come_back_however_they_arrive(content, cuts):
    """The runtime fails with frames of more than 4096 bytes."""
    framed = wire.frames(7, content)
    reader, found = wire.FrameReader(), []
    for piece in _pieces(framed, cuts):
        found += list(reader.feed(piece))

    assert all(len(each) <= wire.MAX_SENT for _, each in found)
    assert {connection for connection, _ in found} <= {7}
    assert b"".join(each for _, each in found) == content


@given(st.lists(st.binary(max_size=3000), max_size=4), st.lists(st.integers(1, 4000), max_size=8))
def test_messages_of_a_stream_come_back_however_they_arrive(contents, cuts):
    sent = b"".join(
        wire.packed(number, wire.MessageType.REQUEST, content)
        for number, content in enumerate(contents)
    )
    reader, found = wire.StreamReader(), []
    for piece in _pieces(sent, cuts):
        found += list(reader.feed(piece))

    assert [frame.content for frame in found] == contents
    assert [frame.stream for frame in found] == list(range(len(contents)))


def test_lengths_that_no_runtime_sends_are_refused():
    """Before any of it is kept."""
    with pytest.raises(WireError, match="at most"):
        list(wire.FrameReader().feed(b"\0\0\0\1" + b"\xff\xff\xff\xff"))
    with pytest.raises(WireError, match="at most"):
        list(wire.StreamReader().feed(b"\xff\xff\xff\xff" + b"\0" * 6))
    with pytest.raises(WireError, match="at most"):
        wire.packed(1, wire.MessageType.RESPONSE, bytes(wire.MAX_DATA + 1))


def _pieces(content: bytes, cuts: list[int]) -> list[bytes]:
    pieces = []
    for cut in cuts:
        pieces.append(content[:cut])
        content = content[cut:]
    return [*pieces, content]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
