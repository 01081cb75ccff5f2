"""One kernel value at a time: what is written when the kernel does not take it back."""

import errno
import os

import pytest

from koordlet.executor.claims.claim import Key, Target
from koordlet.executor.kernel.values import KernelValues
from koordlet.host.errors import KernelFileError
from koordlet.host.files import Descriptors
from koordlet.host.host import Host
from koordlet.host.resource import Level
from koordlet.host.resources import CPU_SHARES, CPUSET_CPUS_WANTED
from koordlet.plugin.testing import FakeHost

GROUP = "kubepods/burstable"


def fill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the kernel be as soon as there are processes: nothing can be emptied."""
    write = os.write

    def refusing(fd: int, data: bytes) -> int:
        if data == b"\n":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    monkeypatch.setattr("koordlet.executor.kernel.values.os.write", refusing)


def test_no_cpus_of_its_own_become_all_cpus_where_there_are_processes(
    tmp_path, monkeypatch
) -> None:
    """A group that was pinned must not stay so because the kernel does not let it ask for none."""
    host = FakeHost(tmp_path, 2, cpus=4)
    group = host.group(GROUP)
    group.write("cpuset.cpus", "0\n")
    values, key = KernelValues(Host(host.paths, Descriptors(0))), _key(CPUSET_CPUS_WANTED)
    fill(monkeypatch)

    found = values.write(key, values.read(key).inode, "")

    assert (found, group.read("cpuset.cpus")) == ("0-3", "0-3")


def test_other_values_are_not_guessed(tmp_path, monkeypatch) -> None:
    """Whatever the kernel has against them."""
    host = FakeHost(tmp_path, 2)

    def refusing(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("koordlet.executor.kernel.values.os.write", refusing)
    values, key = KernelValues(Host(host.paths, Descriptors(0))), _key(CPU_SHARES)
    inode = values.read(key).inode

    with pytest.raises(KernelFileError, match="to write '50'"):
        values.write(key, inode, "50")


def _key(resource) -> Key:
    return Key(Target(Level.POD, GROUP), resource)
