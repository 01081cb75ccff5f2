"""Files that describe devices: what they may say, and what is refused."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util.errors import InvalidObject
from koordlet.host.devices import MAX_XPU_FILE_BYTES, MAX_XPU_FILES, XpuFiles, parse_xpus
from koordlet.rules.devices import DeviceTopology, PeerLink, Xpu, XpuSet

XPU: dict[str, Any] = {
    "vendor": "huawei",
    "model": "Ascend-910B",
    "uuid": "u1",
    "minor": 0,
    "resources": {"gpu-core": "100", "gpu-memory": "64Gi", "huawei.com/npu-core": 20},
    "topology": {
        "p2pLinks": [{"peerMinor": "1,2", "type": "HCCS"}],
        "mustHonorPartition": True,
        "socketID": 1,
        "nodeID": 1,
        "pcieID": "pci0000:3a",
        "busID": "0000:3b:00.0",
    },
    "status": {"healthy": False, "errCode": "79", "errMessage": "off the bus"},
}


def text(**changes: object) -> bytes:
    return json.dumps([XPU | changes]).encode()


def parsed(data: bytes, where: str) -> tuple[Xpu, ...]:
    xpus, problem = parse_xpus(data, where)
    assert problem == ""
    return xpus


def test_a_whole_one() -> None:
    [xpu] = parsed(text(), "f")
    assert (xpu.vendor, xpu.model, xpu.uuid, xpu.minor) == ("huawei", "Ascend-910B", "u1", 0)
    assert xpu.resources == {
        "koordinator.sh/gpu-core": "100",
        "koordinator.sh/gpu-memory": "64Gi",
        "huawei.com/npu-core": "20",
    }
    assert xpu.topology == DeviceTopology(1, "pci0000:3a", "0000:3b:00.0")
    assert xpu.links == (PeerLink("HCCS", (1, 2)),)
    assert xpu.must_honor_partition
    assert (xpu.error, xpu.message) == ("Code_79", "off the bus")


def test_the_least_that_one_says() -> None:
    """Without a status it is healthy; a minor may be a text."""
    [xpu] = parsed(b'[{"uuid": "u", "minor": "3", "status": null, "extra": {}}]', "f")
    assert (xpu.uuid, xpu.minor, xpu.error, xpu.topology) == ("u", 3, "", None)
    assert parsed(b"[]", "f") == parsed(b"null", "f") == ()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ({"healthy": True, "errCode": "x"}, ""),
        ({}, "Unknown"),
        ({"errCode": "79"}, "Code_79"),
        (None, ""),
        ({"healthy": False}, "Unknown"),
        ({"healthy": False, "errCode": "HBM error!"}, "HBM_error"),
        ({"healthy": False, "errCode": "\u202e"}, "Unknown"),
    ],
)
def test_health(status: dict[str, Any] | None, error: str) -> None:
    assert parsed(text(status=status), "f")[0].error == error


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'"x"',
        b"[" * 5000,
        b"[" + b" " * MAX_XPU_FILE_BYTES + b"]",
    ],
)
def test_what_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidObject):
        parse_xpus(data, "f")


@pytest.mark.parametrize(
    "bad",
    [
        b"[1]",
        text(uuid=""),
        text(uuid=None),
        text(uuid="a\nb"),
        text(uuid="\u202eevil"),
        text(uuid="x" * 200),
        text(minor=-1),
        text(minor=2**31),
        text(minor=None),
        text(minor=True),
        text(minor="0x1"),
        text(vendor=7),
        text(resources={"gpu-core": "many"}),
        text(resources={"gpu-core": "-1"}),
        text(resources={"../../x y": "1"}),
        text(resources={str(n): "1" for n in range(100)}),
        text(topology={"nodeID": 0, "pcieID": "../.."}),
        text(topology={"nodeID": 2**40, "pcieID": "p"}),
        text(topology={"nodeID": 0, "pcieID": "p", "busID": "../../etc"}),
        text(topology={"p2pLinks": [{"peerMinor": "1;2"}]}),
        text(topology={"p2pLinks": 7}),
        text(status={"healthy": "yes"}),
        text(topology={"nodeID": "x"}),
        text(topology={"nodeID": True}),
        text(topology={"socketID": "one"}),
        text(topology={"p2pLinks": [{"peerMinor": "-1", "type": "HCCS"}]}),
        text(minor="1_0"),
        text(minor="\u0663"),
    ],
)
def test_a_bad_device_costs_only_itself(bad: bytes) -> None:
    [device] = json.loads(bad)
    good = XPU | {"uuid": "good"}
    xpus, problem = parse_xpus(json.dumps([device, good]).encode(), "f")
    assert [xpu.uuid for xpu in xpus] == ["good"]
    assert problem.startswith("f[0]")
    assert problem.isprintable()


def test_of_two_devices_with_a_uuid_the_first_counts() -> None:
    xpus, problem = parse_xpus(json.dumps([XPU, XPU | {"minor": 5}]).encode(), "f")
    assert [xpu.minor for xpu in xpus] == [0]
    assert problem == "f[1]: wanted a UUID of its own, found u1 twice"


OFFICIAL = b"""[{"vendor": "huawei", "model": "Ascend-910B", "UUID": "185011D4", "minor": "3",
  "resources": {"gpu-core": "100", "gpu-memory": "64Gi"},
  "topology": {"p2pLinks": [{"peerMinor": "0,1,2", "type": "HCCS"}], "mustHonorPartition": true,
    "socketID": "0", "nodeID": "1", "pcieID": "pci0000:3a", "busID": "0000:3b:00.0"},
  "status": {"healthy": true, "errCode": "0", "errMessage": ""}}]"""


def test_koordinators_own_form() -> None:
    """Numbers are texts there."""
    [xpu] = parsed(OFFICIAL, "f")
    assert (xpu.uuid, xpu.minor, xpu.error) == ("185011D4", 3, "")
    assert xpu.topology == DeviceTopology(1, "pci0000:3a", "0000:3b:00.0")
    assert xpu.links == (PeerLink("HCCS", (0, 1, 2)),)


@given(
    st.integers(0, 2**31 - 1), st.none() | st.integers(-1, 2**31 - 1), st.integers(-1, 2**31 - 1)
)
def test_numbers_and_texts_are_one(minor: int, node: int | None, socket: int) -> None:
    place = {"nodeID": node, "socketID": socket, "pcieID": "pci0000:00"}
    texts = {key: "" if value is None else str(value) for key, value in place.items()}
    [as_numbers] = parsed(text(minor=minor, topology=place), "f")
    assert parsed(text(minor=str(minor), topology=texts), "f") == (as_numbers,)
    assert as_numbers.topology == DeviceTopology(-1 if node is None else node, "pci0000:00")


@pytest.mark.parametrize(
    ("topology", "found"),
    [
        (None, None),
        ({}, DeviceTopology(-1, "")),
        ({"p2pLinks": []}, DeviceTopology(-1, "")),
        ({"busID": "0000:3B:00.0"}, DeviceTopology(-1, "", "0000:3b:00.0")),
        ({"pcieID": "p", "nodeID": ""}, DeviceTopology(-1, "p")),
        ({"pcieID": "p", "nodeID": "-1"}, DeviceTopology(-1, "p")),
    ],
)
def test_what_is_not_known_of_a_place(topology: object, found: DeviceTopology | None) -> None:
    assert parsed(text(topology=topology), "f")[0].topology == found


@pytest.mark.parametrize(
    "link", [{}, {"peerMinor": "1"}, {"type": "HCCS"}, {"peerMinor": " ", "type": "HCCS"}]
)
def test_half_a_link_is_left_out(link: dict[str, str]) -> None:
    whole = {"peerMinor": "2", "type": "HCCS"}
    [xpu] = parsed(text(topology={"p2pLinks": [link, whole]}), "f")
    assert xpu.links == (PeerLink("HCCS", (2,)),)


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    try:
        parse_xpus(data, "f")
    except InvalidObject:
        return


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(XPU)), JSON))
def test_any_values(changes: dict[str, object]) -> None:
    try:
        parse_xpus(text(**changes), "f")
    except InvalidObject:
        return


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    found = tmp_path / "xpu"
    found.mkdir()
    return found


def uuids(files: XpuFiles) -> list[str]:
    return [xpu.uuid for xpu in files.read().xpus]


def test_all_files_count(directory: Path) -> None:
    (directory / "b.json").write_bytes(text(uuid="u1"))
    (directory / "a").write_bytes(text(uuid="u2"))
    (directory / ".new").write_bytes(b"half")
    (directory / "deeper").mkdir()
    files = XpuFiles(directory)
    assert uuids(files) == ["u1", "u2"]
    assert files.problem == ""
    (directory / "a").unlink()
    assert uuids(files) == ["u1"]


def test_without_the_directory_there_are_none(tmp_path: Path) -> None:
    assert XpuFiles(tmp_path / "missing").read() == XpuSet()


def test_a_file_that_turns_bad_keeps_what_it_said(directory: Path) -> None:
    file = directory / "a"
    file.write_bytes(text())
    files = XpuFiles(directory)
    assert uuids(files) == ["u1"]
    file.write_bytes(b"[{")
    assert uuids(files) == ["u1"]
    assert "a: wanted JSON" in files.problem
    file.write_bytes(text(uuid="u9"))
    assert uuids(files) == ["u9"]
    assert files.problem == ""


def test_one_that_was_never_good_costs_only_itself(directory: Path) -> None:
    """It is known, though, that there may be more devices."""
    (directory / "a").write_bytes(text())
    (directory / "b").write_bytes(b"[{")
    files = XpuFiles(directory)
    found = files.read()
    assert [xpu.uuid for xpu in found.xpus] == ["u1"]
    assert not found.complete
    assert "b: wanted JSON" in files.problem
    (directory / "b").write_bytes(text(uuid="u2"))
    assert files.read().complete


def test_a_device_of_two_files_is_that_of_the_first(directory: Path) -> None:
    (directory / "a").write_bytes(text(minor=1))
    (directory / "b").write_bytes(text(minor=2))
    files = XpuFiles(directory)
    assert [xpu.minor for xpu in files.read().xpus] == [1]
    assert files.problem == "b: u1 is in another file, too"


def test_hostile_files_are_not_read(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(text())
    hostile = {
        "link": lambda path: path.symlink_to(tmp_path / "secret"),
        "fifo": os.mkfifo,
        "open": lambda path: (path.write_bytes(text()), path.chmod(0o666)),
        "esc\x1b": lambda path: path.write_bytes(b"x"),
    }
    for name, make in hostile.items():
        make(directory / name)
        files = XpuFiles(directory)
        assert files.read() == XpuSet((), complete=False)
        assert files.problem
        assert files.problem.isprintable()
        (directory / name).unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root on this machine")
def test_another_users_file_is_not_read(directory: Path) -> None:
    (directory / "a").write_bytes(text())
    os.chown(directory / "a", 1000, 1000)
    files = XpuFiles(directory)
    assert files.read() == XpuSet((), complete=False)
    assert "found one of user 1000" in files.problem


def test_of_too_many_files_the_first_count(directory: Path) -> None:
    for number in range(MAX_XPU_FILES + 1):
        (directory / f"{number:02}").write_bytes(text(uuid=f"u{number:02}"))
    files = XpuFiles(directory)
    found = files.read()
    assert [xpu.uuid for xpu in found.xpus] == [f"u{number:02}" for number in range(MAX_XPU_FILES)]
    assert not found.complete
    assert files.problem == "65 files; the first 64 by name count"
