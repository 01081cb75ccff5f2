"""Network figures, and the names other exporters give them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from koordlet.collectors.network_compat import (
    CADVISOR_NODE,
    CadvisorContainer,
    NodeExporter,
    cadvisor_network_families,
)
from koordlet.collectors.node_network import TrafficRates
from koordlet.host.net.interfaces import Link, LinkStats
from koordlet.host.net.netfiles import InterfaceCounters, parse_net_dev
from koordlet.metriccache import kinds

HEADER = b"Inter-|   Receive\n face |bytes\n"
GATES = {"NodeNetworkCollector", "PodNetworkCollector"}
LINK = Link(
    ifindex=2,
    name="eth0",
    protocol_type=1,
    flags=4163,
    operstate="up",
    mtu=1500,
    tx_queue_length=1000,
    group=0,
    lower_ifindex=2,
    link_mode=0,
    address="02:00",
    broadcast="ff:ff",
    alias="",
    carrier=1,
    carrier_changes=None,
)


def counters(**values):
    return InterfaceCounters(**{**dict.fromkeys(InterfaceCounters._fields[:16], 0), **values})


def samples(families):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_traffic_is_the_increase_over_time():
    """10.0 to 10.6 GB in a minute is 10 MB/s."""
    rates = TrafficRates(60.0)
    rates.rate("eth0", counters(rx_bytes=10_000_000_000), 0.0)

    assert rates.rate("eth0", counters(rx_bytes=10_600_000_000), 60.0) == (10_000_000, 0)


def test_a_counter_that_goes_back_discards_the_interval():
    """The driver was reset, or the interface made anew."""
    rates = TrafficRates(1.0)
    rates.rate("eth0", counters(rx_bytes=500, tx_bytes=10), 0.0)

    assert rates.rate("eth0", counters(rx_bytes=100, tx_bytes=20), 1.0) is None


def test_netdev_names():
    """Exactly node_exporter's, with the constant label; what is not known is left out."""
    found = {"eth0": LinkStats(counters(rx_bytes=7, rx_drop=7, rx_frame=10, tx_carrier=4), LINK)}
    named = samples(NodeExporter(("kubernetes_node", "n1")).netdev(found))
    labels = (("device", "eth0"), ("kubernetes_node", "n1"))

    assert named["node_network_receive_bytes_total", *labels] == 7
    assert named["node_network_receive_drop_total", *labels] == 7
    assert named["node_network_receive_frame_total", *labels] == 10
    assert named["node_network_transmit_carrier_total", *labels] == 4
    assert ("node_network_receive_nohandler_total", *labels) not in named
    assert len(named) == 16


def test_netclass_names():
    """Only for interfaces of which rtnetlink has more than counters."""
    found = {"eth0": LinkStats(counters(), LINK), "eth1": LinkStats(counters())}
    named = samples(NodeExporter().netclass(found))

    assert named["node_network_up", ("device", "eth0")] == 1
    assert named["node_network_mtu_bytes", ("device", "eth0")] == 1500
    assert ("node_network_up", ("device", "eth1")) not in named
    assert ("node_network_carrier_changes_total", ("device", "eth0")) not in named


def test_netstat_names():
    """node_exporter's default choice of fields."""
    found = {
        "Tcp": {"RetransSegs": 5, "MaxConn": -1},
        "TcpExt": {"ListenDrops": 2, "TCPSynRetrans": 3, "TW": 9},
        "Udp6": {"NoPorts": 4},
        "Ip6": {"InOctets": 6},
        "Icmp": {"InErrors": 1, "InMsgs": 8, "InEchos": 9},
    }
    assert samples(NodeExporter().netstat(found)) == {
        ("node_netstat_Tcp_RetransSegs",): 5,
        ("node_netstat_TcpExt_ListenDrops",): 2,
        ("node_netstat_TcpExt_TCPSynRetrans",): 3,
        ("node_netstat_Udp6_NoPorts",): 4,
        ("node_netstat_Ip6_InOctets",): 6,
        ("node_netstat_Icmp_InErrors",): 1,
        ("node_netstat_Icmp_InMsgs",): 8,
    }


