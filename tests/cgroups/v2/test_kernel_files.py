"""The kernel's cgroup v2 files: their contents, and their end with the group."""

import errno
import os
from pathlib import Path

import pytest

from koordlet.host import resources as r
from koordlet.host.cgroups import cgroupfiles
from koordlet.host.errors import KernelFileError, Unsupported
from koordlet.host.host import Host

from ..conftest import MIB, Tree, burn, touch

POD = "kubepods.slice/kubepods-podu1.slice"


@pytest.mark.parametrize("below_kubepods", ["", "/kubepods-podu1.slice"])
def test_memory_stat_has_the_layout_that_is_parsed_fast(tree: Tree, below_kubepods: str) -> None:
    """One pattern matches; a search for every name is for kernels yet to come, and costs twice."""
    group = tree.make(f"kubepods.slice{below_kubepods}")
    group.run(touch(8 * MIB))
    text = (tree.base / group.path / "memory.stat").read_bytes()

    assert cgroupfiles._V2_MEMORY.match(text)
    stat = cgroupfiles.parse_v2_memory_stat(text)
    pairs = dict(line.split() for line in text.decode().splitlines())
    parsed = stat._asdict() | {"file": stat.cache, "anon": stat.rss}
    assert {name: str(parsed[name]) for name in parsed.keys() & pairs.keys()} == {
        name: pairs[name] for name in cgroupfiles._V2_MEMORY_NAMES
    }
    assert stat.usage > 7 * MIB


def test_cpu_stat_has_the_layout_that_is_parsed_fast(tree: Tree) -> None:
    """Usage comes first, and the counters of the quota stand together."""
    group = tree.make(POD)
    group.write(r.CPU_QUOTA, "20000 100000")
    group.run(burn(0.05))
    text = (tree.base / POD / "cpu.stat").read_bytes()

    assert cgroupfiles._V2_CPU_USAGE.match(text)
    assert cgroupfiles._V2_THROTTLE.search(text)
    time = cgroupfiles.parse_v2_cpu_time(text)
    assert time.user + time.system == pytest.approx(cgroupfiles.parse_v2_cpu_usage(text), abs=2000)


@pytest.mark.parametrize(
    "name",
    [
        "cpu.stat",
        "memory.stat",
        "memory.numa_stat",
        "memory.current",
        "cpu.max",
        "cpu.pressure",
        "memory.pressure",
        "io.pressure",
        "cpuset.cpus.effective",
    ],
)
def test_a_held_file_shows_that_its_group_was_removed(tree: Tree, name: str) -> None:
    """Reading gives ENODEV at once, whatever was read before; it never gives old figures."""
    tree.make(POD)
    fd = os.open(tree.base / POD / name, os.O_RDONLY)
    try:
        assert os.pread(fd, 4096, 0)
        tree.remove(POD)
        with pytest.raises(OSError, match=os.strerror(errno.ENODEV)):
            os.pread(fd, 4096, 0)
        tree.make(POD)  # another group under the same name
        with pytest.raises(OSError, match=os.strerror(errno.ENODEV)):
            os.pread(fd, 4096, 0)
    finally:
        os.close(fd)


def test_a_group_without_controllers(tree: Tree) -> None:
    """Its CPU usage is counted all the same; memory and throttling are said to be missing."""
    (tree.base / "kubepods").mkdir()
    directory = tree.base / "kubepods/pod1"
    directory.mkdir()
    host = Host(tree.paths)

    assert host.read(r.CPU_USAGE, "kubepods/pod1") == 0
    assert host.read(r.CPU_PRESSURE, "kubepods/pod1").some.total_us == 0
    for resource in (r.MEMORY_STAT, r.MEMORY_NUMA, r.CPU_QUOTA, r.CPUSET_CPUS):
        with pytest.raises(Unsupported):
            host.read(resource, "kubepods/pod1")
    with pytest.raises(KernelFileError, match="nr_periods"):
        host.read(r.CPU_THROTTLE, "kubepods/pod1")
    host.descriptors.close()


def test_the_processes_of_a_threaded_group_cannot_be_listed(tree: Tree) -> None:
    """The kernel refuses; that is an error of this file alone, with a path and a hint."""
    (tree.base / POD / "c1").mkdir(parents=True)
    (tree.base / POD / "c1/cgroup.type").write_text("threaded")
    host = Host(tree.paths)

    with pytest.raises(KernelFileError) as error:
        host.read(r.CGROUP_PROCS, f"{POD}/c1")
    assert Path(error.value.path).name == "cgroup.procs"
    assert host.read(r.TASKS, f"{POD}/c1") == ()
    host.descriptors.close()
