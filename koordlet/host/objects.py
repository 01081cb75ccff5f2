"""Reads objects of the kernel that are no files, by kind.

A kind is a member of Root, and a module with the function `reader`. It is imported when the first
value of that kind is read: what nobody uses costs nothing.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Protocol

from koordlet.host.paths import HostPaths
from koordlet.host.resource import Root


class ObjectReader(Protocol):
    """Reads the objects of one kind. For one thread."""

    def path(self, name: str) -> str:
        """Return what messages call the object, and which file system it is on, if on any."""

    def read(self, name: str) -> bytes:
        """Return what is there now, as a line or more; b"absent\\n" for nothing.

        name is what a target calls it: its place.

        Raises:
            Unsupported: this kernel has no such objects, or they are not mounted.
            Vanished: what it is part of has ended: the process, the network interface.
            KernelFileError: it cannot be read.
        """


MakeReader = Callable[[HostPaths], ObjectReader]

_MODULES: Mapping[Root, str] = {
    Root.RESCTRL_GROUP: "koordlet.host.resctrl.groups",
    Root.RESCTRL_TASKS: "koordlet.host.resctrl.tasks",
    Root.COOKIE: "koordlet.host.proc.cookies",
    Root.TRAFFIC: "koordlet.host.net.tc.node",
    Root.INTERFACE: "koordlet.host.net.tc.ends",
    Root.SOCKET_GROUP: "koordlet.host.net.tc.socketgroups",
    Root.TERWAY: "koordlet.host.terwayfiles",
}


def make_reader(root: Root, paths: HostPaths) -> ObjectReader:
    """Return what reads the objects of a kind."""
    make: MakeReader = import_module(_MODULES[root]).reader
    return make(paths)
