"""The text of a tree of traffic classes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.host.net.tc.tree import (
    MAX_MINOR,
    MAX_RATE,
    MIN_RATE,
    TRAFFIC,
    AddressMatch,
    TrafficClass,
    TrafficTree,
    is_kernel_state,
    is_tree,
    parse_traffic,
    parse_tree,
)

LINE = (
    "default 2; class 1 below 0 rate 9000 ceil 9000 prio 0; "
    "class 2 below 1 rate 1000 ceil 9000 prio 1; "
    "from 10.0.0.7 class 2; to fd00::7 class 2; socket 3/4711 class 2"
)

ONE = "class 1 below 0 rate 1000 ceil 1000 prio 0"
BAD = [
    "",
    "absent ",
    "default 2",
    f"default 3; {ONE}",
    "default 1; class 1 below 0 rate 999 ceil 1000 prio 0",
    "default 1; class 1 below 0 rate 0 ceil 1000 prio 0",
    "default 1; class 1 below 0 rate -5000 ceil 1000 prio 0",
    "default 1; class 1 below 0 rate 2000 ceil 1000 prio 0",
    "default 1; class 1 below 1 rate 1000 ceil 1000 prio 0",
    "default 1; class 1 below 0 rate 1000 ceil 1000 prio 8",
    "default 1; class 1 below 0 rate 01000 ceil 1000 prio 0",
    f"default 1; class 1 below 0 rate 1000 ceil {MAX_RATE + 1} prio 0",
    f"default 1; class 70000 below 0 rate 1000 ceil 1000 prio 0; {ONE}",
    f"default 1; {ONE}; {ONE}",
    f"default 1; {ONE}; from 10.0.0.1 class 2",
    f"default 1; {ONE}; from 10.0.0.256 class 1",
    f"default 1; {ONE}; from fe80::1%eth0 class 1",
    f"default 1; {ONE}; from fd00:0::1 class 1",
    f"default 1; {ONE}; to 10.0.0.1 class 1; from 10.0.0.1 class 1",
    f"default 1; {ONE}; to 10.0.0.1 class 1; to 10.0.0.1 class 1",
    f"default 1; {ONE}; socket 3/4711 class 2",
    f"default 1; {ONE}; socket 0/4711 class 1",
    f"default 1; {ONE}; socket 33/4711 class 1",
    f"default 1; {ONE}; socket 3/0 class 1",
    f"default 1; {ONE}; socket 3/{1 << 64} class 1",
    f"default 1; {ONE}; socket 3/4711 class 1; socket 2/4711 class 1",
    f"default 1; {ONE}; socket 2/4711 class 1; from 10.0.0.1 class 1",
    f"default 1; {ONE}\n\n",
    f"default \uff11; {ONE}",
]


@st.composite
def trees(draw):
    minors = sorted(draw(st.sets(st.integers(2, MAX_MINOR), max_size=8)))
    rates = st.integers(MIN_RATE, MAX_RATE)
    classes = [TrafficClass(1, 0, MIN_RATE, MAX_RATE, 0)]
    for minor in minors:
        rate, ceil = sorted((draw(rates), draw(rates)))
        classes.append(TrafficClass(minor, draw(st.sampled_from([0, 1])), rate, ceil, 3))
    known = st.sampled_from([1, *minors])
    addresses = draw(st.sets(st.ip_addresses(), max_size=8))
    sides = st.sampled_from(["from", "to"])
    matches = [AddressMatch(draw(sides), address, draw(known)) for address in addresses]
    return TrafficTree.of(draw(known), classes, matches)


@given(trees())
def test_a_tree_is_its_text(tree):
    """Written and parsed again, and as what the kernel shows."""
    text = str(tree)

    assert parse_tree(text) == tree
    assert parse_traffic(f"{text}\n".encode()) == text
    assert is_tree(text)
    assert is_kernel_state(text)


@given(st.text(max_size=200) | st.text("default class below rate ceil prio 0123.;:", max_size=200))
def test_any_text_is_a_tree_or_an_error(text):
    """Nothing else is raised, and what is accepted is canonical."""
    try:
        tree = parse_tree(text)
    except ValueError:
        return
    assert str(tree) == text


@given(st.binary(max_size=200))
def test_any_bytes_are_traffic_or_an_error(data):
    """Nothing else is raised."""
    try:
        text = parse_traffic(data)
    except ValueError:
        return
    assert TRAFFIC.shown(data) == text


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_tree(text):
    """Neither claimed, nor restored from a journal."""
    assert not is_tree(text)
    assert not is_kernel_state(text)
    with pytest.raises(ValueError, match=r"wanted|appear"):
        parse_traffic(text.encode())


@pytest.mark.parametrize("text", ["foreign htb", "altered"])
def test_what_another_agent_made_is_never_brought_about(text):
    """It can be shown, but neither claimed nor restored."""
    assert TRAFFIC.shown(f"{text}\n".encode()) == text
    assert not is_tree(text)
    assert not is_kernel_state(text)


def test_absent_is_restored_and_never_claimed_as_a_tree():
    """It deletes what was made."""
    assert is_kernel_state("absent")
    assert not is_tree("absent")
    assert parse_traffic(b"absent\n") == "absent"


def test_a_tree_of_two_classes():
    """As the docstring has it."""
    tree = parse_tree(LINE)

    assert [each.minor for each in tree.classes] == [1, 2]
    assert [str(match.address) for match in tree.matches] == ["10.0.0.7", "fd00::7"]


def test_a_number_is_refused_in_words():
    """As a plugin may claim it that was not type-checked."""
    with pytest.raises(ValueError, match="wanted traffic classes as text, found 2"):
        TRAFFIC.of(2)
