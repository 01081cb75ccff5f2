"""Classes by the cgroup of a socket: real nf_tables, in a network namespace of each test's own."""

import errno
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordlet.host.net.tc import cgroup_map
from koordlet.host.net.tc.kernel import KernelTraffic
from koordlet.host.net.tc.tree import MAJOR, CgroupMatch, TrafficRefused
from tests.support.node.network_namespace import ip, needs_namespaces, own_network, tc

pytestmark = needs_namespaces

CLASSES = (
    "default 2; class 1 below 0 rate 125000000 ceil 125000000 prio 0; "
    "class 2 below 1 rate 50000000 ceil 125000000 prio 1; "
    "class 4 below 1 rate 12500000 ceil 62500000 prio 3"
)
SEND = """
import os, socket, sys
if sys.argv[1]:
    open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(10):
    to.sendto(bytes(1000), ("10.0.0.1", 9))
"""


@pytest.fixture
def traffic() -> Iterator[KernelTraffic]:
    """Of an interface va, from which packets go to 10.0.0.1."""
    with own_network():
        ip("addr add 10.0.0.7/24 dev va")
        ip("neigh add 10.0.0.1 lladdr 02:00:00:00:00:01 dev va")
        traffic = KernelTraffic()
        if not traffic.supports_cgroup_map():
            pytest.skip("this kernel has no match of nf_tables on cgroups")
        yield traffic


@pytest.fixture
def group() -> Iterator[Path]:
    """A cgroup of v2 with another one in it."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    root = next((Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"), None)
    if root is None or not os.access(root, os.W_OK):
        pytest.skip("no hierarchy of cgroup v2 is mounted here for this user")
    group = root / f"koordlet-test-{uuid.uuid4().hex[:8]}"
    (group / "container").mkdir(parents=True)
    yield group
    (group / "container").rmdir()
    group.rmdir()


def number(group: Path) -> int:
    return group.stat().st_ino


def write(traffic: KernelTraffic, text: str) -> None:
    traffic.write("va", traffic.identity("va"), f"{text}\n".encode())


def shown(traffic: KernelTraffic) -> str:
    return (traffic.read("va") or b"").decode().removesuffix("\n")


def send(group: Path | str = "") -> None:
    subprocess.run([sys.executable, "-c", SEND, str(group)], check=True, timeout=60)


def packets(minor: int) -> int:
    found = tc(f"-s class show dev va classid 6b6c:{minor}")
    return int(found.partition(" bytes ")[2].split()[0])


def table_of(interface: str) -> bool:
    """Whether there is one of ours."""
    try:
        list(cgroup_map._ask(cgroup_map._GET_SET, cgroup_map._text(1, f"koordlet-{interface}")))
    except FileNotFoundError:
        return False
    return True


def index() -> int:
    return socket.if_nametoindex("va")


def test_packets_go_to_the_class_of_their_sockets_cgroup(traffic: KernelTraffic, group: Path):
    """Of one below it too, of others not; in the end no table is left."""
    text = f"{CLASSES}; socket 1/{number(group)} class 4"
    write(traffic, text)
    assert shown(traffic) == text

    send()
    assert packets(4) == 0
    send(group / "container")
    assert packets(4) == 10

    write(traffic, CLASSES)
    assert shown(traffic) == CLASSES
    send(group / "container")
    assert packets(4) == 10
    write(traffic, text)
    write(traffic, "absent")
    assert shown(traffic) == "absent"
    assert not table_of(str(index()))


def test_many_cgroups_at_several_levels(traffic: KernelTraffic):
    """As many as a node may have pods, and more; what is there is read back."""
    matches = [CgroupMatch(2 + each % 3, 1000 + each, 2 + 2 * (each % 2)) for each in range(1500)]
    text = "; ".join((CLASSES, *map(str, sorted(matches))))
    write(traffic, text)
    assert shown(traffic) == text

    one = f"{CLASSES}; {min(matches)}"
    write(traffic, one)
    assert shown(traffic) == one


def test_what_a_killed_process_left_is_removed(traffic: KernelTraffic):
    """A table without a tree; and a look for what the kernel can leaves none."""
    cgroup_map.set_cgroup_map(index(), MAJOR, [CgroupMatch(1, 4711, 4)])
    assert shown(traffic) == "absent"

    traffic.identity("va")

    assert not table_of(str(index()))
    assert not table_of("probe")


def test_a_table_that_another_changed_shows_as_another_tree(traffic: KernelTraffic):
    """So it is detected, and set again."""
    text = f"{CLASSES}; socket 1/4711 class 4"
    write(traffic, text)
    cgroup_map.set_cgroup_map(index(), MAJOR, [CgroupMatch(1, 4712, 4)])
    assert shown(traffic) == text.replace("4711", "4712")
    cgroup_map.set_cgroup_map(index(), 0x10000, [CgroupMatch(1, 4711, 4)])
    assert shown(traffic) == "altered"

    write(traffic, text)
    assert shown(traffic) == text


def test_a_kernel_that_refuses_has_what_it_had(
    traffic: KernelTraffic, monkeypatch: pytest.MonkeyPatch
):
    """Classes and sockets change together or not at all."""
    text = f"{CLASSES}; socket 1/4711 class 4"
    write(traffic, text)
    real = cgroup_map.set_cgroup_map

    def refuse(index: int, major: int, matches: tuple[CgroupMatch, ...]) -> None:
        if matches and matches[0].cgroup == 4712:
            raise OSError(errno.ENOSPC, "no room")
        real(index, major, matches)

    monkeypatch.setattr("koordlet.host.net.tc.kernel.set_cgroup_map", refuse)
    with pytest.raises(TrafficRefused, match="nf_tables"):
        write(traffic, text.replace("4711", "4712").replace("12500000 ceil", "12500001 ceil"))
    assert shown(traffic) == text


def test_a_kernel_without_nf_tables_has_no_sockets(
    traffic: KernelTraffic, monkeypatch: pytest.MonkeyPatch
):
    """Trees of addresses work as before."""

    def lacking() -> None:
        raise OSError(errno.EPROTONOSUPPORT, "no nf_tables")

    monkeypatch.setattr(cgroup_map, "_connect", lacking)
    assert not traffic.supports_cgroup_map()
    write(traffic, CLASSES)
    assert shown(traffic) == CLASSES
