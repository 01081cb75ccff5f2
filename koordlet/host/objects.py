"""Kernel objects that are not files, by kind: their readers and writers.

Claims, plans, journal, dry-run, explain, conflicts and restore know values as texts only, so they
work for all kinds. The module of a kind is imported when its first value is read or set.

A journal may be hostile: a place is checked by its level's rule, an original by `File.may_restore`.
What passes both is all that a writer is ever asked to set in a restore.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Protocol

from koordlet.host.paths import HostPaths
from koordlet.host.resource import ObjectKey, Root


class ObjectReader(Protocol):
    """Reads the objects of one kind. For one thread."""

    def path(self, name: str) -> str:
        """Return what messages call the object, and which file system it is on, if on any."""

    def read(self, name: str) -> bytes:
        """Return the object's present state, as a line or more; b"absent\\n" for no object.

        name is what a target calls it: its place.

        Raises:
            Unsupported: this kernel has no such objects, or they are not mounted.
            Vanished: what it is part of has ended: the process, the network interface.
            KernelFileError: it cannot be read.
        """


MakeReader = Callable[[HostPaths], ObjectReader]

_READERS: Mapping[Root, tuple[str, str]] = {
    Root.RESCTRL_GROUP: ("koordlet.host.resctrl.groups", "ResctrlGroupReader"),
    Root.RESCTRL_TASKS: ("koordlet.host.resctrl.tasks", "ResctrlTaskReader"),
    Root.COOKIE: ("koordlet.host.cpu_scheduler", "CookieReader"),
    Root.TRAFFIC: ("koordlet.host.net.tc.objects", "TrafficReader"),
    Root.INTERFACE: ("koordlet.host.net.tc.objects", "VethPeerReader"),
    Root.SOCKET_GROUP: ("koordlet.host.net.tc.objects", "SocketCgroupReader"),
    Root.TERWAY: ("koordlet.host.terway_files", "TerwayFileReader"),
}


def make_reader(root: Root, paths: HostPaths) -> ObjectReader:
    """Return the reader of the objects of a kind."""
    module, name = _READERS[root]
    make: MakeReader = getattr(import_module(module), name)
    return make(paths)


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

_WRITERS: Mapping[Root, tuple[str, str]] = {
    Root.RESCTRL_GROUP: ("koordlet.host.resctrl.groups", "ResctrlGroupWriter"),
    Root.RESCTRL_TASKS: ("koordlet.host.resctrl.tasks", "ResctrlTaskWriter"),
    Root.COOKIE: ("koordlet.host.cpu_scheduler", "CookieWriter"),
    Root.TRAFFIC: ("koordlet.host.net.tc.objects", "TrafficWriter"),
    Root.TERWAY: ("koordlet.host.terway_files", "TerwayFileWriter"),
}


def make_writer(root: Root, paths: HostPaths) -> ObjectWriter:
    """Return the writer of the objects of a kind; its module is imported now, and not before."""
    module, name = _WRITERS[root]
    make: MakeWriter = getattr(import_module(module), name)
    return make(paths)
