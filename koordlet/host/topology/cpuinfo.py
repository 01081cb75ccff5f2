"""The CPU's model and features, from /proc/cpuinfo.

Source: Koordinator's `cpu-basic-info` annotation; kernel docs, admin-guide/pm/intel_pstate.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from koord.api.nodes.machine import UNKNOWN_VENDOR, CpuBasics, CpuTopology
from koordlet.host.errors import KernelFileError
from koordlet.host.files import parse_file, read_head
from koordlet.host.paths import HostPaths
from koordlet.host.proc.procfiles import parse_int, parse_text

_FIRST_CPU_BYTES = 16 * 1024  # the kernel works for each CPU it prints; one is enough
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """The first CPU of /proc/cpuinfo; the others are taken to be alike."""

    model: str = ""  # "" when the file has none, as on arm64
    vendor: str = UNKNOWN_VENDOR  # for example GenuineIntel
    flags: frozenset[str] = frozenset()  # x86 "flags", arm64 "Features"


def parse_cpuinfo(data: bytes) -> CpuInfo:
    """Return the first CPU from /proc/cpuinfo, or from its beginning. Never fails."""
    fields: dict[str, str] = {}
    for line in data.decode(errors="replace").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip().lower(), value.partition(":")[0].strip())
    return CpuInfo(
        model=fields.get("model name", ""),
        vendor=fields.get("vendor_id", UNKNOWN_VENDOR),
        flags=frozenset(fields.get("flags", fields.get("features", "")).split()),
    )


def read_cpuinfo(proc: Path) -> CpuInfo:
    """Return the first CPU of this host.

    Raises:
        KernelFileError: cpuinfo cannot be read.
    """
    return parse_cpuinfo(read_head(proc / "cpuinfo", _FIRST_CPU_BYTES))


def read_basics(paths: HostPaths, topology: CpuTopology) -> CpuBasics:
    """Return what can be found out about this host's CPU. Never fails."""
    try:
        cpu = read_cpuinfo(paths.proc)
    except KernelFileError:
        cpu = CpuInfo()
    system = paths.sys / "devices/system/cpu"
    active = _value(system / "smt/active", parse_int, -1)
    return CpuBasics(
        model=cpu.model,
        vendor=cpu.vendor,
        hyper_threading=topology.threads_per_core > 1 if active < 0 else active == 1,
        turbo=_value(system / "intel_pstate/no_turbo", parse_int, 1) == 0,
        l3_mask=_value(paths.sysfs / "resctrl/info/L3/cbm_mask", parse_text, ""),
    )


def _value(path: Path, parse: Callable[[bytes], T], otherwise: T) -> T:
    try:
        return parse_file(path, parse)
    except KernelFileError:
        return otherwise
