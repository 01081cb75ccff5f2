"""Files that describe devices: what they may say, and what is refused."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util.errors import InvalidObject
from koordlet.host.devices.xpu import MOST_BYTES, MOST_FILES, XpuFiles, parse_xpus
from koordlet.host.errors import KernelFileError
from koordlet.rules.devices import DeviceTopology, PeerLink

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


def test_a_whole_one() -> None:
    [xpu] = parse_xpus(text(), "f")
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
    [xpu] = parse_xpus(b'[{"uuid": "u", "minor": "3", "status": null, "extra": {}}]', "f")
    assert (xpu.uuid, xpu.minor, xpu.error, xpu.topology) == ("u", 3, "", None)
    assert parse_xpus(b"[]", "f") == ()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ({"healthy": True, "errCode": "x"}, ""),
        ({}, ""),
        ({"healthy": False}, "Unknown"),
        ({"healthy": False, "errCode": "HBM error!"}, "HBM_error"),
        ({"healthy": False, "errCode": "\u202e"}, "Unknown"),
    ],
)
def test_health(status: dict[str, Any], error: str) -> None:
    assert parse_xpus(text(status=status), "f")[0].error == error


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'"x"',
        b"[1]",
        b"[" * 5000,
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
        json.dumps([XPU, XPU]).encode(),
        b"[" + b" " * MOST_BYTES + b"]",
    ],
)
def test_what_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidObject):
        parse_xpus(data, "f")


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
    return [xpu.uuid for xpu in files.read()]


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
    assert XpuFiles(tmp_path / "missing").read() == ()


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


def test_one_that_was_never_good_leaves_all_unknown(directory: Path) -> None:
    """Else its devices would be taken from the cluster."""
    (directory / "a").write_bytes(text())
    (directory / "b").write_bytes(b"[{")
    with pytest.raises(KernelFileError, match="b: wanted JSON"):
        XpuFiles(directory).read()


def test_a_device_of_two_files_is_that_of_the_first(directory: Path) -> None:
    (directory / "a").write_bytes(text(minor=1))
    (directory / "b").write_bytes(text(minor=2))
    files = XpuFiles(directory)
    assert [xpu.minor for xpu in files.read()] == [1]
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
        with pytest.raises(KernelFileError) as caught:
            XpuFiles(directory).read()
        assert "\x1b" not in str(caught.value)
        (directory / name).unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root on this machine")
def test_another_users_file_is_not_read(directory: Path) -> None:
    (directory / "a").write_bytes(text())
    os.chown(directory / "a", 1000, 1000)
    with pytest.raises(KernelFileError, match="found one of user 1000"):
        XpuFiles(directory).read()


def test_too_many_files_are_not_read(directory: Path) -> None:
    for number in range(MOST_FILES + 1):
        (directory / str(number)).write_bytes(b"[]")
    with pytest.raises(KernelFileError, match="65 files; 64 at most"):
        XpuFiles(directory).read()
