"""The node's network interfaces, from wherever this process can see them."""

import os
from collections.abc import Iterable
from pathlib import Path

from koordlet.host.errors import KernelFileError, Unsupported
from koordlet.host.files import MAX_BYTES, parse_file, read_up_to
from koordlet.host.net.links import LinkStats
from koordlet.host.net.netfiles import InterfaceCounters, parse_net_dev, parse_tcp_retransmits
from koordlet.host.net.rtnetlink import LinkReader
from koordlet.host.proc.namespaces import OWN, node_network_process
from koordlet.host.proc.procfiles import parse_int

BYTES_OF_MEGABIT = 125_000


class NodeNetwork:
    """Reads the interfaces of the node's network namespace. Not thread-safe.

    In that namespace itself (hostNetwork) over rtnetlink; from another one (hostPID alone), or
    when rtnetlink is forbidden, from net/dev, which knows counters only.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._links = LinkReader()
        self.process = node_network_process(proc)
        self.problem = ""  # why rtnetlink was not used last time, though it could have been

    def prepare(self) -> None:
        """Import what reading needs: that takes longer than a kernel read may."""
        if self.process == OWN:
            self._links.prepare()

    def read(self) -> dict[str, LinkStats]:
        """Return the interfaces by name.

        Raises:
            Unsupported: the node's namespace is out of reach.
            KernelFileError: the kernel refuses.
        """
        if self.process is None:
            raise Unsupported.here(
                str(self._proc / "1/net/dev"), "another container's", "hostNetwork or hostPID"
            )
        if self.process == OWN:
            try:
                found = self._links.read()
            except KernelFileError as err:
                self.problem = str(err)
            else:
                self.problem = ""
                return found
        counters = parse_file(self._proc / self.process / "net/dev", parse_net_dev)
        return {name: LinkStats(found) for name, found in counters.items()}

    def close(self) -> None:
        self._links.close()


class LinkSpeeds:
    """Reads the speed of the node's links."""

    def __init__(self, sys: Path) -> None:
        self._sys = sys

    def read(self, names: Iterable[str]) -> dict[str, int]:
        """Return the speeds that drivers know, in bytes per second, by interface.

        Those of another network namespace than the one that sysfs was mounted in are not there.
        """
        found = {}
        for name in names:
            try:
                speed = link_speed(self._sys, name)
            except KernelFileError:
                continue
            if speed:
                found[name] = speed * BYTES_OF_MEGABIT
        return found


def process_interfaces(proc: Path, pid: int) -> tuple[int, dict[str, InterfaceCounters]]:
    """Return the network namespace of a process, as network_namespace does, with its counters.

    The file is opened once for both and closed again: held open, it would keep the namespace of an
    ended pod alive.

    Raises:
        KernelFileError: the process has ended (Vanished) or is hidden from us.
    """
    path = f"{proc}/{pid}/net/dev"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            inode, data = os.fstat(descriptor).st_ino, read_up_to(descriptor, MAX_BYTES)
        finally:
            os.close(descriptor)
    except OSError as err:
        raise KernelFileError.from_os_error(path, err) from err
    try:
        return inode, parse_net_dev(data)
    except ValueError as err:
        raise KernelFileError(
            path, wanted="counters by interface", found=str(err), hint="is this a kernel file?"
        ) from err


def process_tcp_retransmits(proc: Path, pid: int) -> int:
    """Return the TCP segments that the network namespace of a process has sent again.

    Raises:
        KernelFileError: the process has ended (Vanished), is hidden from us, or the kernel has no
            such counter.
    """
    return parse_file(proc / str(pid) / "net/snmp", parse_tcp_retransmits)


def link_speed(sys: Path, name: str) -> int | None:
    """Return the speed of an interface in Mbit/s; None when its driver does not know it.

    Raises:
        KernelFileError: there is no such interface below sys.
    """
    path = sys / "class/net" / name / "speed"
    if not path.parent.exists():
        raise Unsupported.here(str(path), "no such interface")
    try:
        speed = parse_file(path, parse_int)
    except KernelFileError:  # EINVAL while the link is down
        return None
    return speed if speed >= 0 else None
