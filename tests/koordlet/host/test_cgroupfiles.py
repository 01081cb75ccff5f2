"""The text of cgroup files."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.host.cgroups import cgroupfiles as cg
from koordlet.host.cgroups.cgroupfiles import CpuThrottle, CpuTime, MemoryStat
from koordlet.plugin.testing import kernelfiles

DATA = Path(__file__).with_name("data")
counters = st.integers(0, 2**64 - 1)
V2_STAT = kernelfiles.V2_CPU_STAT.format(
    usage=1_000_000, periods=20, throttled=4, throttled_us=12_345
).encode()
V1_STAT = kernelfiles.V1_CPU_STAT.format(periods=20, throttled=4, throttled_ns=12_345_678).encode()
V2_MEMORY = b"""\
anon 30
file 40
inactive_anon 70
active_anon 80
inactive_file 50
active_file 60
unevictable 10
slab 1
"""


@pytest.mark.parametrize(
    ("parse", "data", "value"),
    [
        (cg.parse_number, b"0\n", 0),
        (cg.parse_number, b"-1\n", -1),
        (cg.parse_number_or_max, b"max\n", -1),
        (cg.parse_number_or_max, b"4096\n", 4096),
        (cg.parse_v1_memory_limit, b"9223372036854771712\n", -1),
        (cg.parse_v1_memory_limit, b"9223372036854771711\n", 9223372036854771711),
        (cg.parse_cpu_max_quota, b"max 100000\n", -1),
        (cg.parse_cpu_max_quota, b"100000 not_a_number\n", 100000),
        (cg.parse_cpu_max_period, b"max 100000\n", 100000),
        (cg.parse_cpu_max_period, b"not_a_number 100000\n", 100000),
        (cg.parse_cpu_weight, b"100\n", 2597),
        (cg.parse_v2_cpu_usage, b"usage_usec 1000000\n", 1_000_000_000),
        (cg.parse_v2_cpu_usage, b"other 1\nusage_usec 7\n", 7000),
        (cg.parse_v2_cpu_usage, V2_STAT, 1_000_000_000),
        (cg.parse_v1_cpu_time, b"user 100\nsystem 50\n", CpuTime(10**9, 5 * 10**8)),
        (cg.parse_v2_cpu_time, V2_STAT, CpuTime(10**9, 0)),
        (cg.parse_v1_cpu_throttle, V1_STAT, CpuThrottle(20, 4, 12_345_678)),
        (cg.parse_v2_cpu_throttle, V2_STAT, CpuThrottle(20, 4, 12_345_000)),
        (cg.parse_ids, b"", ()),
        (cg.parse_ids, b"12\n7\n", (12, 7)),
        (cg.parse_lines, b"253:0 100\n253:1 5\n", ("253:0 100", "253:1 5")),
    ],
)
def test_values(parse, data, value):
    """Both kernel spellings of a value become the same one, in the same unit."""
    assert parse(data) == value


@pytest.mark.parametrize(
    ("parse", "data"),
    [
        (cg.parse_number, b""),
        (cg.parse_number, b"12"),
        (cg.parse_number, b"1_000\n"),
        (cg.parse_number, b"+1\n"),
        (cg.parse_number, b"--1\n"),
        (cg.parse_number, b"1\n2\n"),
        (cg.parse_number, b"max\n"),
        (cg.parse_number_or_max, b"ma\n"),
        (cg.parse_cpu_max_quota, b"100000\n"),
        (cg.parse_cpu_max_quota, b"max 100000"),
        (cg.parse_cpu_max_quota, b"x 100000\n"),
        (cg.parse_cpu_max_period, b"max x\n"),
        (cg.parse_cpu_weight, b"0\n"),
        (cg.parse_v2_cpu_usage, b"usage_usec 100"),
        (cg.parse_v2_cpu_usage, b"usage_usec\n"),
        (cg.parse_v2_cpu_throttle, b"usage_usec 1\nuser_usec 1\n"),
        (cg.parse_v1_cpu_throttle, b"nr_periods 1\nnr_throttled 1\n"),
        (cg.parse_v1_memory_stat, V2_MEMORY),
        (cg.parse_v2_memory_stat, b"file 1\n"),
        (cg.parse_ids, b"1\n2"),
        (cg.parse_ids, b"1\nx\n"),
        (cg.parse_lines, b"\xff\n"),
    ],
)
def test_malformed_text_is_refused(parse, data):
    """A number that was cut short would look like a counter that goes back."""
    with pytest.raises(ValueError, match=r"wanted|decode"):
        parse(data)


def test_usage_is_the_sum_of_what_cannot_be_dropped():
    """Page cache comes on top only where it is asked for."""
    stat = cg.parse_v2_memory_stat(V2_MEMORY)

    assert stat == MemoryStat(40, 30, 70, 80, 50, 60, 10)
    assert stat.usage == 160
    assert stat.usage_with_page_cache == 270


def test_a_real_v1_memory_stat():
    """The hierarchical values count: a pod's memory is that of its containers."""
    stat = cg.parse_v1_memory_stat((DATA / "v1_memory_stat").read_bytes())

    assert stat.active_file == 131_854_336
    assert stat.unevictable == 23_175_168


