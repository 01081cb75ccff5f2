"""NUMA nodes: which there are, their memory and huge pages."""

from dataclasses import dataclass
from pathlib import Path

from koord.util.cpulist import parse_cpulist_file
from koordlet.host.errors import KernelFileError
from koordlet.host.files import names_in, parse_file
from koordlet.host.proc.procfiles import NumaMemInfo, parse_int, parse_numa_meminfo

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