def test_cadvisor_names():
    """The kubelet's worked example; veth and loopback are left out."""
    found = parse_net_dev(
        HEADER
        + b"eth0: 10 1 0 0 0 0 0 0 20 2 0 0 0 0 0 0\n"
        + b"lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n"
        + b"vethab: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n"
    )
    named = samples(
        cadvisor_network_families(
            [(CADVISOR_NODE, found), (CadvisorContainer("/kubepods/podx", pod="p"), found)]
        )
    )
    root = tuple(sorted({**CadvisorContainer("/")._asdict(), "interface": "eth0"}.items()))

    assert named["container_network_receive_bytes_total", *root] == 10
    assert named["container_network_receive_packets_total", *root] == 1
    assert named["container_network_transmit_bytes_total", *root] == 20
    assert named["container_network_transmit_packets_total", *root] == 2
    assert len(named) == 16


def test_node_interfaces(machine):
    """Counters at once, rates from the second reading on."""
    machine.gates |= GATES
    machine.host.use_network("eth0", 1000, 2000)
    machine.host.write("sys/class/net/eth0/speed", "1000\n")
    machine.host.write("sys/class/net/lo/speed", "-1\n")
    machine.tick()
    assert machine.value(kinds.NODE_NETWORK_RECEIVE, "eth0") is None
    machine.host.use_network("eth0", 5000, 1000)
    machine.host.use_network("veth1", 7, 7)
    machine.tick(0.5)

    assert machine.value(kinds.NODE_NETWORK_RECEIVE, "eth0") == pytest.approx(10_000)
    assert machine.value(kinds.NODE_NETWORK_TRANSMIT, "eth0") == pytest.approx(2_000)
    own = {"node": "n1", "device": "eth0"}
    assert machine.metric("koordlet_node_network_receive_bytes_total", **own) == 6000
    rate = "koordlet_node_network_receive_bytes_per_second"
    assert machine.metric(rate, **own) == pytest.approx(10_000)
    assert machine.metric("koordlet_node_network_receive_bytes_total", device="veth1") is None
    assert machine.metric("koordlet_node_network_speed_bytes", **own) == 125_000_000
    assert machine.metric("koordlet_node_network_speed_bytes", device="lo") is None
    assert machine.metric("node_network_speed_bytes", device="eth0", zone="a") == 125_000_000
    compat = "node_network_receive_bytes_total"
    assert machine.metric(compat, device="eth0", zone="a") == 6000
    assert machine.metric(compat, device="veth1") == 7


def test_pod_traffic_is_that_of_its_own_namespace(machine):
    """Not of the node's; the loopback interface does not count."""
    machine.gates |= GATES
    pod, shared = machine.run_pod("u1"), machine.run_pod("u2")
    pod.containers["c-u1"].set_processes(41)
    shared.containers["c-u2"].set_processes(42)
    _net_dev(machine, 41, 1000)
    proc = machine.host.paths.proc
    (proc / "42/net").mkdir(parents=True)
    (proc / "42/net/dev").hardlink_to(proc / "1/net/dev")
    machine.tick()
    _net_dev(machine, 41, 4000)
    machine.tick()

    assert machine.value(kinds.POD_NETWORK_RECEIVE, "u1") == 3000
    assert machine.value(kinds.POD_NETWORK_RECEIVE, "u2") is None
    labels = {"pod_uid": "u1", "device": "eth0"}
    assert machine.metric("koordlet_pod_network_receive_bytes_total", **labels) == 4000
    compat = "container_network_receive_bytes_total"
    assert machine.metric(compat, pod="u1", interface="eth0", id=f"/{pod.group.path}") == 4000
    assert machine.metric(compat, pod="u2") is None
    assert machine.metric(compat, id="/", interface="eth0") is not None


def test_retransmits_are_rates_of_the_node_and_of_each_pod(machine):
    """A pod's come from its own namespace; without two readings there is no rate, never 0."""
    machine.gates |= GATES
    pod = machine.run_pod("u1")
    pod.containers["c-u1"].set_processes(41)
    for node, of_pod in ((100, 7), (105, 9)):
        _net_dev(machine, 41, 1000)
        machine.host.write("proc/1/net/snmp", f"Tcp: InSegs RetransSegs\nTcp: 9 {node}\n")
        machine.host.write("proc/41/net/snmp", f"Tcp: InSegs RetransSegs\nTcp: 9 {of_pod}\n")
        assert machine.value(kinds.NODE_TCP_RETRANSMITS) is None
        machine.tick()

    assert machine.value(kinds.NODE_TCP_RETRANSMITS) == 5
    assert machine.value(kinds.POD_TCP_RETRANSMITS, "u1") == 2


