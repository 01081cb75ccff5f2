"""The addresses of this machine itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util.goformat import is_loopback


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "127.1.2.3", "127.255.255.255", "::1", "::ffff:127.0.0.1", "::ffff:7f00:1"],
)
def test_loopback(address):
    """All of 127.0.0.0/8, and both ways in which a dual-stack socket shows it."""
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1",
        "0.0.0.0",
        "128.0.0.1",
        "126.255.255.255",
        "192.0.2.1",
        "169.254.0.1",
        "::",
        "::2",
        "fe80::1%eth0",
        "::ffff:10.0.0.1",
        "::127.0.0.1",  # the old way to write IPv4 in IPv6, which nothing routes
        "64:ff9b::127.0.0.1",  # through a translator: from elsewhere
        "2002:7f00:1::",  # the same by 6to4
        "localhost",
        "",
        "127.0.0.1.",
        "127.1",
        "0127.0.0.1",
    ],
)
def test_not_loopback(address):
    """What is not known to be local is not."""
    assert not is_loopback(address)


@given(st.ip_addresses(v=4))
def test_mapping_changes_nothing(address):
    """An IPv4 client is the same client on an IPv6 socket."""
    assert is_loopback(f"::ffff:{address}") == is_loopback(str(address)) == address.is_loopback


@given(st.text())
def test_any_text_is_an_answer(text):
    """Never an error, whatever a transport says."""
    assert is_loopback(text) in (True, False)
