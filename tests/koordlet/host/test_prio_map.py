"""Priorities by interface: the kernel's file, and what may be written."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.host.cgroups.keyed_files import (
    MAX_INTERFACES,
    PRIORITIES,
    is_priorities,
    parse_priorities,
)
from koordlet.host.resources import NET_PRIORITY

SHOWN = b"lo 0\neth0 1802240007\nveth1 0\nens3 5\n"
CLASS = 0x6B6C0007


def test_the_file_of_a_kernel():
    """What is not 0, in order of names."""
    assert parse_priorities(SHOWN) == {"eth0": CLASS, "ens3": 5}
    assert PRIORITIES.shown(SHOWN) == "ens3 5\neth0 1802240007"
    assert PRIORITIES.shown(b"lo 0\n") == ""
    assert PRIORITIES.value("ens3 5\neth0 1802240007") == {"eth0": CLASS, "ens3": 5}
    assert PRIORITIES.value("") == {}


@pytest.mark.parametrize(
    ("wanted", "content"),
    [
        ({"eth0": CLASS, "ens3": 5}, ""),
        ({"eth0": 7, "ens3": 5}, "eth0 7"),
        ({"eth1": 7}, "ens3 0\neth0 0\neth1 7"),
        ({}, "ens3 0\neth0 0"),
    ],
)
def test_what_is_written(wanted, content):
    """Lines that differ, and 0 for what shall go."""
    assert PRIORITIES.content(PRIORITIES.of(wanted), SHOWN) == content


@pytest.mark.parametrize(
    "value",
    [None, {"eth0": -1}, {"eth0": 1 << 32}, {"eth0": True}, {"../x": 1}, {1: 1}, {"a b": 1}],
)
def test_values_that_are_none(value):
    with pytest.raises(ValueError, match="wanted"):
        PRIORITIES.of(value)


@pytest.mark.parametrize(
    "data",
    [
        b"eth0 5",
        b"eth0\n",
        b"eth0 -5\n",
        b"eth0 5\neth0 6\n",
        b"eth0 05\n",
        b"x 0\n" * 2,
        b"".join(b"v%d 0\n" % at for at in range(MAX_INTERFACES + 1)),
    ],
)
def test_files_that_no_kernel_has(data):
    with pytest.raises(ValueError, match="wanted"):
        parse_priorities(data)


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("", True),
        ("eth0 5", True),
        ("ens3 5\neth0 6", True),
        ("eth0 6\nens3 5", False),  # in another order
        ("eth0 0", False),
        ("eth0 9999999999", False),
        ("eth0 5\n", False),
        ("../x 5", False),
        ("x", False),
    ],
)
def test_texts_of_a_journal(text, may):
    assert NET_PRIORITY.files[1].may_restore(text) is may


@given(st.binary())
def test_any_file_has_a_text_that_reads_the_same(data):
    with suppress(ValueError):
        found = parse_priorities(data)
        text = PRIORITIES.shown(data)
        assert PRIORITIES.value(text) == found
        assert is_priorities(text) is all(number < 1 << 32 for number in found.values())


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9]{0,14}", fullmatch=True), st.integers(0, 2**32 - 1), max_size=9
    )
)
def test_any_value_comes_back(value):
    wanted = {name: number for name, number in value.items() if number}
    wanted = {name: number for name, number in wanted.items() if name not in ("all", "default")}
    assert PRIORITIES.value(PRIORITIES.of(wanted)) == wanted
    assert is_priorities(PRIORITIES.of(wanted))