def test_a_kernel_without_the_counter_of_pods_costs_the_rest_nothing(machine):
    """Absent, never zero; traffic goes on."""
    machine.gates |= GATES
    machine.run_pod("u1").containers["c-u1"].set_processes(41)
    for received in (1000, 4000):
        _net_dev(machine, 41, received)
        machine.host.write("proc/41/net/snmp", "Tcp: InSegs\nTcp: 9\n")
        machine.tick()

    assert machine.value(kinds.POD_TCP_RETRANSMITS, "u1") is None
    assert machine.value(kinds.POD_NETWORK_RECEIVE, "u1") == 3000


def test_another_process_of_the_pod_takes_over(machine):
    """The one that showed the namespace may end at any time; a new namespace starts anew."""
    machine.gates |= GATES
    pod = machine.run_pod("u1")
    pod.containers["c-u1"].set_processes(41)
    _net_dev(machine, 41, 1000)
    machine.tick()
    for name in ("dev", ""):
        path = machine.host.paths.proc / "41/net" / name
        path.rmdir() if path.is_dir() else path.unlink()
    machine.host.paths.proc.joinpath("41").rmdir()
    _net_dev(machine, 43, 9000)
    pod.containers["c-u1"].set_processes(43)
    machine.tick()
    assert machine.value(kinds.POD_NETWORK_RECEIVE, "u1") is None
    _net_dev(machine, 43, 9500)
    machine.tick()

    assert machine.value(kinds.POD_NETWORK_RECEIVE, "u1") == 500


def test_protocol_trouble(machine):
    """Retransmits, full queues, dropped packets and tracked connections."""
    machine.gates |= GATES
    write = machine.host.write
    write("proc/1/net/snmp", "Tcp: RetransSegs CurrEstab\nTcp: 12 3\n")
    write("proc/1/net/netstat", "TcpExt: ListenOverflows ListenDrops\nTcpExt: 4 5\n")
    write("proc/1/net/snmp6", "Ip6InOctets 6\n")
    write("proc/1/net/sockstat", "sockets: used 9\nTCP: inuse 5 mem 2\n")
    write("proc/net/softnet_stat", "0000000a 00000002 00000001\n00000001 00000001 00000000\n")
    machine.tick()

    own = "koordlet_node_network"
    assert machine.metric(f"{own}_tcp_retransmitted_segments_total", node="n1") == 12
    assert machine.metric(f"{own}_tcp_listen_overflows_total") == 4
    assert machine.metric(f"{own}_tcp_listen_drops_total") == 5
    assert machine.metric(f"{own}_softnet_dropped_total") == 3
    assert machine.metric(f"{own}_conntrack_entries") is None
    assert machine.metric("node_netstat_Tcp_RetransSegs", zone="a") == 12
    assert machine.metric("node_sockstat_TCP_mem_bytes") % 4096 == 0
    assert machine.metric("node_softnet_processed_total", cpu="0") == 10


def test_nothing_is_said_where_the_gates_are_off(machine):
    """Neither samples nor families."""
    machine.tick()
    machine.tick()

    assert not [kind for kind, *_ in machine.samples if "network" in kind]
    assert machine.metric("koordlet_node_network_receive_bytes_total") is None


def test_no_family_comes_twice(machine):
    """An exposition with one family in two places is invalid."""
    machine.gates |= GATES | {"PSICollector"}
    machine.run_pod("u1")
    machine.tick()
    machine.tick()
    names = [f.name for source in machine.sampling.sources() for f in source.families()]

    assert len(names) == len(set(names))

    class Everything:
        def collect(self):
            for source in machine.sampling.sources():
                yield from source.families()

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Everything())
    assert b"koordlet_pod_cpu_usage_cores{" in generate_latest(registry)


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.floats(0, 1e6)), max_size=20))
def test_traffic_is_never_negative(readings):
    """Whatever counters and clock do."""
    rates = TrafficRates(1.0)
    for count, at in readings:
        found = rates.rate("eth0", counters(rx_bytes=count, tx_bytes=count // 2), at)
        assert found is None or (found.received >= 0 and found.sent >= 0)


def _net_dev(machine, pid, received):
    """Write a process's net/dev in place: a namespace keeps its inode."""
    text = HEADER + b"lo: 5 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0\n"
    text += f"eth0: {received} 1 0 0 0 0 0 0 20 2 0 0 0 0 0 0\n".encode()
    machine.host.write(f"proc/{pid}/net/dev", text)
