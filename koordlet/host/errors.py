"""Errors of kernel files. All are expected in daily life; none stops the daemon."""

import errno
import os
from typing import Self

from koord.util.errors import KoordError

_HINTS = {
    errno.EACCES: "run as root, or give this process the capability CAP_DAC_READ_SEARCH",
    errno.EPERM: "run as root, or give this process the capability that the file asks for",
    errno.EMFILE: "raise LimitNOFILE, or lower the budget of held descriptors",
    errno.ENFILE: "raise the sysctl fs.file-max",
    errno.EISDIR: "check the root directory flags: a file was expected here",
}
_WRITE_HINTS = {
    errno.EINVAL: "it does not fit the limits beside, above or below it, or this kernel's range",
    errno.EBUSY: "groups below it or memory in use prevent it",
    errno.EACCES: "run as root; a cpuset must be within that of the group above",
    errno.EPERM: "run as root, or give this process the capability that the file asks for",
    errno.EROFS: "mount that file system writable: in a pod without readOnly, on a host with rw",
    errno.ENOSPC: "a group with processes needs CPUs",
}
_LACKING = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})
_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.ESRCH})


class KernelFileError(KoordError):
    """A kernel file could not be read, parsed or written."""

    def __init__(self, path: str | os.PathLike[str], *, wanted: str, found: str, hint: str) -> None:
        path = os.fspath(path)
        super().__init__(f"{path}: wanted {wanted}, found {found}; {hint}")
        self.path = path
        self.wanted = wanted
        self.found = found
        self.hint = hint

    @classmethod
    def from_os_error(cls, path: str, err: OSError) -> "KernelFileError":
        """Return the member of this family for what an OSError of a read means."""
        if err.errno in _LACKING:
            return Unsupported.here(path, err.strerror or "no such feature")
        if err.errno in _GONE:
            return _absent(path, err)
        hint = _HINTS.get(err.errno or 0, "look at the kernel log; the file is tried again")
        return cls(path, wanted="to read it", found=err.strerror or repr(err), hint=hint)

    @classmethod
    def from_write_error(
        cls, path: str, err: OSError, wanted: str, detail: str = ""
    ) -> "KernelFileError":
        """Return the member of this family for what an OSError of a write means.

        detail is the kernel's own explanation, where it has one.
        """
        found = (err.strerror or repr(err)) + (f" ({detail})" if detail else "")
        if err.errno in _GONE:
            return Vanished(path, wanted="its cgroup or process", found=found, hint="it has ended")
        hint = _WRITE_HINTS.get(err.errno or 0, "look at the kernel log; it is tried again")
        return cls(path, wanted=wanted, found=found, hint=hint)


class Unsupported(KernelFileError):
    """The kernel lacks this file. Not a failure: the caller goes without."""

    @classmethod
    def here(cls, path: str, found: str, needs: str = "") -> Self:
        """Return the error for a path; needs is the kernel option or version that provides it."""
        hint = f"needs {needs}" if needs else "`koordletctl doctor` shows what provides it"
        return cls(path, wanted="a file of this kernel", found=found, hint=hint)


class Vanished(KernelFileError):
    """The cgroup or process went away. Not a failure: containers end all the time."""


class NoSuchDevice(KernelFileError):
    """The block device of a setting is not there (any more)."""


class Hung(KernelFileError):
    """Reading the file does not return; it is left alone."""


class TooLarge(KernelFileError):
    """The file is larger than any kernel file that koordlet reads."""


def _absent(path: str, err: OSError) -> KernelFileError:
    """A missing file in a directory that is there means: this kernel has no such file."""
    if err.errno == errno.ENOENT and os.path.isdir(os.path.dirname(path)):
        return Unsupported.here(path, "no such file")
    return Vanished(
        path,
        wanted="a living cgroup or process",
        found=err.strerror or "nothing",
        hint="nothing to do: it has ended",
    )
