"""CPU topology from sysfs: the core, socket, NUMA node and cache of each CPU.

The numbers are those that `lscpu -e` prints and Koordinator's manager and scheduler know: core and
socket ids are counted from 0 over the whole machine, in the order of their first CPU (the kernel's
own core_id repeats in every socket).

Source: kernel docs, admin-guide/cputopology and ABI/testing/sysfs-devices-system-cpu.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from koord.api.nodes.machine import Cpu, CpuTopology
from koord.util.cpulist import parse_cpulist_file
from koordlet.host.errors import KernelFileError
from koordlet.host.files import names_in, parse_file
from koordlet.host.proc.procfiles import parse_int, parse_text

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
