"""Numbers out of /proc: the worked examples, files of real kernels, and any other bytes."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordlet.host import procfiles
from koordlet.host.procfiles import (
    ProcessStat,
    parse_boot_id,
    parse_cmdline,
    parse_cpu_ticks,
    parse_int,
    parse_meminfo,
    parse_numa_meminfo,
    parse_per_cpu_ticks,
    parse_pid_stat,
    parse_text,
)

DATA = Path(__file__).parent / "data"
CPU_LINE = b"cpu 514003 37519 593580 1706155242 5134 45033 38832 0 0 0\n"
CPU0_LINE = b"cpu0 9755 845 15540 26635869 3021 2312 9724 0 0 0\n"
KIB = 1024


def test_busy_time_leaves_out_idle_and_stolen_time():
    """The worked example: user + nice + system + irq + softirq."""
    assert parse_cpu_ticks(CPU_LINE + CPU0_LINE) == 1228967
    assert parse_per_cpu_ticks(CPU_LINE + CPU0_LINE) == {0: 38176}


def test_stat_of_a_real_kernel():
    """The CPUs add up to the machine, but for rounding of each CPU's six counters."""
    data = (DATA / "stat").read_bytes()

    per_cpu = parse_per_cpu_ticks(data)

    assert per_cpu.keys() == {0, 1}
    assert parse_cpu_ticks(data) == pytest.approx(sum(per_cpu.values()), abs=6 * len(per_cpu))


def test_the_machine_line_may_come_later():
    """Only a line whose first word is exactly "cpu" counts for the machine."""
    assert parse_cpu_ticks(CPU0_LINE + CPU_LINE) == 1228967


def test_offline_cpus_and_strange_names_are_left_out():
    """Numbers may have gaps; names that are not a number are no CPU."""
    assert parse_per_cpu_ticks(b"cpux 1 1\n" + CPU0_LINE + CPU0_LINE.replace(b"u0", b"u7")) == {
        0: 38176,
        7: 38176,
    }


@pytest.mark.parametrize("data", [b"", b"\0" * 64, b"cpu 1 2 3 4 5 6\n", b"cpu 1 2 3 4 5 6 x 0\n",
                                  b"cpu -1 2 3 4 5 6 7 8\n", b"intr 1 2 3\n"])  # fmt: skip
def test_unusable_stat_is_an_error(data):
    """Truncated, empty and binary files are refused."""
    with pytest.raises(ValueError, match="wanted"):
        parse_cpu_ticks(data)
    with pytest.raises(ValueError, match="wanted"):
        parse_per_cpu_ticks(data.replace(b"cpu", b"cpu0"))


def meminfo(**kib: int) -> bytes:
    return "".join(f"{name}:  {value} kB\n" for name, value in kib.items()).encode()


@pytest.mark.parametrize(
    ("total", "available", "free", "usage", "with_cache"),
    [
        (1048576, 524288, 262144, 536870912, 805306368),
        (263432804, 256703236, 254391744, 6891077632, 9258045440),
        (1000, 1200, 1100, 0, 0),  # no underflow
    ],
)
def test_memory_usage(total, available, free, usage, with_cache):
    """The worked examples, in bytes."""
    info = parse_meminfo(meminfo(MemTotal=total, MemAvailable=available, MemFree=free))

    assert (info.total, info.usage, info.usage_with_page_cache) == (
        total * KIB,
        usage,
        with_cache,
    )


def test_meminfo_of_a_real_kernel():
    """All lines are there under the names of the file."""
    info = parse_meminfo((DATA / "meminfo").read_bytes())

    assert info.total > info.usage_with_page_cache > 0
    assert info.total > info.usage > 0
    assert {"Active(file)", "HugePages_Total", "SReclaimable"} <= info.kib.keys()


def test_a_broken_line_costs_only_its_own_value():
    """A key without a value or with text is absent; the rest stays."""
    data = b"Buffers:\nCached: lots kB\nnonsense\n" + meminfo(MemTotal=3, MemAvailable=2, MemFree=1)

    assert parse_meminfo(data).kib == {"MemTotal": 3, "MemAvailable": 2, "MemFree": 1}


@pytest.mark.parametrize("name", ["MemTotal", "MemAvailable", "MemFree"])
def test_memory_that_cannot_be_known_is_an_error(name):
    """A missing value is never taken for 0."""
    values = {"MemTotal": 3, "MemAvailable": 2, "MemFree": 1}
    del values[name]

    with pytest.raises(ValueError, match=name):
        parse_meminfo(meminfo(**values))


