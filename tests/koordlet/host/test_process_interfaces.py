"""Namespace and counters of a process in one look."""

from pathlib import Path

import pytest

from koordlet.host.errors import KernelFileError, Vanished
from koordlet.host.net.interfaces import process_interfaces
from koordlet.host.processes import network_namespace

HEADER = b"Inter-|   Receive\n face |bytes\n"


def test_our_own_process_is_in_our_own_namespace():
    """The number is the one that namespaces are compared by."""
    inode, counters = process_interfaces(Path("/proc/self").resolve().parent, _self())

    assert inode == network_namespace(Path("/proc"), "self")
    assert "lo" in counters


def test_a_namespace_with_many_interfaces_is_read_whole(tmp_path: Path):
    """The kernel hands out a page at a time."""
    lines = (f"veth{n}: {n}".encode() + b" 0" * 15 + b"\n" for n in range(5000))
    _write(tmp_path, HEADER + b"".join(lines))
    _, counters = process_interfaces(tmp_path, 7)

    assert len(counters) == 5000
    assert counters["veth4999"].rx_bytes == 4999


def test_an_ended_process_is_nothing_special(tmp_path: Path):
    """Containers end all the time."""
    with pytest.raises(Vanished):
        process_interfaces(tmp_path, 7)


def test_garbage_is_refused_with_its_path(tmp_path: Path):
    """Whoever reads the log must know which file it was."""
    _write(tmp_path, b"\xff\x00")
    with pytest.raises(KernelFileError, match="7/net/dev"):
        process_interfaces(tmp_path, 7)


def _self() -> int:
    return int(Path("/proc/self").resolve().name)


def _write(proc: Path, data: bytes) -> None:
    directory = proc / "7" / "net"
    directory.mkdir(parents=True)
    (directory / "dev").write_bytes(data)
