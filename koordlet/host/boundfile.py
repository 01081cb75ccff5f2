"""One kernel file of one group: its path, how it is read, and how its text is parsed."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from koordlet.host.errors import KernelFileError, Unsupported, Vanished
from koordlet.host.resource import File, Resource

T = TypeVar("T")


class BoundFile(Generic[T]):
    """A resource, bound to the file that this host has for one group.

    A text that is the same as the last one is not parsed again, so two readings may share one
    value: it must not be changed. For the thread that reads the host.
    """

    __slots__ = ("_explain", "_known", "_parse", "_read", "_value", "group", "path", "resource")

    def __init__(
        self,
        resource: Resource[T],
        group: str,
        path: str,
        file: File[T],
        read: Callable[[], bytes],
        explain: Callable[["BoundFile[Any]", KernelFileError], KernelFileError],
    ) -> None:
        """explain returns what it means for the group that the file is missing."""
        self.resource = resource
        self.group = group
        self.path = path
        self._parse = file.parse
        self._read = read
        self._explain = explain
        self._known: bytes | None = None  # the text that was parsed last
        self._value: T

    def read(self) -> T:
        """Return the value, read now.

        Raises:
            Unsupported: this kernel or cgroup version does not have it.
            Vanished: the group or process has ended.
            KernelFileError: it cannot be read or is malformed.
        """
        return self.parse(self.text())

    def text(self) -> bytes:
        """Return the text now in the file. Raises what read does, but for malformed text."""
        try:
            return self._read()
        except (Unsupported, Vanished) as err:
            raise self._explain(self, err) from err

    def parse(self, text: bytes) -> T:
        """Return the value in a text of the file.

        Raises:
            KernelFileError: the text is not what the kernel writes.
        """
        if text == self._known:
            return self._value
        try:
            self._value = self._parse(text)
        except ValueError as err:
            self._known = None
            raise KernelFileError(
                self.path,
                wanted=f"{self.resource.name} ({self.resource.unit})",
                found=f"unusable text: {err}",
                hint="it is tried again; if it stays, report it with the kernel's version",
            ) from err
        self._known = text
        return self._value
