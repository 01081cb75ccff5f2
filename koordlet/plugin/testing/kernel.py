"""Emulates files that take one line about one device, or show more than was written."""

from pathlib import Path
from typing import Any

from koordlet.executor.claims.claim import Key
from koordlet.executor.kernel.kernelvalues import KernelValues
from koordlet.host.kerneltext import Text
from koordlet.host.resource import Root
from koordlet.plugin.testing.resctrl import write_schemata


class FakeKernelValues(KernelValues):
    """Writes the files of a directory as a kernel would have them afterwards.

    Where a write is about one device the lines of the others stay.
    """

    def _write(self, place: Any, key: Key, inode: int, content: bytes) -> None:
        if self._host.file(key.resource).root is Root.RESCTRL and self._host.paths.laid_out:
            line = content.decode().rstrip("\n")
            text = write_schemata(self._host.paths.resctrl, Path(place.directory), line)
            super()._write(place, key, inode, text.encode())
            return
        if not place.text.by_line or not self._host.paths.laid_out:  # a real kernel knows itself
            super()._write(place, key, inode, content)
            return
        line = content.decode().rstrip("\n")
        device = line.partition(" ")[0]
        file = self._host.file(key.resource)
        before = self._host.bind(key.resource, key.target.place).text().decode().splitlines()
        lines = [each for each in before if each.partition(" ")[0] != device]
        if file.text is not None and _is_shown(file.text, content):  # else the device goes
            lines.insert(0, line)
        text = "".join(f"{each}\n" for each in lines)
        super()._write(place, key, inode, text.encode())


def _is_shown(text: Text[Any], content: bytes) -> bool:
    """Whether a line says more than that the device has no setting: 0, "max" or "default"."""
    try:
        return bool(text.shown(content))
    except ValueError:
        return False
