"""The interface of the default route, from the kernel's files."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.host.net.netfiles import parse_default_interface, parse_default_interface_6

HEAD = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
DEFAULT = "eth0 00000000 010200C0 0003 0 0 0 00000000 0 0 0\n"
SUBNET = "eth1 000200C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n"
HALF = "tun0 00000000 010200C0 0003 0 0 0 00000080 0 0 0\n"  # 0.0.0.0/1 of a VPN
UNREACHABLE = "* 00000000 00000000 0201 0 0 0 00000000 0 0 0\n"
SIX = """\
fd000000000000000000000000000000 40 {0} 00 {0} 00000100 00000001 00000000 00000001     eth1
{0} 00 {0} 00 fd000000000000000000000000000001 00000400 00000003 00000000 00000003     eth0
{0} 00 {0} 00 fd000000000000000000000000000002 00000100 00000003 00000000 00000003     eth2
{0} 00 {0} 00 {0} ffffffff 00000001 00000000 00200200       lo
""".format("0" * 32)


@pytest.mark.parametrize(
    ("lines", "interface"),
    [
        ((), ""),
        ((SUBNET, HALF, UNREACHABLE), ""),
        ((SUBNET, DEFAULT), "eth0"),
        (
            (
                DEFAULT.replace(" 0 0 0 0000", " 0 0 100 0000"),
                DEFAULT.replace("0", "1", 1),
            ),
            "eth1",
        ),
        ((DEFAULT.replace("eth0", "ens3"), DEFAULT), "ens3"),
        ((DEFAULT.replace("0003", "0002"),), ""),
        ((DEFAULT.replace("eth0", "../eth0"),), ""),
    ],
)
def test_the_default_route(lines, interface):
    """Of the least metric; the first of several; one that is up, and of an interface."""
    assert parse_default_interface("".join((HEAD, *lines)).encode()) == interface


def test_the_ipv6_default_route():
    assert parse_default_interface_6(SIX.encode()) == "eth2"
    assert parse_default_interface_6(SIX.splitlines()[-1].encode()) == ""
    assert parse_default_interface_6(b"") == ""


@pytest.mark.parametrize("line", ["eth0", DEFAULT.replace("0003", "up"), SUBNET[:12]])
def test_what_is_no_route(line):
    with pytest.raises(ValueError, match="wanted a route"):
        parse_default_interface(f"{HEAD}{line}\n".encode())
    with pytest.raises(ValueError, match="wanted a route"):
        parse_default_interface_6(f"{line}\n".encode())


@given(st.sampled_from([parse_default_interface, parse_default_interface_6]), st.binary())
def test_any_bytes_give_a_name_or_a_value_error(parse, data):
    check(parse, data)


@given(
    st.sampled_from(
        [
            (parse_default_interface, HEAD + SUBNET + DEFAULT),
            (parse_default_interface_6, SIX),
        ]
    ),
    st.integers(0, 200),
    st.integers(0, 255),
)
def test_a_damaged_file_gives_a_name_or_a_value_error(case, at, byte):
    parse, text = case
    data = bytearray(text.encode())
    data[at % len(data)] = byte
    check(parse, bytes(data))


def check(parse, data):
    with suppress(ValueError):
        assert len(parse(data)) <= 15
