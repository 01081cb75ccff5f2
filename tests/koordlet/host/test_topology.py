"""CPU numbering as lscpu does it, on small machines built in a directory."""

import shutil
import subprocess
from pathlib import Path

import pytest

from koord.api.machine import Cpu
from koordlet.host.errors import KernelFileError
from koordlet.host.topology import read_topology


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def write_list(path: Path, cpus: list[int]) -> None:
    """Write both forms that the kernel has, list and mask."""
    write(path.with_name(path.name + "_list"), ",".join(map(str, cpus)))
    write(path, f"{sum(1 << cpu for cpu in cpus):x}")


@pytest.fixture
def two_sockets(tmp_path):
    """Two sockets with two cores of two threads, numbered crosswise; NUMA nodes 0 and 2.

    Package numbers are 3 and 1, core_id is 0 or 8 in both, cache ids of socket 1 start at 16.
    """
    root = tmp_path / "sys/devices/system"
    cpus = range(8)
    for cpu in cpus:
        socket, core = cpu % 2, cpu // 2 % 2
        package = [other for other in cpus if other % 2 == socket]
        siblings = [other for other in package if other // 2 % 2 == core]
        here = root / f"cpu/cpu{cpu}"
        write(here / "topology/core_id", str(8 * core))
        write(here / "topology/physical_package_id", str(3 - 2 * socket))
        for name in ("core_cpus", "thread_siblings"):
            write_list(here / "topology" / name, siblings)
        for name in ("package_cpus", "core_siblings"):
            write_list(here / "topology" / name, package)
        for index, level, kind, shared, number in (
            (0, 1, "Data", siblings, 16 * socket + core),
            (1, 1, "Instruction", siblings, 40),
            (2, 2, "Unified", siblings, 50),
            (3, 3, "Unified", package, 5 * socket),
        ):
            cache = here / f"cache/index{index}"
            write(cache / "level", str(level))
            write(cache / "type", kind)
            write(cache / "id", str(number))
            write_list(cache / "shared_cpu", shared)
            (cache / "shared_cpu").rename(cache / "shared_cpu_map")
            for name in ("size", "ways_of_associativity", "number_of_sets",
                         "coherency_line_size", "physical_line_partition"):  # fmt: skip
                write(cache / name, "1")
        node = root / f"node/node{2 * socket}"
        write_list(node / "cpu", package)
        (node / "cpu_list").rename(node / "cpulist")
        (node / "cpu").rename(node / "cpumap")
        (here / node.name).symlink_to(f"../../node/{node.name}")
    for name in ("online", "possible", "present"):
        write(root / "cpu" / name, "0-7")
    write(root / "cpu/kernel_max", "127")
    write(root / "node/possible", "0-2")
    write(root / "node/online", "0,2")
    write(tmp_path / "proc/cpuinfo", "processor\t: 0\nvendor_id\t: GenuineIntel\n")
    return tmp_path


def test_cores_and_sockets_are_counted_over_the_machine(two_sockets):
    """Ids follow the first CPU of each core and socket; the order is node, socket, core, cpu."""
    assert read_topology(two_sockets / "sys").cpus == (
        Cpu(node=0, socket=0, core=0, cpu=0, l1=0, l3=0),
        Cpu(node=0, socket=0, core=0, cpu=4, l1=0, l3=0),
        Cpu(node=0, socket=0, core=2, cpu=2, l1=1, l3=0),
        Cpu(node=0, socket=0, core=2, cpu=6, l1=1, l3=0),
        Cpu(node=2, socket=1, core=1, cpu=1, l1=16, l3=5),
        Cpu(node=2, socket=1, core=1, cpu=5, l1=16, l3=5),
        Cpu(node=2, socket=1, core=3, cpu=3, l1=17, l3=5),
        Cpu(node=2, socket=1, core=3, cpu=7, l1=17, l3=5),
    )


def lscpu_rows(root: Path) -> set[tuple[int, ...]]:
    command = ["lscpu", "-s", str(root), "-e=CPU,NODE,SOCKET,CORE,CACHE"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = (line.replace(":", " ").split() for line in text.splitlines()[1:])
    return {(*map(int, row[:5]), int(row[-1])) for row in rows}


@pytest.mark.skipif(not shutil.which("lscpu"), reason="no lscpu to compare with")
def test_the_numbers_are_those_of_lscpu(two_sockets):
    """CPU, node, socket, core, first and last cache agree for the built machine and this one."""
    for root in (two_sockets, Path("/")):
        ours = {
            (cpu.cpu, cpu.node, cpu.socket, cpu.core, cpu.l1, cpu.l3)
            for cpu in read_topology(root / "sys").cpus
        }

        assert ours == lscpu_rows(root)


def test_groups(two_sockets):
    """CPUs by any property; how many threads a core has; node by CPU."""
    topology = read_topology(two_sockets / "sys")

    assert topology.by(lambda cpu: cpu.core) == {0: (0, 4), 1: (1, 5), 2: (2, 6), 3: (3, 7)}
    assert topology.by(lambda cpu: cpu.l3) == {0: (0, 4, 2, 6), 5: (1, 5, 3, 7)}
    assert topology.threads_per_core == 2
    assert topology.node_of[7] == 2


def test_offline_cpus_are_left_out(two_sockets):
    """A CPU that is not online has no core; the ids of the others close up."""
    write(two_sockets / "sys/devices/system/cpu/online", "1-3,5-7")

    assert {cpu.cpu: cpu.core for cpu in read_topology(two_sockets / "sys").cpus} == {
        1: 0,
        5: 0,
        2: 1,
        6: 1,
        3: 2,
        7: 2,
    }


def test_a_kernel_without_topology_files(tmp_path):
    """Each CPU is a core of its own, all in socket, node and caches 0."""
    write(tmp_path / "devices/system/cpu/online", "0-1")

    assert read_topology(tmp_path).cpus == (Cpu(0, 0, 0, 0), Cpu(0, 0, 1, 1))


def test_caches_without_id_are_counted(tmp_path):
    """Kernels before 4.11 name no cache; the groups still differ."""
    root = tmp_path / "devices/system/cpu"
    write(root / "online", "0-3")
    for cpu in range(4):
        for index, level, shared in ((0, 1, f"{cpu}"), (1, 3, "0-1" if cpu < 2 else "2-3")):
            cache = root / f"cpu{cpu}/cache/index{index}"
            write(cache / "level", str(level))
            write(cache / "type", "Unified")
            write(cache / "shared_cpu_list", shared)

    cpus = read_topology(tmp_path).cpus

    assert [cpu.l1 for cpu in cpus] == [0, 1, 2, 3]
    assert [cpu.l3 for cpu in cpus] == [0, 0, 1, 1]


@pytest.mark.parametrize("online", ["", "all", "0-", "\0\0"])
def test_an_unreadable_list_of_cpus_is_an_error(tmp_path, online):
    """Without the CPUs there is no topology."""
    write(tmp_path / "devices/system/cpu/online", online)

    with pytest.raises(KernelFileError, match="online"):
        read_topology(tmp_path)
