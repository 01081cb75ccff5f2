"""The control groups of resctrl: directories right below its root.

Source: kernel docs, filesystems/resctrl.
"""

import os
import stat
from pathlib import Path

from koordlet.host.errors import KernelFileError, Unsupported
from koordlet.host.kerneltext import ABSENT, Text, or_absent
from koordlet.host.paths import HostPaths

PRESENT = "present"
NEEDS = "a CPU with cache or bandwidth allocation, CONFIG_X86_CPU_RESCTRL, and resctrl mounted"


def parse_presence(data: bytes) -> str:
    """Return "present" or "absent". Raises ValueError: it is neither."""
    return _presence(data.decode("ascii", "replace").removesuffix("\n"))


def _presence(text: str) -> str:
    if text not in (PRESENT, ABSENT):
        raise ValueError(f"wanted {PRESENT} or {ABSENT}, found {text!r:.40}")
    return text


PRESENCE: Text[str] = or_absent(Text(_presence, parse_presence, _presence))


class GroupReader:
    """Reads whether a group is there."""

    def __init__(self, paths: HostPaths) -> None:
        self._root = paths.resctrl

    def path(self, name: str) -> str:
        """The directory of a group."""
        return f"{self._root}/{name}" if name else str(self._root)

    def read(self, name: str) -> bytes:
        """As ObjectReader.read."""
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
        raise Unsupported.here(str(root), "that resctrl is not mounted", NEEDS)


def reader(paths: HostPaths) -> GroupReader:
    """As koordlet.host.objects wants it."""
    return GroupReader(paths)
