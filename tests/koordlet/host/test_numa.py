"""NUMA nodes of machines built in a directory."""

from pathlib import Path

import pytest

from koordlet.host.topology import numa_node_ids, read_huge_pages, read_numa_nodes

MEMINFO = "Node {0} MemTotal: 1000 kB\nNode {0} MemFree: 400 kB\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def add_node(sys: Path, node: int, meminfo: str = MEMINFO) -> Path:
    directory = sys / f"bus/node/devices/node{node}"
    write(directory / "meminfo", meminfo.format(node))
    return directory


@pytest.mark.parametrize(
    ("nodes", "initiators", "expected"),
    [
        ([0, 1], None, [0, 1]),
        ([0, 1], "\n", [0, 1]),
        ([0, 1], "1\n", [0]),
        ([0, 1], "0\n", [1]),  # a gap is no reason to give up
        ([0, 2, 10], None, [0, 2, 10]),
        ([0, 1], "rubbish", [0, 1]),
        ([], None, []),
    ],
)
def test_nodes(tmp_path, nodes, initiators, expected):
    """Sorted by number, with gaps, without nodes that only hold a device."""
    for node in nodes:
        add_node(tmp_path, node)
    if initiators is not None:
        write(tmp_path / "devices/system/node/has_generic_initiator", initiators)

    assert numa_node_ids(tmp_path) == expected
    assert [node.id for node in read_numa_nodes(tmp_path)] == expected


def test_other_names_are_no_nodes(tmp_path):
    """Only node<number> counts."""
    add_node(tmp_path, 0)
    write(tmp_path / "bus/node/devices/nodeX/meminfo", MEMINFO.format(9))
    write(tmp_path / "bus/node/devices/power", "")

    assert numa_node_ids(tmp_path) == [0]


@pytest.mark.parametrize("meminfo", ["", "Node 1 MemTotal: lots kB\n", "\0"])
def test_a_node_without_memory_is_left_out(tmp_path, meminfo):
    """An unreadable node costs only itself."""
    add_node(tmp_path, 0)
    add_node(tmp_path, 1, meminfo)

    nodes = read_numa_nodes(tmp_path)

    assert [(node.id, node.memory.usage) for node in nodes] == [(0, 600 * 1024)]


def test_huge_pages(tmp_path):
    """The worked example; sizes of other architectures count too, broken ones are left out."""
    directory = add_node(tmp_path, 0) / "hugepages"
    for name, pages in {"1048576": "10\n", "2048": "20\n", "64": "1\n", "32": "x"}.items():
        write(directory / f"hugepages-{name}kB/nr_hugepages", pages)
    write(directory / "other/nr_hugepages", "5")

    (node,) = read_numa_nodes(tmp_path)

    assert node.huge_pages == {1048576: 10, 2048: 20, 64: 1}
    assert 1048576 * 1024 * node.huge_pages[1048576] == 10737418240
    assert read_huge_pages(tmp_path / "nowhere") == {}


def test_this_machine():
    """Whatever it is, the usage lies within the total."""
    for node in read_numa_nodes(Path("/sys")):
        assert 0 <= node.memory.usage <= node.memory.total