@pytest.mark.parametrize(
    ("kib", "usage"),
    [
        ((1048576, 262144, 131072, 131072, 65536), 469762048),
        ((263432804, 254391744, 2496524, 2222452, 445164), 3969966080),
        ((1000, 600, 300, 200, 50), 0),
    ],
)
def test_numa_memory_usage(kib, usage):
    """The worked examples; more reclaimable than total is no underflow."""
    names = ("MemTotal", "MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
    lines = [f"Node 3 {name}: {value} kB" for name, value in zip(names, kib, strict=True)]

    found = parse_numa_meminfo("\n".join(lines).encode())

    assert (found.total, found.usage) == (kib[0] * KIB, usage)


def test_numa_meminfo_of_a_real_kernel():
    """Usage of the node lies between 0 and its total."""
    found = parse_numa_meminfo((DATA / "node_meminfo").read_bytes())

    assert 0 < found.usage < found.total


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"123 (sh stress) S 120 121 1 0", ProcessStat(123, "sh stress", "S", 120, 121)),
        (b"7 (a) b) (c) R 1 7 0", ProcessStat(7, "a) b) (c", "R", 1, 7)),
        (b"7 (new\nline) Z 1 7", ProcessStat(7, "new\nline", "Z", 1, 7)),
    ],
)  # fmt: skip
def test_process_names_may_hold_anything(data, expected):
    """The name ends at the last parenthesis."""
    assert parse_pid_stat(data) == expected


@pytest.mark.parametrize(
    "data", [b"", b"12345 sh S 1 2", b"12345 (x) S 12340 -1 0", b"12345 (x) S 1", b"x (x) S 1 2"]
)
def test_unusable_process_stat_is_an_error(data):
    """No name, a negative group or too few fields."""
    with pytest.raises(ValueError, match="wanted"):
        parse_pid_stat(data)


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=15))
def test_any_process_name_survives(comm):
    """Whatever a process calls itself, its parent and group are read right."""
    assert parse_pid_stat(f"5 ({comm}) S 4 3 2".encode()) == ProcessStat(5, comm, "S", 4, 3)


def test_own_process_stat():
    """A file of this very kernel."""
    assert parse_pid_stat(Path("/proc/self/stat").read_bytes()).state == "R"


@pytest.mark.parametrize(("data", "number"), [(b"1\n", 1), (b"-5", -5), (b" 42 \n", 42)])
def test_a_single_number(data, number):
    """With or without newline and sign."""
    assert parse_int(data) == number


@pytest.mark.parametrize("data", [b"", b"max", b"1 2", b"1_000", b"+1", b"--1", b"0x1", b"\xb2"])
def test_not_a_single_number(data):
    """Everything else is refused, also what Python's int() would take."""
    with pytest.raises(ValueError, match="wanted one integer"):
        parse_int(data)


@pytest.mark.parametrize("data", [b"", b"\n", b"a\nb\n", b"a\0b", b"\xff\xfe"])
def test_not_a_line_of_text(data):
    """Empty, more than one line, and binary."""
    with pytest.raises(ValueError, match=r"wanted|decode"):
        parse_text(data)


def test_command_line():
    """Arguments keep blanks and empty arguments; a kernel thread has none."""
    assert parse_cmdline(b"kubelet\0--config\0a b\0\0x\0") == [
        "kubelet",
        "--config",
        "a b",
        "",
        "x",
    ]
    assert parse_cmdline(b"") == []


def test_boot_id():
    """A UUID and nothing else."""
    assert parse_boot_id(b"da8d657c-8fa2-46c4-9aeb-64c0a40defa8\n")[:8] == "da8d657c"
    with pytest.raises(ValueError, match="wanted a boot id"):
        parse_boot_id(b"da8d657c-8fa2-46c4-9aeb")


PARSERS = [
    parse_boot_id,
    parse_cmdline,
    parse_cpu_ticks,
    parse_int,
    parse_meminfo,
    parse_numa_meminfo,
    parse_per_cpu_ticks,
    parse_pid_stat,
    parse_text,
]


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: parse.__name__)
@given(data=st.binary(max_size=200))
def test_any_bytes_give_a_value_or_a_value_error(parse, data):
    """No parser fails in a way that the host layer does not expect."""
    with contextlib.suppress(ValueError):
        parse(data)


@pytest.mark.parametrize(
    ("name", "parse"),
    [
        ("stat", parse_cpu_ticks),
        ("stat", parse_per_cpu_ticks),
        ("meminfo", parse_meminfo),
        ("node_meminfo", parse_numa_meminfo),
    ],
)
@given(at=st.integers(0, 5000), byte=st.binary(min_size=1, max_size=1))
def test_a_damaged_real_file_gives_a_value_or_a_value_error(name, parse, at, byte):
    """One byte replaced, and all cut off behind it."""
    data = (DATA / name).read_bytes()
    for damaged in (data[:at] + byte + data[at + 1 :], data[:at] + byte):
        with contextlib.suppress(ValueError):
            parse(damaged)


def test_error_messages_show_little_and_escaped():
    """Foreign bytes cannot flood or garble a log."""
    assert procfiles.shown(b"\x1b[2J" + b"a" * 1000) == "'\\x1b[2J" + "a" * 56 + "'..."
