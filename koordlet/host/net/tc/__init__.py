"""Traffic control of one network interface: a tree of HTB classes that koordlet makes at its root.

What there is has a text (koordlet.host.net.tc.tree); `absent` is what the kernel has by itself.
"""

import errno
import os
from typing import Protocol

from koordlet.host.errors import KernelFileError


class ForeignQdisc(KernelFileError):
    """The root qdisc is another agent's, a CNI's say. It is never replaced."""


class TrafficRefused(KernelFileError):
    """The kernel refuses what was asked for; what was there before is in force again."""


class TrafficControl(Protocol):
    """Reads and sets the root of interfaces, in the network namespace of the caller. Blocking.

    Never touched: ingress, clsact, and interfaces that are not named.
    """

    def read(self, interface: str) -> bytes | None:
        """Return what is there, as a line; None: there is no interface of that name.

        `absent`: what the kernel has by itself, or a tree that is half-made; `foreign KIND`:
        another agent's; `altered`: ours, changed by another; or our tree.

        Raises:
            KernelFileError: the kernel does not answer, or refuses.
        """

    def identity(self, interface: str) -> int:
        """Return the number of an interface (ifindex): a name alone may come again.

        What a write of ours left half-made, because its process was killed, is deleted.

        Raises:
            OSError: ENODEV: there is none of that name.
            KernelFileError: the kernel does not answer, or refuses.
        """

    def end_of(self, pid: int) -> str:
        """Return the node's end of a process's virtual interface (veth); "": it has none.

        Of several it is that of the interface which the process's network namespace had first.

        Raises:
            OSError: ESRCH: there is no such process.
            KernelFileError: the kernel does not answer, or refuses.
        """

    def knows_sockets(self) -> bool:
        """Whether packets of the node's own sockets can be told by cgroups of v2.

        Raises:
            KernelFileError: the kernel does not answer.
        """

    def write(self, interface: str, identity: int, content: bytes) -> None:
        """Bring about a content: all of it, or on any error what was there before.

        Raises:
            ValueError: the content is none.
            OSError: ENODEV: there is none of that name, or it is another one.
            ForeignQdisc: another agent's qdisc is at the root.
            TrafficRefused: the kernel refuses.
            KernelFileError: the kernel does not answer.
        """


def no_such_interface(interface: str) -> OSError:
    """What identity and write raise."""
    return OSError(errno.ENODEV, os.strerror(errno.ENODEV), interface)
