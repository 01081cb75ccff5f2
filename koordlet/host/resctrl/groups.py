"""Control groups of resctrl: read, made, removed.

When a group is removed the kernel returns its tasks to the default group, and its CLOSID is free.

Source: kernel docs, filesystems/resctrl.
"""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from koordlet.host.errors import KernelFileError, Unsupported
from koordlet.host.files import read_head
from koordlet.host.paths import HostPaths
from koordlet.host.resource import ABSENT, ObjectKey, Root, Text, optional_text

_MAX_STATUS_BYTES = 200  # bytes


def last_status(paths: HostPaths) -> str:
    """Return the kernel's own words about the last command; "": it was accepted, or has none.

    Source: kernel docs, filesystems/resctrl (last_cmd_status).
    """
    try:
        text = read_head(paths.resctrl / "info/last_cmd_status", _MAX_STATUS_BYTES)
    except KernelFileError:
        return ""
    found = " ".join(text.decode("ascii", "replace").split())
    return "" if found == "ok" or not found.isprintable() else found


PRESENT = "present"
RESCTRL_NEEDS = (
    "a CPU with cache or bandwidth allocation, CONFIG_X86_CPU_RESCTRL, and resctrl mounted"
)


def parse_presence(data: bytes) -> str:
    """Return "present" or "absent". Raises ValueError: it is neither."""
    return _presence(data.decode("ascii", "replace").removesuffix("\n"))


def _presence(text: str) -> str:
    if text not in (PRESENT, ABSENT):
        raise ValueError(f"wanted {PRESENT} or {ABSENT}, found {text!r:.40}")
    return text


PRESENCE_TEXT: Text[str] = optional_text(Text(_presence, parse_presence, _presence))


class ResctrlGroupReader:
    """Reads whether a group is there."""

    def __init__(self, paths: HostPaths) -> None:
        self._root = paths.resctrl

    def path(self, name: str) -> str:
        """The directory of a group."""
        return f"{self._root}/{name}" if name else str(self._root)

    def read(self, name: str) -> bytes:
        """Return the state of a control group as a line; raises as ObjectReader.read does."""
        check_mounted(self._root)
        path = self.path(name)
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return f"{ABSENT}\n".encode()
        except OSError as err:
            raise KernelFileError.from_os_error(path, err) from err
        if not stat.S_ISDIR(mode):
            raise KernelFileError(
                path,
                wanted="a control group",
                found="a file of that name",
                hint="give the group another name",
            )
        return f"{PRESENT}\n".encode()


def check_mounted(root: Path) -> None:
    """Raise Unsupported unless resctrl is mounted there."""
    if not os.path.exists(root / "schemata"):
        raise Unsupported.here(str(root), "that resctrl is not mounted", RESCTRL_NEEDS)


GROUP_MODE = 0o755
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_HINTS = {
    errno.ENOSPC: "each group takes a CLOSID, of which a CPU has few (info/*/num_closids); "
    "remove groups, or have fewer pods with one of their own",
    errno.EBUSY: "the kernel works on resctrl; it is tried again",
}


class ResctrlGroupWriter:
    """The ObjectWriter of resctrl control groups; see koordlet.host.object_writers."""

    def __init__(self, paths: HostPaths) -> None:
        self._paths = paths
        self._root = str(paths.resctrl)

    def identity(self, key: ObjectKey) -> int:
        """Return the inode of the mount, as the group comes and goes."""
        return os.stat(self._root).st_ino

    def write(self, key: ObjectKey, identity: int, content: str) -> None:
        """Make or remove a control group; raises as ObjectWriter.write does."""
        name = key.target.place
        directory = os.open(self._root, _DIRECTORY)
        try:
            if os.fstat(directory).st_ino != identity:
                raise FileNotFoundError(errno.ENOENT, "resctrl was mounted anew")
            self._paths.check_directory(directory, Root.RESCTRL, self._root)
            if content == ABSENT:
                with suppress(FileNotFoundError):  # absent is what was wanted
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
        os.mkdir(name, GROUP_MODE, dir_fd=directory)

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
