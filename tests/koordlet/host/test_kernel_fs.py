"""Open files that count as the kernel's."""

import os

import pytest

from koordlet.host.errors import KernelFileError
from koordlet.host.paths import HostPaths, check_kernel_file, file_system_type
from koordlet.host.resource import Root

FILES = [
    (Root.PROC, "/proc/sys/vm/min_free_kbytes"),
    (Root.PROC, "/proc/self/oom_score_adj"),
    (Root.SYS, "/sys/kernel/uevent_seqnum"),
    (Root.CGROUP, "/sys/fs/cgroup/cpu/cgroup.procs"),
    (Root.CGROUP, "/sys/fs/cgroup/cgroup.procs"),
]
KERNEL = [(root, path) for root, path in FILES if os.path.exists(path)]


@pytest.fixture
def opened():
    """Opens files, and closes them."""
    held = []

    def open_file(path, flags=os.O_RDONLY):
        held.append(os.open(path, flags))
        return held[-1]

    yield open_file
    for descriptor in held:
        os.close(descriptor)


@pytest.mark.parametrize(("root", "path"), KERNEL)
def test_the_kernels_own_files_are_its_own(opened, root, path):
    """Each for its root, and for no other."""
    descriptor = opened(path)

    check_kernel_file(descriptor, root, path)

    for other in set(Root) - {root}:
        with pytest.raises(KernelFileError, match=f"{path}: wanted a kernel file"):
            check_kernel_file(descriptor, other, path)


@pytest.mark.parametrize("root", Root)
def test_a_plain_file_is_not(opened, tmp_path, root):
    """Wherever it is, and by its name."""
    path = tmp_path / "cpu.shares"
    path.write_text("5")

    with pytest.raises(KernelFileError, match=r"cpu\.shares: .* one on a file system of type 0x"):
        check_kernel_file(opened(path), root, str(path))


def test_neither_is_a_directory_or_device(opened):
    with pytest.raises(KernelFileError, match="something else than a file"):
        check_kernel_file(opened("/proc"), Root.PROC, "/proc")
    with pytest.raises(KernelFileError, match="something else than a file"):
        check_kernel_file(opened("/dev/null"), Root.PROC, "/dev/null")


def test_the_type_is_that_of_linux_magic():
    """Of a file system that every test host has."""
    descriptor = os.open("/proc", os.O_RDONLY)
    assert file_system_type(descriptor) == 0x9FA0
    os.close(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        file_system_type(descriptor)


def test_only_a_host_that_code_has_laid_out_is_not_checked(opened, tmp_path):
    """No agent mode and no flag does that."""
    path = tmp_path / "cpu.shares"
    path.write_text("5")
    descriptor = opened(path)

    HostPaths.below(tmp_path).check(descriptor, Root.CGROUP, str(path))

    for mode in ("hostMode", "dsMode", ""):
        with pytest.raises(KernelFileError, match="wanted a kernel file"):
            HostPaths.for_mode(mode).check(descriptor, Root.CGROUP, str(path))
