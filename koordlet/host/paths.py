"""Mount points of the kernel's file systems, and checks of files below them.

Checks: an open file is the kernel's own (type of its file system); only root can replace a mount
source or a socket.
"""

import ctypes
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from koord.util.errors import UnsafeFile
from koordlet.host.errors import KernelFileError
from koordlet.host.processes import is_trusted
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
    """Check that a file or directory is on its root's file system; raises as check_kernel_file."""
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


HOST_MODE = "hostMode"


@dataclass(frozen=True, slots=True)
class HostPaths:
    """Root directories of the host. All other paths are made from these.

    Source: Koordinator's `agent_mode` and its `--*-root-dir` flags.
    """

    cgroup: Path
    proc: Path  # of the host's pid namespace: the pod runs with hostPID
    sys: Path
    sysfs: Path  # <sys>/fs, where resctrl is mounted
    var_run: Path
    kubelet: Path
    root: Path  # the node's own; in a container what the component hami mounts of it
    # Plain files replace those of the kernel: for tests. Set in code only, by no flag and no
    # environment variable: with it, what is written to is not checked.
    laid_out: bool = False

    @classmethod
    def for_mode(cls, mode: str) -> "HostPaths":
        """Return the default roots of an agent mode: the host's own for exactly "hostMode".

        Anything else means the mounts of Koordinator's DaemonSet ("dsMode").
        """
        return _HOST if mode == HOST_MODE else _CONTAINER

    @classmethod
    def below(cls, root: Path) -> "HostPaths":
        """Return the roots of a whole host laid out under one directory, for tests and replays."""
        return cls(
            cgroup=root / "cgroup",
            proc=root / "proc",
            sys=root / "sys",
            sysfs=root / "sys" / "fs",
            var_run=root / "run",
            kubelet=root / "kubelet",
            root=root / "root",
            laid_out=True,
        )

    @property
    def resctrl(self) -> Path:
        """The mount point of resctrl, if it is mounted."""
        return self.sysfs / "resctrl"

    def check(self, descriptor: int, root: Root, path: str) -> None:
        """See that an open file is the kernel's, before it is written.

        Raises:
            KernelFileError: it is not; path is for the message.
            OSError: the kernel does not say.
        """
        if not self.laid_out:
            check_kernel_file(descriptor, root, path)

    def check_directory(self, descriptor: int, root: Root, path: str) -> None:
        """Check a directory in which an entry is made or removed. Raises as check does."""
        if not self.laid_out:
            check_file_system(descriptor, root, path)


_KUBELET = Path("/var/lib/kubelet")
_CONTAINER = HostPaths(
    cgroup=Path("/host-cgroup"),
    proc=Path("/proc"),
    sys=Path("/host-sys"),
    sysfs=Path("/host-sys-fs"),
    var_run=Path("/host-var-run"),
    kubelet=_KUBELET,
    root=Path("/host-root"),
)
_HOST = HostPaths(
    cgroup=Path("/sys/fs/cgroup"),
    proc=Path("/proc"),
    sys=Path("/sys"),
    sysfs=Path("/sys/fs"),
    var_run=Path("/var/run"),
    kubelet=_KUBELET,
    root=Path("/"),
)

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check_mount_source(root: Path, path: str) -> None:
    """See that only root, or this process's user, can replace what is at an absolute path.

    root: the node's root directory. A directory itself may be open to all.

    Raises:
        UnsafeFile: a part is a link, or another user can replace it; or a file can be written.
        OSError: there is none.
    """
    parts = path.strip("/").split("/")
    if {"", ".", ".."} & set(parts):
        raise UnsafeFile(Path(path), "a path with empty parts or dots", "write it without")
    at = root
    for depth, part in enumerate(parts, start=1):
        at /= part
        found = os.lstat(at)
        if not (stat.S_ISDIR(found.st_mode) or (stat.S_ISREG(found.st_mode) and depth > 1)):
            raise UnsafeFile(at, "no plain file or directory", "remove it")
        if not is_trusted(found.st_uid):
            raise UnsafeFile(at, f"user {found.st_uid} as its owner", "remove it")
        is_open = found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX
        if is_open and (depth < len(parts) or stat.S_ISREG(found.st_mode)):
            raise UnsafeFile(at, "that others may write it", "chmod go-w")


def check_socket(path: Path) -> None:
    """See that only root, or this process's user, can have made the socket.

    Raises:
        FileNotFoundError: there is none.
        UnsafeFile: it is another user's, or no socket.
        OSError: it cannot be looked at.
    """
    found = os.lstat(path)
    if not stat.S_ISSOCK(found.st_mode):
        raise UnsafeFile(path, "no socket", "remove it")
    if not is_trusted(found.st_uid):
        raise UnsafeFile(path, f"user {found.st_uid} as its owner", "remove it")
