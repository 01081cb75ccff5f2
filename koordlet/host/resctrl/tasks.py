"""Which control group of resctrl the threads of a process are in.

Source: kernel, arch/x86/kernel/cpu/resctrl/rdtgroup.c (proc_resctrl_show).
"""

from pathlib import Path

from koordlet.host.errors import Unsupported
from koordlet.host.files import read_head
from koordlet.host.kerneltext import Text
from koordlet.host.paths import HostPaths
from koordlet.host.resctrl.names import MON_GROUPS, is_membership

NEEDS = "resctrl, mounted, and Linux 5.6 (CONFIG_PROC_CPU_RESCTRL)"
_MOST = 1024  # bytes; two names


def parse_membership(data: bytes) -> str:
    """Return the group of a task: "/", "BE", or with its monitoring group "BE/mon_groups/m1".

    Raises:
        ValueError: a line is missing, resctrl is not mounted, or a name is none that can be used.
    """
    fields = {}
    for line in data.decode("ascii", "replace").splitlines():
        name, _, value = line.partition(":")
        fields[name] = value
    if not fields.get("res"):
        raise ValueError("wanted a line res: with the name of a group, found none")
    group, monitor = fields["res"], fields.get("mon", "").strip("/")
    text = group
    if monitor:
        text = f"{group.removesuffix('/')}/{MON_GROUPS}/{monitor}"
    return _membership(text)


def _membership(text: str) -> str:
    if not isinstance(text, str) or not is_membership(text):
        raise ValueError(f"wanted the name of a control group, found {text!r:.80}")
    return text


MEMBERSHIP: Text[str] = Text(_membership, parse_membership, _membership)


class TaskReader:
    """Reads the group of a process's first thread. Threads inherit it from the one that made them.

    That the others are in the same is not looked at: it would be a read for each.
    """

    def __init__(self, paths: HostPaths) -> None:
        self._proc = paths.proc

    def path(self, pid: str) -> str:
        """The file that says so."""
        return f"{self._proc}/{pid}/cpu_resctrl_groups"

    def read(self, pid: str) -> bytes:
        """As ObjectReader.read."""
        path = self.path(pid)
        found = read_head(Path(path), _MOST)
        if found.startswith(b"res:\n"):
            raise Unsupported.here(path, "that resctrl is not mounted", NEEDS)
        return found


def reader(paths: HostPaths) -> TaskReader:
    """As koordlet.host.objects wants it."""
    return TaskReader(paths)
