"""The node's interfaces: over rtnetlink in real namespaces, from net/dev elsewhere."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from koordlet.host.errors import KernelFileError, Unsupported
from koordlet.host.net.interfaces import LinkReader, NodeNetwork, link_speed

NET_DEV = (Path(__file__).parent / "data/net_dev").read_text()


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def links():
    reader = LinkReader()
    yield reader
    reader.close()


def test_rtnetlink_and_proc_name_the_same_interfaces(links):
    """Both read the namespace of this process."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]

    found = links.read()

    assert found.keys() == {line.partition(":")[0].strip() for line in lines}
    assert found["lo"].link.protocol_type == 772
    assert found["lo"].link.mtu > 0


def test_counters_move_without_another_look_at_the_links(links):
    """The second read asks for counters alone and still sees traffic."""
    before = links.read()["lo"]

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x" * 1000, ("127.0.0.1", 9))
    after = links.read()["lo"]

    assert after.counters.tx_bytes >= before.counters.tx_bytes + 1000
    assert after.link is before.link


def test_a_kernel_without_counters_alone(links):
    """Linux before 4.7: the links carry the counters too."""
    links._counters_alone = False

    assert links.read()["lo"].link.name == "lo"


def test_pyroute2_as_a_whole_is_not_loaded(tmp_path):
    """It costs 9 MiB; a plugin that imports it later gets it whole all the same."""
    program = (
        "import sys\n"
        "from koordlet.host.net.interfaces import LinkReader\n"
        "first = LinkReader().read()\n"
        "assert not [name for name in sys.modules if name.startswith('pyroute2')]\n"
        "import pyroute2\n"
        "with pyroute2.IPRoute() as links:\n"
        "    assert len(links.get_links()) == len(first)\n"
        "assert pyroute2.netlink.rtnl\n"
        "assert LinkReader().read().keys() == first.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)


def test_closing_gives_the_descriptors_back():
    """And the next read opens new ones."""
    before = len(os.listdir("/proc/self/fd"))
    reader = LinkReader()
    for _ in range(3):
        reader.read()
        reader.close()

    assert len(os.listdir("/proc/self/fd")) == before


CHANGES = """
import contextlib, subprocess, time
from koordlet.host.net.interfaces import LinkReader

def ip(command):
    subprocess.run(["ip", *command.split()], check=True)

with contextlib.closing(LinkReader()) as links:
    assert links.read().keys() == {"lo"}
    ip("link add left type veth peer name right")
    assert links.read().keys() == {"lo", "left", "right"}
    assert links.read()["left"].link.operstate == "down"
    index = links.read()["left"].link.ifindex
    ip("link set left mtu 1400 up")
    ip("link set right up")
    end = time.monotonic() + 10  # the kernel settles the state of a link in its own time
    while (found := links.read()["left"].link).operstate != "up" and time.monotonic() < end:
        pass
    assert (found.operstate, found.mtu, found.carrier) == ("up", 1400, 1)
    assert links.read()["right"].link.lower_ifindex == index
    ip("link set left down")
    ip("link set left name renamed")
    ip("link set renamed alias uplink")
    assert links.read()["renamed"].link.alias == "uplink"
    ip("link del renamed")
    assert links.read().keys() == {"lo"}
    for number in range(20):
        ip(f"link set lo mtu {60000 + number}")
    assert links.read()["lo"].link.mtu == 60019
"""


@pytest.mark.root
@pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root: makes interfaces in a namespace of its own"
)
def test_every_change_of_a_link_is_seen_at_once():
    """New, renamed, removed, up, down, mtu, alias, and a storm of changes."""
    command = ["unshare", "--net", sys.executable, "-W", "error", "-c", CHANGES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr


def test_a_forbidden_socket_is_a_clear_error(links, monkeypatch):
    """As in a sandbox that does not allow AF_NETLINK."""

    def refuse(*_: object):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("koordlet.host.net.netlink.connect", refuse)

    with pytest.raises(KernelFileError, match="AF_NETLINK"):
        links.read()


def test_another_namespace_is_read_from_its_init(tmp_path):
    """With host pids alone there are counters, but nothing else about the link."""
    write(tmp_path / "1/net/dev", NET_DEV)

    network = NodeNetwork(tmp_path)

    assert network.process == "1"
    assert network.read()["lo"].link is None


def test_net_dev_stands_in_for_rtnetlink(tmp_path, monkeypatch):
    """Counters go on, and the reason is kept for the doctor."""

    def refuse(*_: object):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("koordlet.host.net.netlink.connect", refuse)
    write(tmp_path / "self/net/dev", NET_DEV)
    write(tmp_path / "sys/net/core/netdev_max_backlog")

    network = NodeNetwork(tmp_path)

    assert "lo" in network.read()
    assert "AF_NETLINK" in network.problem


def test_rtnetlink_is_used_in_the_own_namespace():
    """On a machine where the tests share the network of pid 1."""
    network = NodeNetwork(Path("/proc"))
    if network.process != "self":
        pytest.skip("these tests do not run in the network namespace of pid 1")

    assert network.read()["lo"].link is not None
    assert network.problem == ""
    network.close()


def test_no_way_to_the_nodes_network(tmp_path):
    """Absent, with the reason, rather than another container's numbers."""
    with pytest.raises(Unsupported, match="hostNetwork or hostPID"):
        NodeNetwork(tmp_path).read()


@pytest.mark.parametrize(
    "text", ["", "\0" * 100, NET_DEV[:50], NET_DEV + "  eth9: 1 2\n", "x" * 5_000_000]
)
def test_an_unusable_net_dev_is_an_error(tmp_path, text):
    """Empty, binary, truncated, malformed, huge."""
    write(tmp_path / "1/net/dev", text)

    with pytest.raises(KernelFileError, match="net/dev"):
        NodeNetwork(tmp_path).read()


@pytest.mark.parametrize(
    ("speed", "expected"), [("1000\n", 1000), ("-1\n", None), ("", None), ("0\n", 0)]
)
def test_link_speed(tmp_path, speed, expected):
    """Mbit/s; unknown to the driver, or not readable while the link is down, is None."""
    write(tmp_path / "class/net/eth0/speed", speed)

    assert link_speed(tmp_path, "eth0") == expected
    with pytest.raises(KernelFileError, match="no such interface"):
        link_speed(tmp_path, "eth1")
