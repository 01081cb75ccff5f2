"""Memory of cgroups by NUMA node."""

import mmap
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.host.cgroups.cgroupfiles import parse_v1_numa_stat, parse_v2_numa_stat

V1 = """\
total=10 N0=10 N2=0
file=1 N0=1 N2=0
anon=8 N0=8 N2=0
unevictable=1 N0=1 N2=0
hierarchical_total=60 N0=40 N2=20
hierarchical_file=9 N0=4 N2=5
hierarchical_anon=40 N0=30 N2=10
hierarchical_unevictable=11 N0=6 N2=5
"""
V2 = """\
anon N0=40960 N2=0
file N0=500 N2=600
kernel_stack N0=0 N2=0
inactive_anon N0=3000 N2=200
active_anon N0=1000 N2=10
inactive_file N0=500 N2=0
active_file N0=0 N2=600
unevictable N0=7 N2=8
slab_reclaimable N0=1 N2=1
"""


def test_v1_counts_pages_of_the_whole_subtree():
    """The first line would leave out the containers of a pod; ids may have gaps."""
    page = mmap.PAGESIZE

    assert parse_v1_numa_stat(V1.encode()) == {0: 36 * page, 2: 15 * page}


def test_v2_counts_bytes():
    """The same formula as usage without page cache, so that sums agree with it."""
    assert parse_v2_numa_stat(V2.encode()) == {0: 4007, 2: 218}


def test_a_real_v1_file():
    """A file captured from Linux 6.18 agrees with memory.stat of about the same moment."""
    data = Path(__file__).with_name("data").joinpath("v1_memory_numa_stat").read_bytes()

    assert 0 < parse_v1_numa_stat(data)[0] < 2**34


@pytest.mark.parametrize(("parse", "text"), [(parse_v1_numa_stat, V1), (parse_v2_numa_stat, V2)])
def test_a_file_cut_before_the_last_needed_line_is_refused(parse, text):
    """A part of a file never becomes a smaller usage."""
    data = text.encode()
    whole = parse(data)

    for cut in range(len(data)):
        with suppress(ValueError):
            assert parse(data[:cut]) == whole


@pytest.mark.parametrize("parse", [parse_v1_numa_stat, parse_v2_numa_stat])
@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_value_error(parse, data):
    """Nothing but the kernel's lines is taken."""
    with pytest.raises(ValueError, match="wanted"):
        parse(data)


@given(st.dictionaries(st.integers(0, 255), st.tuples(*[st.integers(0, 2**48)] * 3), min_size=1))
def test_sums_by_node(nodes):
    """Every node gets the sum of its three lists."""
    text = "".join(
        name + "".join(f" N{node}={counts[position]}" for node, counts in nodes.items()) + "\n"
        for position, name in enumerate(("inactive_anon", "active_anon", "unevictable"))
    )

    assert parse_v2_numa_stat(text.encode()) == {n: sum(counts) for n, counts in nodes.items()}
