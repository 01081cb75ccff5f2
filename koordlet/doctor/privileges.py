"""Privileges that this process lacks, and what each would add.

Measuring needs none of them: cgroup files, PSI, /proc/<pid>/net/dev and rtnetlink are open to
every user.

Source: capabilities(7).
"""

from dataclasses import dataclass
from pathlib import Path

from koordlet.host.errors import KernelFileError
from koordlet.host.files import parse_file
from koordlet.host.procfiles import shown

_FIELD = b"CapEff:"


@dataclass(frozen=True, slots=True)
class Capability:
    """One capability that a feature uses."""

    name: str
    bit: int
    adds: str
    needed_by: tuple[str, ...]  # gates


CAPABILITIES = (
    Capability(
        "CAP_DAC_OVERRIDE",
        1,
        "writes to cgroup files and sysctls that belong to another user",
        (
            "BECPUSuppress",
            "CPUBurst",
            "CgroupReconcile",
            "BlkIOReconcile",
            "SystemConfig",
            "RdtResctrl",
            "Resctrl",
            "GroupIdentity",
            "CPUSetAllocator",
            "BatchResource",
            "CPUNormalization",
        ),
    ),
    Capability(
        "CAP_KILL",
        5,
        "killing pods' processes for --evict-fallback=kill, where the kernel lacks cgroup.kill",
        (
            "BECPUEvict",
            "CPUEvict",
            "CPUAllocatableEvict",
            "BEMemoryEvict",
            "MemoryEvict",
            "MemoryAllocatableEvict",
        ),
    ),
    Capability("CAP_NET_ADMIN", 12, "traffic classes on interfaces", ("TCNetworkQoS",)),
    Capability(
        "CAP_SYS_PTRACE",
        19,
        "core scheduling cookies of other processes, opening the node's namespaces, and the "
        "kubelet's config file on a node without pods",
        ("CoreSched", "TCNetworkQoS"),
    ),
    Capability(
        "CAP_SYS_ADMIN",
        21,
        "entering the node's network namespace from that of a pod",
        ("TCNetworkQoS",),
    ),
    Capability(
        "CAP_SYS_RESOURCE",
        24,
        "a limit of open files above the hard limit, and lowering of oom_score_adj",
        ("OOMScoreAdj",),
    ),
    Capability("CAP_PERFMON", 38, "hardware counters of containers", ("CPICollector", "Libpfm4")),
)


def parse_effective_capabilities(data: bytes) -> int:
    """Return the set of effective capabilities from /proc/<pid>/status, one bit each.

    Raises:
        ValueError: the line is missing or not hexadecimal.
    """
    start = data.find(_FIELD)
    if start < 0:
        raise ValueError(f"wanted a line 'CapEff:', found {shown(data)}")
    return int(data[start + len(_FIELD) :].partition(b"\n")[0], 16)


def missing_capabilities(proc: Path) -> list[Capability]:
    """Return the capabilities that this process does not have; all when that cannot be read."""
    try:
        held = parse_file(proc / "self/status", parse_effective_capabilities)
    except KernelFileError:
        held = 0
    return [capability for capability in CAPABILITIES if not held >> capability.bit & 1]


def missing_privileges(proc: Path = Path("/proc")) -> list[str]:
    """Return one line per privilege that root would have: its name and what it would add.

    Empty for root without restrictions.
    """
    return [f"{missing.name}: {missing.adds}" for missing in missing_capabilities(proc)]
