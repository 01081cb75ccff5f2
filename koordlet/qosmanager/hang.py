"""Records on disk the plugin whose step runs, for the process after one that was ended.

Two files in the run directory: `plugin-step` is mapped into memory and holds the boot id and the
name of the plugin whose step runs; `plugin-hang` is what faulthandler writes to.
"""

import mmap
import os
from dataclasses import dataclass
from typing import IO

from koord.util.logs import get_logger
from koord.util.owneddir import OwnedDirectory, OwnedPath

_BOOT_ID = 36  # bytes at the start of the step file, then one byte length and the name
_NAME = 200  # longest name, in bytes
_SIZE = _BOOT_ID + 1 + _NAME
_LIMIT = 64 * 1024  # bytes of either file that are read back
_AFRESH = os.O_RDWR | os.O_CREAT | os.O_TRUNC

log = get_logger("koordlet.qosmanager")


@dataclass(frozen=True, slots=True)
class Hang:
    """End of the previous process inside a step of that plugin (empty: unknown)."""

    plugin: str
    stacks: str


class HangRecord:
    """Record of the running step; costs no system call per step."""

    def __init__(self, directory: OwnedDirectory | None, boot_id: str) -> None:
        """Start afresh; read what is there with `previous_hang` first. None: keep no record."""
        self.stacks: IO[bytes]
        if directory is None:
            self._map = mmap.mmap(-1, _SIZE)
            self.stacks = open(os.memfd_create("plugin-hang"), "wb")  # noqa: SIM115 - see close
        else:
            step, stacks = _files(directory)
            with open(step.open(_AFRESH), "r+b") as file:
                file.write(boot_id.encode().ljust(_SIZE, b"\0"))
                file.flush()
                self._map = mmap.mmap(file.fileno(), _SIZE)
            self.stacks = open(stacks.open(_AFRESH), "wb")  # noqa: SIM115 - see close
        self._notes: dict[str, bytes] = {}

    @classmethod
    def open(cls, directory: OwnedDirectory | None, boot_id: str) -> "HangRecord":
        """A record in the directory, or one for this process only where that cannot be written."""
        try:
            return cls(directory, boot_id)
        except OSError as err:
            log.warning("hang_record.not_kept", path=str(directory), error=str(err))
            return cls(None, boot_id)

    def begin(self, plugin: str) -> None:
        """Note that a step of that plugin runs."""
        note = self._notes.get(plugin)
        if note is None:
            name = plugin.encode()[:_NAME]
            note = self._notes[plugin] = bytes([len(name)]) + name
        self._map[_BOOT_ID : _BOOT_ID + len(note)] = note

    def end(self) -> None:
        """Note that no plugin runs."""
        self._map[_BOOT_ID] = 0

    def close(self) -> None:
        self._map.close()
        self.stacks.close()


def previous_hang(directory: OwnedDirectory, boot_id: str) -> Hang | None:
    """Return the hang of the process before this one; None: none, or the machine rebooted since."""
    step, stacks = _files(directory)
    try:
        text, noted = _head(stacks).decode(errors="replace"), _head(step)
    except FileNotFoundError:
        return None
    except OSError as err:
        log.warning("hang_record.unreadable", path=str(directory), error=str(err))
        return None
    if not text or len(noted) != _SIZE or noted[:_BOOT_ID].rstrip(b"\0") != boot_id.encode():
        return None
    name = noted[_BOOT_ID + 1 : _BOOT_ID + 1 + noted[_BOOT_ID]]
    return Hang(name.decode(errors="replace"), text)


def _files(directory: OwnedDirectory) -> tuple[OwnedPath, OwnedPath]:
    return directory / "plugin-step", directory / "plugin-hang"


def _head(file: OwnedPath) -> bytes:
    """The first bytes of a file. Raises OSError."""
    with open(file.open(os.O_RDONLY), "rb") as opened:
        return opened.read(_LIMIT)
