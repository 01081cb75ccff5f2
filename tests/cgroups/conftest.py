"""A cgroup tree of our own on a real kernel.

The tests here do not care which cgroup version the kernel has; those in v2 do.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koordlet.host.files import Descriptors
from koordlet.host.host import Host
from tests.support.node.cgroup_trees import (
    MIB,
    REAL,
    VERSION,
    Group,
    Process,
    Tree,
    burn,
    enable_controllers,
    make_group,
    touch,
    tree_of,
    unusable,
)

__all__ = [
    "MIB",
    "REAL",
    "VERSION",
    "Group",
    "Process",
    "Tree",
    "burn",
    "enable_controllers",
    "make_group",
    "touch",
]

_REASON = unusable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark every test below this folder; skip it where the kernel has the other version."""
    item.add_marker("root")
    wanted = 2 if item.path.parent.name == "v2" else VERSION
    item.add_marker(f"cgroup_v{wanted}")
    reason = _REASON or (f"needs a cgroup v{wanted} kernel" if wanted != VERSION else "")
    if reason:
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def _root_controllers() -> Iterator[None]:
    """Leave the real root of v2 as it was."""
    control = REAL.cgroup / "cgroup.subtree_control"
    before = control.read_text().split() if VERSION == 2 else []
    yield
    if VERSION == 2:
        for name in set(control.read_text().split()).difference(before):
            control.write_text(f"-{name}")


@pytest.fixture
def tree(tmp_path: Path, _root_controllers: None) -> Iterator[Tree]:
    """A cgroup root of our own, empty."""
    with tree_of(tmp_path / "cgroup") as tree:
        yield tree


@pytest.fixture
def make_host(tree: Tree) -> Iterator[Callable[[], Host]]:
    """Makes a Host on the tree as it is then."""
    hosts: list[Host] = []

    def make() -> Host:
        hosts.append(Host(tree.paths, Descriptors()))
        return hosts[-1]

    yield make
    for host in hosts:
        host.descriptors.close()
