"""Trees of traffic classes in the kernel: a network namespace of each test's own."""

import errno
import os
import re
import subprocess
from ipaddress import ip_address

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from koordlet.host.net.tc import kernel
from koordlet.host.net.tc.kernel import KernelTraffic
from koordlet.host.net.tc.tree import (
    AddressMatch,
    ForeignQdisc,
    TrafficClass,
    TrafficControl,
    TrafficRefused,
    TrafficTree,
)
from tests.support.node.network_namespace import ip, needs_namespaces, own_network, tc

pytestmark = needs_namespaces

LINK = "default 2; class 1 below 0 rate 125000000 ceil 125000000 prio 0"
SYSTEM = "class 2 below 1 rate 50000000 ceil 125000000 prio 1"
LS = "class 3 below 1 rate 62500000 ceil 125000000 prio 2"
BE = "class 4 below 1 rate 12500000 ceil 62500000 prio 3"
POD = "class 1000 below 1 rate 1000 ceil 1562500 prio 3"
CLASSES = "; ".join((LINK, SYSTEM, LS, BE))
PODS = f"{CLASSES}; from 10.0.0.7 class 3; from fd00::7 class 3; to 10.0.0.7 class 4"


@pytest.fixture
def traffic():
    """Of an interface va, up, whose peer is vb, in a network namespace for this test."""
    with own_network():
        yield KernelTraffic()


def write(traffic: TrafficControl, text: str) -> None:
    traffic.write("va", traffic.identity("va"), f"{text}\n".encode())


def shown(traffic: TrafficControl) -> str:
    found = traffic.read("va")
    assert found is not None
    assert found.endswith(b"\n")
    return found.decode().removesuffix("\n")


def test_a_tree_is_made_and_gone_again(traffic):
    """Root, classes and addresses of both IP versions, as tc shows them; then the default."""
    before = tc("qdisc show dev va")

    write(traffic, PODS)

    assert shown(traffic) == PODS
    assert "htb 6b6c: root" in tc("qdisc show dev va")
    assert "class htb 6b6c:4 parent 6b6c:1" in tc("class show dev va")
    assert "rate 100Mbit ceil 500Mbit" in tc("class show dev va")
    assert tc("filter show dev va").count("match 0a000007/ffffffff") == 2

    write(traffic, "absent")

    assert shown(traffic) == "absent"
    assert tc("qdisc show dev va") == before


def test_a_packet_goes_to_the_class_of_its_address(traffic):
    """Of its source; others to the default class."""
    ip("addr add 10.0.0.7/24 dev va")
    ip("addr add 10.0.0.8/24 dev va")
    ip("neigh add 10.0.0.1 lladdr 02:00:00:00:00:01 dev va")
    write(traffic, f"{CLASSES}; from 10.0.0.7 class 4")
    sent = "import socket,sys;s=socket.socket(2,2);s.bind((sys.argv[1],0));" + (
        "[s.sendto(b'x'*1000,('10.0.0.1',9)) for _ in range(10)]"
    )

    subprocess.run(["python3", "-c", sent, "10.0.0.7"], check=True, timeout=20)

    assert packets(4) == 10
    others = packets(2)
    subprocess.run(["python3", "-c", sent, "10.0.0.8"], check=True, timeout=20)
    assert packets(4) == 10
    assert packets(2) >= others + 10  # and what the kernel sends by itself


def packets(minor: int) -> int:
    found = tc(f"-s class show dev va classid 6b6c:{minor}")
    return int(found.partition(" bytes ")[2].split()[0])


def test_only_what_differs_is_changed(traffic):
    """The counters of a class that stays go on."""
    ip("addr add 10.0.0.8/24 dev va")
    ip("neigh add 10.0.0.1 lladdr 02:00:00:00:00:01 dev va")
    write(traffic, PODS)
    sent = "import socket;s=socket.socket(2,2);s.sendto(b'x'*1000,('10.0.0.1',9))"
    subprocess.run(["python3", "-c", sent], check=True, timeout=20)
    count = packets(2)
    assert count > 0

    changed = f"{CLASSES}; {POD}; from 10.0.0.9 class 1000; from fd00::7 class 4".replace(
        "12500000 ceil", "12500001 ceil"
    )
    write(traffic, changed)

    assert shown(traffic) == changed
    assert packets(2) >= count
    write(traffic, CLASSES)
    assert shown(traffic) == CLASSES


@pytest.mark.parametrize("root", ["tbf rate 1mbit burst 10k latency 50ms", "htb default 7"])
def test_a_foreign_root_stays(traffic, root):
    """Of another kind, and of the same: neither replaced nor deleted."""
    tc(f"qdisc add dev va root handle 1: {root}")
    before = roots()

    assert shown(traffic) == f"foreign {root.split()[0]}"
    for text in (PODS, "absent"):
        with pytest.raises(ForeignQdisc, match="another agent's"):
            write(traffic, text)
    assert roots() == before


