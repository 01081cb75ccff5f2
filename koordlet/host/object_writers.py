"""Writers of kernel objects that are not files. An import contract keeps them for the executor."""

from collections.abc import Callable
from importlib import import_module
from typing import Protocol

from koordlet.host.paths import HostPaths
from koordlet.host.resource import ObjectKey, ObjectKind


class ObjectWriter(Protocol):
    """Sets the objects of one kind. For one thread, that of the writer."""

    def identity(self, key: ObjectKey) -> int:
        """Return a number that tells apart two objects of one name, one after the other.

        For example the number of an inode or a network interface; 0 where the target tells them
        apart, or nothing does. It must not change when the value becomes absent, or is made.

        Raises:
            OSError: ENOENT, ENODEV or ESRCH mean that the target has ended.
        """

    def write(self, key: ObjectKey, identity: int, content: str) -> None:
        """Set the content: what the row's Text makes of the text; ABSENT: delete the object.

        Either all of it is in force on return, or what was there before. It is read back after.

        Raises:
            OSError: the kernel refuses; ENOENT, ENODEV or ESRCH: the target has ended, or what is
                there has another identity.
            KernelFileError: the same, with words of its own.
        """


MakeWriter = Callable[[HostPaths], ObjectWriter]


def make_writer(kind: ObjectKind, paths: HostPaths) -> ObjectWriter:
    """Return the writer of the objects of a kind, which is not read only."""
    make: MakeWriter = getattr(import_module(kind.module), kind.writer)
    return make(paths)
