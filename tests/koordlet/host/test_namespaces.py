"""The namespaces that are shared with the node, on directories and on this machine."""

import os
from pathlib import Path

import pytest

from koordlet.host.errors import KernelFileError, Vanished
from koordlet.host.processes import network_namespace, node_network_process, sees_host_pids


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def container(tmp_path):
    """The /proc of a process with its own pid and network namespace."""
    write(tmp_path / "self/ns/pid")
    write(tmp_path / "self/cgroup", "0::/kubepods/pod1/c1\n")
    write(tmp_path / "self/net/dev")
    write(tmp_path / "1/cgroup", "0::/kubepods/pod1/c1\n")
    write(tmp_path / "1/net/dev")
    return tmp_path


def test_this_machine():
    """The tests run where pid 1 and its network are those of the machine, or say so."""
    proc = Path("/proc")

    if sees_host_pids(proc):
        assert node_network_process(proc) in {"self", "1"}
    assert network_namespace(proc, os.getpid()) == network_namespace(proc, "self")


def test_a_container_of_its_own(container):
    """Pid 1 is the container's own: its network must not pass for the node's."""
    assert not sees_host_pids(container)
    assert node_network_process(container) is None


def test_a_node_that_is_a_container_itself(container):
    """As in kind: pid 1 lives in another cgroup than we do."""
    write(container / "1/cgroup", "0::/init.scope\n")

    assert sees_host_pids(container)
    assert node_network_process(container) == "1"


def test_host_pids_and_host_network(container):
    """One net/dev for both: the namespace is shared."""
    write(container / "1/cgroup", "0::/init.scope\n")
    (container / "1/net/dev").unlink()
    (container / "1/net/dev").hardlink_to(container / "self/net/dev")

    assert node_network_process(container) == "self"


def test_host_network_without_host_pids(container):
    """The kernel shows some settings to the initial network namespace only."""
    write(container / "sys/net/core/netdev_max_backlog", "1000\n")

    assert node_network_process(container) == "self"


def test_a_mounted_proc_of_the_host(container):
    """It does not know us, so its pid 1 is another process."""
    (container / "self/ns/pid").unlink()
    (container / "self/net/dev").unlink()

    assert sees_host_pids(container)
    assert node_network_process(container) == "1"


def test_an_empty_proc(tmp_path):
    """Nothing is claimed without evidence."""
    assert not sees_host_pids(tmp_path)
    assert node_network_process(tmp_path) is None


def test_an_unreadable_cgroup_file(container):
    """Doubt counts as no."""
    (container / "1/cgroup").unlink()

    assert not sees_host_pids(container)


def test_a_process_that_has_ended(tmp_path):
    """The error says that the process is gone."""
    with pytest.raises(Vanished):
        network_namespace(tmp_path, 4711)
    with pytest.raises(KernelFileError, match="4711"):
        network_namespace(tmp_path, 4711)
