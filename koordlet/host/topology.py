"""CPUs, caches and NUMA nodes of the machine, from sysfs and /proc/cpuinfo."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from koord.api.machine import UNKNOWN_VENDOR, Cpu, CpuBasics, CpuTopology, parse_cpulist_file
from koordlet.host.errors import KernelFileError
from koordlet.host.files import names_in, parse_file, read_head
from koordlet.host.paths import HostPaths
from koordlet.host.procfiles import NumaMemInfo, parse_int, parse_numa_meminfo, parse_text

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


_CORE = ("core_cpus_list", "thread_siblings_list")  # the second is the name before Linux 5.3
_PACKAGE = ("package_cpus_list", "core_siblings_list")


def read_topology(sys: Path) -> CpuTopology:
    """Return the topology of the CPUs that are online.

    What a kernel does not report (virtual machines, arm64) is the simplest case: each CPU a core of
    its own, all in socket 0, node 0 and cache 0.

    Raises:
        KernelFileError: the list of CPUs cannot be read or is empty.
    """
    root = sys / "devices/system/cpu"
    online = sorted(parse_file(root / "online", parse_cpulist_file))
    if not online:
        raise KernelFileError(
            root / "online", wanted="at least one CPU", found="none", hint="check --sys-root-dir"
        )
    cores = _number_groups(online, lambda cpu: _siblings(root, cpu, _CORE) or {cpu})
    sockets = _number_groups(online, lambda cpu: _siblings(root, cpu, _PACKAGE) or online)
    l1, l3 = _cache_ids(root, online, 1), _cache_ids(root, online, 3)
    cpus = (
        Cpu(_node(root, cpu), sockets[cpu], cores[cpu], cpu, l1.get(cpu, 0), l3.get(cpu, 0))
        for cpu in online
    )
    return CpuTopology(
        tuple(sorted(cpus, key=lambda cpu: (cpu.node, cpu.socket, cpu.core, cpu.cpu)))
    )


def _number_groups(
    online: Iterable[int], members_of: Callable[[int], Iterable[int]]
) -> dict[int, int]:
    """Give each group of CPUs a number, in the order of its first CPU."""
    numbers: dict[int, int] = {}
    count = 0
    for cpu in online:
        if cpu not in numbers:
            numbers[cpu] = count
            for member in members_of(cpu):
                numbers.setdefault(member, count)
            count += 1
    return numbers


def _siblings(root: Path, cpu: int, files: tuple[str, ...]) -> Iterable[int]:
    for name in files:
        try:
            return parse_file(root / f"cpu{cpu}/topology" / name, parse_cpulist_file)
        except KernelFileError:
            continue
    return ()


def _node(root: Path, cpu: int) -> int:
    """The kernel links the directory of a CPU's NUMA node into that of the CPU."""
    nodes = (name.removeprefix("node") for name in names_in(root / f"cpu{cpu}") if "node" in name)
    return next((int(node) for node in nodes if node.isdigit()), 0)


def _cache_ids(root: Path, online: Iterable[int], level: int) -> dict[int, int]:
    """Return the id of the cache of a level by CPU; a CPU without one is absent.

    Kernels that give no id get one counted here, as lscpu does.
    """
    ids: dict[int, int] = {}
    count = 0
    for cpu in online:
        cache = None if cpu in ids else _find_cache(root / f"cpu{cpu}/cache", level)
        if cache is None:
            continue
        try:
            number = parse_file(cache / "id", parse_int)
        except KernelFileError:
            number = count
        ids[cpu] = number
        ids.update(dict.fromkeys(parse_file(cache / "shared_cpu_list", parse_cpulist_file), number))
        count += 1
    return ids


def _find_cache(directory: Path, level: int) -> Path | None:
    for name in names_in(directory):
        cache = directory / name
        try:
            level_here = parse_file(cache / "level", parse_int)
            kind = parse_file(cache / "type", parse_text)
        except KernelFileError:
            continue
        if level_here == level and kind != "Instruction":
            return cache
    return None


_NODES = "bus/node/devices"
_INITIATORS = "devices/system/node/has_generic_initiator"


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One NUMA node with memory."""

    id: int
    memory: NumaMemInfo
    huge_pages: dict[int, int]  # page size in KiB -> pages set aside


def read_numa_nodes(sys: Path) -> list[NumaNode]:
    """Return the NUMA nodes by ascending id; ids may have gaps.

    Left out are nodes that hold no CPU but a device (generic initiators), and those whose memory
    cannot be read. Empty when the kernel knows nothing of NUMA.
    """
    nodes = []
    for node in numa_node_ids(sys):
        directory = sys / _NODES / f"node{node}"
        try:
            memory = parse_file(directory / "meminfo", parse_numa_meminfo)
        except KernelFileError:
            continue
        nodes.append(NumaNode(node, memory, read_huge_pages(directory / "hugepages")))
    return nodes


def numa_node_ids(sys: Path) -> list[int]:
    """Return the ids of the NUMA nodes, ascending, without generic initiators."""
    try:
        initiators = parse_file(sys / _INITIATORS, parse_cpulist_file)
    except KernelFileError:  # Linux before 5.10
        initiators = frozenset()
    names = (name.removeprefix("node") for name in names_in(sys / _NODES))
    return sorted(int(name) for name in names if name.isdigit() and int(name) not in initiators)


def read_huge_pages(directory: Path) -> dict[int, int]:
    """Return the number of huge pages by page size in KiB; sizes that cannot be read are absent.

    directory is .../node<N>/hugepages, or /sys/kernel/mm/hugepages for the whole machine.
    """
    pages = {}
    for name in names_in(directory):
        size = name.removeprefix("hugepages-").removesuffix("kB")
        if not size.isdigit():
            continue
        try:
            pages[int(size)] = parse_file(directory / name / "nr_hugepages", parse_int)
        except KernelFileError:
            continue
    return pages
