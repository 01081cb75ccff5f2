"""Numbers out of /proc/net: the worked examples, files of a real kernel, and any other bytes."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.host.net.netfiles import (
    Softnet,
    parse_net_dev,
    parse_netstat,
    parse_snmp6,
    parse_sockstat,
    parse_softnet,
    parse_tcp_retransmits,
)

DATA = Path(__file__).parent / "data"
HEADER = b"Inter-|   Receive  |  Transmit\n face |bytes    packets|bytes\n"


def test_the_worked_example_of_net_dev():
    """First column is received bytes, ninth is sent bytes."""
    found = parse_net_dev(HEADER + b"  eth0: 10 1 0 0 0 0 0 0 20 2 0 0 0 0 0 0\n")["eth0"]

    assert (found.rx_bytes, found.rx_packets, found.tx_bytes, found.tx_packets) == (10, 1, 20, 2)
    assert found.rx_nohandler is None


def test_net_dev_of_a_real_kernel():
    """Every interface is there, and an old kernel's missing blank does no harm."""
    data = (DATA / "net_dev").read_bytes()

    assert "lo" in parse_net_dev(data)
    assert parse_net_dev(data.replace(b": ", b":")).keys() == parse_net_dev(data).keys()


@pytest.mark.parametrize(
    "rest",
    [
        b"  eth0: 10 1 0 0 0 0 0 0 20 2 0 0 0 0 0\n",
        b"  eth0: 10 1 0 0 0 0 0 0 20 2 0 0 0 0 0 0 0\n",
        b"  eth0: 10 1 0 0 0 0 0 0 -20 2 0 0 0 0 0 0\n",
        b"  eth0\n",
        b"\n",
    ],
)
def test_a_strange_line_invalidates_net_dev(rest):
    """As for cAdvisor: a line without exactly 16 counters."""
    with pytest.raises(ValueError, match="wanted"):
        parse_net_dev(HEADER + rest)


@pytest.mark.parametrize("data", [b"", b"\0\0\0", HEADER[:20], b"eth0: 1\nlo: 2\n"])
def test_net_dev_without_header_is_an_error(data):
    """Empty, binary and truncated files."""
    with pytest.raises(ValueError, match="header"):
        parse_net_dev(data)


def test_netstat_and_snmp_of_a_real_kernel():
    """Names and values are paired, negative values included."""
    snmp = parse_netstat((DATA / "snmp").read_bytes())
    netstat = parse_netstat((DATA / "netstat").read_bytes())

    assert snmp["Tcp"]["MaxConn"] == -1
    assert {"RetransSegs", "InSegs", "CurrEstab"} <= snmp["Tcp"].keys()
    assert {"ListenDrops", "ListenOverflows", "TCPTimeouts"} <= netstat["TcpExt"].keys()


@pytest.mark.parametrize(
    "data", [b"", b"Tcp: A B\n", b"Tcp: A B\nTcp: 1\n", b"Tcp: A\nUdp: 1\n", b"Tcp: A\nTcp: x\n"]
)
def test_netstat_that_does_not_pair_is_an_error(data):
    """A missing line, a missing value, another protocol, no number."""
    with pytest.raises(ValueError, match="wanted"):
        parse_netstat(data)


def test_snmp6_names_are_split_after_the_six():
    """Ip6InOctets is protocol Ip6, field InOctets; a name without protocol is no field."""
    found = parse_snmp6(b"Ip6InOctets 12\nIcmp6OutType135\t3\nUdpLite6InErrors 1\nOther 5\n")

    assert found == {
        "Ip6": {"InOctets": 12},
        "Icmp6": {"OutType135": 3},
        "UdpLite6": {"InErrors": 1},
    }
    assert {"Ip6", "Icmp6", "Udp6"} <= parse_snmp6((DATA / "snmp6").read_bytes()).keys()


def test_sockstat_of_a_real_kernel():
    """Both address families have the same form."""
    four = parse_sockstat((DATA / "sockstat").read_bytes())

    assert four["TCP"].keys() == {"inuse", "orphan", "tw", "alloc", "mem"}
    assert four["sockets"]["used"] > 0
    assert parse_sockstat((DATA / "sockstat6").read_bytes())["FRAG6"] == {"inuse": 0, "memory": 0}


def test_softnet_of_a_real_kernel():
    """Hexadecimal, by CPU number."""
    found = parse_softnet((DATA / "softnet_stat").read_bytes())

    assert found.keys() == {0, 1}
    assert all(cpu.processed > 0 for cpu in found.values())


def test_softnet_cpu_numbers():
    """Column 13 names the CPU where there is one; otherwise lines are counted."""
    new = b"0000000a 00000001 00000002" + b" 00000000" * 9 + b" 00000004 00000000\n"

    assert parse_softnet(new) == {4: Softnet(10, 1, 2)}
    assert parse_softnet(b"0a 01 02\n0b 00 00\n") == {0: Softnet(10, 1, 2), 1: Softnet(11, 0, 0)}


PARSERS = {
    "net_dev": parse_net_dev,
    "netstat": parse_netstat,
    "snmp": parse_netstat,
    "snmp6": parse_snmp6,
    "sockstat": parse_sockstat,
    "softnet_stat": parse_softnet,
}


@pytest.mark.parametrize("parse", dict.fromkeys(PARSERS.values()), ids=lambda parse: parse.__name__)
@given(data=st.binary(max_size=200) | st.text("a6: -1\n", max_size=80).map(str.encode))
def test_any_bytes_give_a_value_or_a_value_error(parse, data):
    """No parser fails in a way that the host layer does not expect."""
    with contextlib.suppress(ValueError):
        parse(data)


@pytest.mark.parametrize("name", PARSERS)
@given(at=st.integers(0, 4000), byte=st.binary(min_size=1, max_size=1))
def test_a_damaged_real_file_gives_a_value_or_a_value_error(name, at, byte):
    """One byte replaced, and all cut off behind it."""
    data = (DATA / name).read_bytes()
    for damaged in (data[:at] + byte + data[at + 1 :], data[:at] + byte):
        with contextlib.suppress(ValueError):
            PARSERS[name](damaged)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=16, max_size=16))
def test_every_counter_of_net_dev_is_kept(counters):
    """All 64 bits, in the order of the columns."""
    line = b"veth0: " + b" ".join(str(counter).encode() for counter in counters) + b"\n"

    assert parse_net_dev(HEADER + line)["veth0"][:16] == tuple(counters)


def test_retransmits_alone_are_what_the_whole_file_says():
    """The quick way for the file of every pod."""
    data = (DATA / "snmp").read_bytes()

    assert parse_tcp_retransmits(data) == parse_netstat(data)["Tcp"]["RetransSegs"]


@pytest.mark.parametrize(
    "data", [b"", b"Tcp: InSegs\nTcp: 1\n", b"Tcp: RetransSegs\nTcp: x\n",
             b"Tcp: RetransSegs\nTcp: 1", b"Tcp: A RetransSegs\nTcp: 1\n", b"UdpTcp: 1\n"]
)  # fmt: skip
def test_files_without_retransmits(data):
    with pytest.raises(ValueError, match="RetransSegs"):
        parse_tcp_retransmits(data)


@given(st.binary(max_size=100) | st.text("Tcp: RetransSegs01\n", max_size=60).map(str.encode))
def test_any_snmp_is_read_or_refused(data):
    with contextlib.suppress(ValueError):
        assert parse_tcp_retransmits(data) >= 0
