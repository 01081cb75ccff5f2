"""CPU model and features from files of real machines and from nothing at all."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.machine import Cpu, CpuTopology
from koordlet.host.paths import HostPaths
from koordlet.host.topology import CpuBasics, CpuInfo, parse_cpuinfo, read_basics, read_cpuinfo

DATA = Path(__file__).parent / "data"
ONE_THREAD = CpuTopology((Cpu(0, 0, 0, 0),))
TWO_THREADS = CpuTopology((Cpu(0, 0, 0, 0), Cpu(0, 0, 0, 1)))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_x86():
    """The file of this project's test machine."""
    cpu = parse_cpuinfo((DATA / "cpuinfo_amd64").read_bytes())

    assert (cpu.model, cpu.vendor) == ("AMD EPYC", "AuthenticAMD")
    assert {"avx2", "sse4_2"} <= cpu.flags


def test_arm64_has_features_but_no_model():
    """An Arm server: nothing is invented."""
    cpu = parse_cpuinfo((DATA / "cpuinfo_arm64").read_bytes())

    assert (cpu.model, cpu.vendor) == ("", "unknown")
    assert {"atomics", "asimd"} <= cpu.flags


@pytest.mark.parametrize(
    ("line", "model"),
    [
        ("model name\t: Intel(R) Xeon(R) CPU @ 2.50GHz", "Intel(R) Xeon(R) CPU @ 2.50GHz"),
        ("Model Name\t\t: Loongson-3A5000", "Loongson-3A5000"),
        ("model name : a: b", "a"),
        ("model : 2", ""),
    ],
)
def test_model(line, model):
    """The value ends at a further colon; `model` is a number, not the name."""
    assert parse_cpuinfo(line.encode()).model == model


@given(st.binary(max_size=300))
def test_any_bytes_give_a_cpu(data):
    """Nothing is needed from this file, so nothing can be wrong with it."""
    assert isinstance(parse_cpuinfo(data), CpuInfo)


def test_only_the_beginning_of_a_large_file_is_read(tmp_path):
    """With hundreds of CPUs the kernel takes milliseconds to write the whole file."""
    write(tmp_path / "cpuinfo", "vendor_id : first\n" * 10_000 + "model name : never seen")

    assert read_cpuinfo(tmp_path) == CpuInfo(vendor="first")


def test_a_host_without_any_of_the_files(tmp_path):
    """Each fact that cannot be found out stays empty."""
    assert read_basics(HostPaths.below(tmp_path), ONE_THREAD) == CpuBasics(
        "", "unknown", hyper_threading=False, turbo=False, l3_mask=""
    )


@pytest.mark.parametrize(
    ("active", "topology", "expected"),
    [
        ("1", ONE_THREAD, True),
        ("0", TWO_THREADS, False),
        ("?", TWO_THREADS, True),
        (None, TWO_THREADS, True),
        (None, ONE_THREAD, False),
    ],
)
def test_hyper_threading(tmp_path, active, topology, expected):
    """The kernel's word, otherwise whether a core has several CPUs."""
    if active is not None:
        write(tmp_path / "sys/devices/system/cpu/smt/active", active)

    assert read_basics(HostPaths.below(tmp_path), topology).hyper_threading is expected


@pytest.mark.parametrize(("no_turbo", "expected"), [("0", True), ("1", False), (None, False)])
def test_turbo(tmp_path, no_turbo, expected):
    """Intel's driver says "no turbo"; without that driver turbo counts as off."""
    if no_turbo is not None:
        write(tmp_path / "sys/devices/system/cpu/intel_pstate/no_turbo", no_turbo)

    assert read_basics(HostPaths.below(tmp_path), ONE_THREAD).turbo is expected


def test_cache_mask(tmp_path):
    """Trimmed, as the annotation wants it."""
    write(tmp_path / "sys/fs/resctrl/info/L3/cbm_mask", "7ff")

    assert read_basics(HostPaths.below(tmp_path), ONE_THREAD).l3_mask == "7ff"
