"""Checks that an open file is one of the kernel's own, by the type of its file system.

fstatfs asks the descriptor itself, so nothing can be swapped between the look and the write,
and a bind mount (/host-cgroup in a pod) has the type of what is mounted there. Device numbers from
mountinfo would give the same, but of another moment; os.fstatvfs leaves the type out.
"""

import ctypes
import os
import stat

from koordlet.host.errors import KernelFileError
from koordlet.host.resource import Root

# Source: linux/magic.h.
_TYPES = {
    Root.CGROUP: {0x27E0EB: "cgroup", 0x63677270: "cgroup2"},
    Root.PROC: {0x9FA0: "proc"},
    Root.SYS: {0x62656572: "sysfs", 0x64626720: "debugfs"},
    Root.RESCTRL: {0x7655821: "resctrl"},
}
_BYTES = 256  # of a buffer that every layout of struct statfs fits in; the type comes first
_WORD = ctypes.c_uint if os.uname().machine == "s390x" else ctypes.c_long

_libc = ctypes.CDLL(None, use_errno=True)


def file_system_type(descriptor: int) -> int:
    """Return the number of the type of the file system of an open file. Raises OSError."""
    buffer = ctypes.create_string_buffer(_BYTES)
    if _libc.fstatfs(descriptor, buffer):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return _WORD.from_buffer(buffer).value & 0xFFFFFFFF


def check_kernel_file(descriptor: int, root: Root, path: str) -> None:
    """See that an open file is a kernel file of the kind that belongs to a root.

    Raises:
        KernelFileError: it is not; path is for the message.
        OSError: fstatfs failed.
    """
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise _not_the_kernels(path, root, "something else than a file")
    check_file_system(descriptor, root, path)


def check_file_system(descriptor: int, root: Root, path: str) -> None:
    """As check_kernel_file, for a file or directory."""
    found = file_system_type(descriptor)
    if found not in _TYPES.get(root, ()):  # of objects none is
        raise _not_the_kernels(path, root, f"one on a file system of type {found:#x}")


def _not_the_kernels(path: str, root: Root, found: str) -> KernelFileError:
    return KernelFileError(
        path,
        wanted=f"a kernel file ({' or '.join(_TYPES.get(root, {}).values())})",
        found=found,
        hint="it is left as it is; check the root directory flags, and the origin of the journal",
    )