def roots() -> str:
    """What tc shows, without a count of packets that the kernel sends by itself."""
    return re.sub(r"direct_packets_stat \d+", "", tc("qdisc show dev va"))


def test_a_foreign_root_put_over_ours_stays(traffic):
    """Ours is gone, and is not made again."""
    write(traffic, PODS)
    tc("qdisc replace dev va root handle 1: tbf rate 1mbit burst 10k latency 50ms")

    assert shown(traffic) == "foreign tbf"
    with pytest.raises(ForeignQdisc):
        write(traffic, PODS)


def test_a_foreign_root_that_comes_between_look_and_change_stays(traffic, monkeypatch):
    """The kernel itself refuses: there is no moment in which it could be lost."""
    look, index = kernel._read_state_once, traffic.identity("va")

    def look_then_another(route, index):
        found = look(route, index)
        if found.text == "absent":
            tc("qdisc add dev va root handle 1: tbf rate 1mbit burst 10k latency 50ms")
        return found

    monkeypatch.setattr(kernel, "_read_state_once", look_then_another)

    with pytest.raises(TrafficRefused):
        traffic.write("va", index, PODS.encode())
    assert shown(traffic) == "foreign tbf"


@pytest.mark.parametrize("own", ["clsact", "ingress"])
def test_clsact_and_ingress_are_never_touched(traffic, own):
    """A CNI's programs for packets are there."""
    tc(f"qdisc add dev va {own}")
    tc("filter add dev va ingress protocol ip pref 1 u32 match ip src 10.0.0.1 classid 1:1")
    before = tc("filter show dev va ingress")

    write(traffic, PODS)
    assert shown(traffic) == PODS
    write(traffic, "absent")

    assert shown(traffic) == "absent"
    assert tc("filter show dev va ingress") == before


@pytest.mark.parametrize(
    "change",
    [
        "class add dev va parent 6b6c:1 classid 6b6c:99 htb rate 100bit",
        "filter add dev va parent 6b6c: protocol ip pref 4 u32 match ip sport 80 0xffff "
        "classid 6b6c:3",
        "filter add dev va parent 6b6c: protocol ip pref 1 u32 match ip src 10.9.0.1 "
        "classid 6b6c:3",
    ],
)
def test_what_another_agent_changed_in_ours_is_seen_and_mended(traffic, change):
    """A class that we would not make, and filters of others."""
    write(traffic, PODS)
    tc(change)

    assert shown(traffic) == "altered"
    write(traffic, PODS)

    assert shown(traffic) == PODS


def test_a_rate_that_another_agent_changed_is_seen_and_mended(traffic):
    """As a value of its own."""
    write(traffic, PODS)
    tc("class change dev va parent 6b6c:1 classid 6b6c:4 htb rate 8mbit ceil 8mbit prio 3")

    assert "class 4 below 1 rate 1000000 ceil 1000000 prio 3" in shown(traffic)
    write(traffic, PODS)

    assert shown(traffic) == PODS


@pytest.mark.parametrize("at", range(1, 7))
@pytest.mark.parametrize("before", ["absent", CLASSES])
def test_a_refusal_in_the_middle_leaves_what_was_there(traffic, monkeypatch, before, at):
    """The kernel refuses one of the messages of a change, whichever."""
    if before != "absent":
        write(traffic, before)
    refusing = Refusing(kernel.IPRoute, at)

    with pytest.raises(TrafficRefused, match="was there before"):
        KernelTraffic(refusing.connect).write(
            "va", traffic.identity("va"), refusing.wanted.encode()
        )

    assert shown(traffic) == before


class Refusing:
    """Connections that refuse the n-th change, once."""

    wanted = f"{PODS}; to fd00::7 class 4".replace("500000 ceil", "500001 ceil")

    def __init__(self, connect, at: int) -> None:
        self._connect = connect
        self._left = at

    def connect(self):
        route = self._connect()
        change = route.tc

        def refuse(*arguments, **options):
            self._left -= 1
            if self._left == 0:
                raise kernel.NetlinkError(errno.ENOMEM, "no memory")
            return change(*arguments, **options)

        route.tc = refuse
        return route


def test_an_interface_that_is_renamed_gone_or_another_one(traffic):
    """Nothing is written; what has the name now is not what was meant."""
    index = traffic.identity("va")
    ip("link set va down")
    ip("link set va name renamed")

    assert traffic.read("va") is None
    assert_gone(traffic, index)
    ip("link add va type veth peer name vc")
    assert traffic.identity("va") != index
    assert_gone(traffic, index)
    assert shown(traffic) == "absent"
    ip("link del va")
    assert_gone(traffic, index)
    with pytest.raises(OSError, match="No such device"):
        traffic.identity("va")