def test_the_root_group_of_v2_has_no_throttling():
    """A real file of a group without cpu controller has usage, and is refused for the rest."""
    data = (DATA / "v2_cpu_stat_root").read_bytes()

    assert cg.parse_v2_cpu_usage(data) == 454_221_136_000
    with pytest.raises(ValueError, match="nr_periods"):
        cg.parse_v2_cpu_throttle(data)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (cg.parse_v1_memory_stat, kernelfiles.V1_MEMORY_STAT),
        (cg.parse_v2_memory_stat, kernelfiles.V2_MEMORY_STAT),
    ],
)
@given(anon=counters, file=counters, order=st.randoms(use_true_random=False))
def test_memory_stat_in_any_order(parse, text, anon, file, order):
    """The order of lines that the fast way expects is a matter of speed, not of the result."""
    lines = text.format(anon=anon, file=file, limit=1).splitlines(keepends=True)
    expected = parse("".join(lines).encode())
    order.shuffle(lines)

    assert expected == MemoryStat(file, anon, anon, 0, file, 0, 0)
    assert parse("".join(lines).encode()) == expected


@given(counters, counters, counters, st.randoms(use_true_random=False))
def test_cpu_stat_in_any_order(periods, throttled, nanoseconds, order):
    """Kernels add keys in the middle of cpu.stat from time to time."""
    lines = [
        f"nr_periods {periods}\n",
        f"nr_throttled {throttled}\n",
        f"throttled_time {nanoseconds}\n",
        "new 1\n",
    ]
    order.shuffle(lines)

    stat = cg.parse_v1_cpu_throttle("".join(lines).encode())

    assert stat == CpuThrottle(periods, throttled, nanoseconds)


@pytest.mark.parametrize(
    ("parse", "data"),
    [
        (cg.parse_number, b"123456\n"),
        (cg.parse_cpu_max_quota, b"50000 100000\n"),
        (cg.parse_v2_cpu_usage, V2_STAT),
        (cg.parse_v1_cpu_throttle, V1_STAT),
        (cg.parse_v2_cpu_throttle, V2_STAT),
        (cg.parse_v1_memory_stat, (DATA / "v1_memory_stat").read_bytes()),
        (cg.parse_v2_memory_stat, V2_MEMORY),
    ],
)
def test_a_file_cut_anywhere_is_refused_or_right(parse, data):
    """A cut file never becomes another value than the whole one."""
    whole = parse(data)

    for cut in range(len(data)):
        with suppress(ValueError):
            assert parse(data[:cut]) == whole


PARSERS = [
    cg.parse_number,
    cg.parse_number_or_max,
    cg.parse_v1_memory_limit,
    cg.parse_cpu_max_quota,
    cg.parse_cpu_max_period,
    cg.parse_cpu_weight,
    cg.parse_v2_cpu_usage,
    cg.parse_v1_cpu_time,
    cg.parse_v2_cpu_time,
    cg.parse_v1_cpu_throttle,
    cg.parse_v2_cpu_throttle,
    cg.parse_v1_memory_stat,
    cg.parse_v2_memory_stat,
    cg.parse_ids,
    cg.parse_lines,
]


@pytest.mark.parametrize("parse", PARSERS)
@given(data=st.binary(max_size=200) | st.text("0123456789 \nmaxusec_", max_size=60).map(str.encode))
def test_any_bytes_are_a_value_or_a_value_error(parse, data):
    """Binary and random text never raise anything else."""
    with suppress(ValueError):
        parse(data)
