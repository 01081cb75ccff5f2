"""Makes and removes control groups of resctrl.

When a group is removed the kernel returns its tasks to the default group, and its CLOSID is free.
"""

import errno
import os
from contextlib import suppress

from koordlet.executor.claims.claim import Key
from koordlet.host.errors import KernelFileError
from koordlet.host.host import Host
from koordlet.host.kerneltext import ABSENT
from koordlet.host.resctrl.status import last_status
from koordlet.host.resource import Root

MODE = 0o755
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HINTS = {
    errno.ENOSPC: "each group takes a CLOSID, of which a CPU has few (info/*/num_closids); "
    "remove groups, or have fewer pods with one of their own",
    errno.EBUSY: "the kernel works on resctrl; it is tried again",
}


class ResctrlGroups:
    """A Medium; see koordlet.executor.kernel.media."""

    def __init__(self, host: Host) -> None:
        self._paths = host.paths
        self._root = str(host.paths.resctrl)

    def identity(self, key: Key) -> int:
        """That of the mount, as the group comes and goes."""
        return os.stat(self._root).st_ino

    def write(self, key: Key, identity: int, content: str) -> None:
        """As Medium.write."""
        name = key.target.place
        directory = os.open(self._root, _DIRECTORY)
        try:
            if os.fstat(directory).st_ino != identity:
                raise FileNotFoundError(errno.ENOENT, "resctrl was mounted anew")
            self._paths.check_directory(directory, Root.RESCTRL, self._root)
            if content == ABSENT:
                with suppress(FileNotFoundError):
                    self.remove(directory, name)
            else:
                with suppress(FileExistsError):
                    self.make(directory, name)
        except OSError as err:
            if err.errno in _HINTS:
                raise self._refused(name, err) from err
            raise
        finally:
            os.close(directory)

    def make(self, directory: int, name: str) -> None:
        """Make a group. Raises OSError."""
        os.mkdir(name, MODE, dir_fd=directory)

    def remove(self, directory: int, name: str) -> None:
        """Remove a group. Raises OSError."""
        os.rmdir(name, dir_fd=directory)

    def _refused(self, name: str, err: OSError) -> KernelFileError:
        detail = last_status(self._paths)
        found = f"{err.strerror}{f' ({detail})' if detail else ''}"
        return KernelFileError(
            f"{self._root}/{name}",
            wanted="another control group",
            found=found,
            hint=_HINTS[err.errno or 0],
        )


def medium(host: Host) -> ResctrlGroups:
    """As koordlet.executor.kernel.media wants it."""
    return ResctrlGroups(host)
