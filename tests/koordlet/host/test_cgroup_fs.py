"""Detection of cgroup versions, per controller."""

import pytest

from koordlet.host.cgroups.tree import CgroupFs


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cgroup"


def make(root, *directories, controllers=None):
    """Make hierarchies, and a unified one when controllers are given."""
    for directory in directories:
        (root / directory).mkdir(parents=True)
    for where, names in (controllers or {}).items():
        (root / where).mkdir(parents=True, exist_ok=True)
        (root / where / "cgroup.controllers").write_text(names + "\n")
    return CgroupFs(root)


def test_v2_when_the_root_is_the_unified_hierarchy(root):
    """Then every controller is on v2, and all groups lie in one tree."""
    fs = make(root, controllers={"": "cpu memory"})

    assert (fs.flavour, fs.version("cpu"), fs.version("blkio")) == ("v2", 2, 2)
    assert fs.hierarchy("cpu", 2) == root
    assert fs.controllers() == {"cpu": 2, "memory": 2}
    assert fs.hierarchies() == [root]


def test_v1_has_a_hierarchy_per_controller(root):
    """A controller that is not mounted is taken for v1, where reading it will fail clearly."""
    fs = make(root, "cpu", "memory")

    assert (fs.flavour, fs.version("cpu"), fs.version("blkio")) == ("v1", 1, 1)
    assert fs.hierarchy("cpu", 1) == root / "cpu"
    assert fs.hierarchy("blkio", 1) == root / "blkio"
    assert fs.hierarchies() == [root / "cpu", root / "memory"]


def test_controllers_mounted_together_need_no_links(root):
    """Some distributions mount "cpu,cpuacct" and do not link the single names."""
    fs = make(root, "cpu,cpuacct", "memory")

    assert fs.hierarchy("cpuacct", 1) == root / "cpu,cpuacct"


def test_hybrid_is_decided_per_controller(root):
    """A controller can be moved to the unified hierarchy while the others stay."""
    fs = make(root, "cpu", "cpuset", controllers={"unified": "memory io"})

    assert fs.flavour == "hybrid"
    assert [fs.version(name) for name in ("cpu", "cpuset", "memory", "blkio", "")] == [
        1,
        1,
        2,
        1,
        2,
    ]
    assert fs.hierarchy("memory", 2) == root / "unified"
    assert fs.controllers() == {"cpu": 1, "cpuset": 1, "memory": 2, "io": 2}


@pytest.mark.parametrize("exists", [True, False])
def test_an_empty_or_missing_root_is_v1(root, exists):
    """Nothing is mounted: every read fails with its path, detection does not."""
    if exists:
        root.mkdir()

    fs = CgroupFs(root)

    assert (fs.flavour, fs.version("cpu"), fs.controllers()) == ("v1", 1, {})


def test_a_binary_controllers_file_is_no_controllers(root):
    """Garbage does not stop the daemon."""
    (root / "unified").mkdir(parents=True)
    (root / "unified" / "cgroup.controllers").write_bytes(b"\xff\xfe")

    assert CgroupFs(root).controllers() == {}