def assert_gone(traffic: TrafficControl, index: int) -> None:
    with pytest.raises(OSError, match="No such device") as raised:
        traffic.write("va", index, PODS.encode())
    assert raised.value.errno == errno.ENODEV


def test_an_interface_that_is_down_keeps_its_tree(traffic):
    """And takes one."""
    ip("link set va down")
    write(traffic, PODS)
    assert shown(traffic) == PODS
    ip("link set va up")
    assert shown(traffic) == PODS
    ip("link set va down")
    write(traffic, "absent")
    assert shown(traffic) == "absent"


@pytest.mark.parametrize("name", ["", "x" * 100, "../va", "va\0", "lo/../va"])
def test_a_name_that_no_interface_has(traffic, name):
    """No crash, and nothing read."""
    assert traffic.read(name) is None


@pytest.mark.parametrize("rate", ["-1", "0", "999", "99999999999999"])
def test_a_rate_out_of_range_reaches_no_kernel(traffic, rate):
    """Negative, none, less than a packet a second, more than there is."""
    with pytest.raises(ValueError, match="wanted"):
        write(traffic, CLASSES.replace("12500000 ceil", f"{rate} ceil"))
    assert shown(traffic) == "absent"


def test_the_loss_of_queues_is_reported(traffic):
    """Of an interface with several, to which the kernel gave mq by itself."""
    ip("link add wide numtxqueues 4 numrxqueues 4 type veth peer name far")
    ip("link set wide up")
    sysctl = "/proc/sys/net/core/default_qdisc"
    if "mq 0:" not in tc("qdisc show dev wide"):
        tc("qdisc add dev wide root handle 1: mq")
        tc("qdisc del dev wide root")
    if "mq 0:" not in tc("qdisc show dev wide"):
        pytest.skip(f"this kernel gives a virtual interface no mq by itself ({sysctl})")
    with capture_logs() as logs:
        traffic.write("wide", traffic.identity("wide"), CLASSES.encode())

    assert [each["queues"] for each in logs] == [4]


@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_tree_after_any_other(traffic, data):
    """What was written is what is shown, whatever was there before."""
    tree = data.draw(small_trees())

    write(traffic, str(tree))

    assert shown(traffic) == str(tree)


@st.composite
def small_trees(draw) -> TrafficTree:
    rates = st.sampled_from([1000, 125_000, 536_870_912, 1 << 32, 1 << 36])
    classes = [TrafficClass(1, 0, 1000, 1 << 36, 0)]
    for minor in sorted(draw(st.sets(st.integers(2, 6), max_size=4))):
        rate, ceil = sorted((draw(rates), draw(rates)))
        above = draw(st.sampled_from([each.minor for each in classes]))
        depth = {0: 0}
        for each in classes:
            depth[each.minor] = depth[each.below] + 1
        above = above if depth[above] < 3 else 1
        classes.append(TrafficClass(minor, above, rate, ceil, draw(st.integers(0, 7))))
    parents = {each.below for each in classes}
    leaves = st.sampled_from([each.minor for each in classes if each.minor not in parents])
    addresses = st.sampled_from(list(map(ip_address, ("10.0.0.1", "10.0.0.2", "fd00::1", "::1"))))
    places = draw(st.sets(st.tuples(st.sampled_from(["from", "to"]), addresses), max_size=6))
    matches = [AddressMatch(side, address, draw(leaves)) for side, address in places]
    return TrafficTree.of(draw(leaves), classes, matches)


@pytest.fixture
def pod_process():
    """A process in a network namespace of its own."""
    command = ["unshare", "-n", "sh", "-c", "echo here; exec sleep 100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            if process.stdout.readline() != b"here\n":
                pytest.skip("no network namespace can be made here")
            yield process.pid
        finally:
            process.kill()


def test_the_end_of_a_pods_interface(traffic, pod_process):
    """By its namespace, whatever its name; of several the one that it had first."""
    assert traffic.veth_peer(pod_process) == ""
    ip(f"link add first index 70 type veth peer name eth0 index 40 netns {pod_process}")
    assert traffic.veth_peer(pod_process) == "first"
    ip(f"link add second index 60 type veth peer name eth1 index 50 netns {pod_process}")

    assert traffic.veth_peer(pod_process) == "first"
    ip("link set first name renamed")
    assert traffic.veth_peer(pod_process) == "renamed"
    ip("link del renamed")
    assert traffic.veth_peer(pod_process) == "second"
    assert traffic.veth_peer(os.getpid()) == ""  # it is in the node's network itself


@pytest.mark.parametrize("pid", [0, -1, 1 << 30, 1 << 70])
def test_no_process_has_no_interface(traffic, pid):
    """As an error, never as another one's."""
    with pytest.raises(ProcessLookupError):
        traffic.veth_peer(pid)
