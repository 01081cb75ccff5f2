"""A kernel value, whatever each cgroup version calls it: one table row each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from koordlet.host.kerneltext import Text

T = TypeVar("T")


class Root(Enum):
    """Where a value is: the directory that a file's path is relative to, or a kind of object.

    An object of the kernel is no file (a resctrl group, say). Its value is a text all the same, and
    "it is not there" is one of its values, kerneltext.ABSENT: to restore that deletes what was
    made. koordlet.host.objects reads objects; koordlet.executor.kernel.media sets them, and says
    how to add a kind of them.
    """

    CGROUP = "cgroup"  # v1: <root>/<controller>/<group>/<name>; v2: <root>/<group>/<name>
    PROC = "proc"
    SYS = "sys"
    RESCTRL = "resctrl"  # <root>/<control group>/<name>, files of a group
    RESCTRL_GROUP = "resctrl group"  # the group itself
    RESCTRL_TASKS = "resctrl tasks"  # which group the threads of a process are in
    COOKIE = "cookie"  # of core scheduling, of a process
    TRAFFIC = "traffic"  # classes at the root of a network interface
    INTERFACE = "interface"  # the node's end of the interface of a process; read only
    SOCKET_GROUP = "socket group"  # which cgroup tells sockets' packets; read only
    TERWAY = "terway"  # a file that the agent terway-qos reads

    @property
    def is_object(self) -> bool:
        """Whether values here are no files."""
        return self in _OBJECTS


_OBJECTS = frozenset(
    {
        Root.RESCTRL_GROUP,
        Root.RESCTRL_TASKS,
        Root.COOKIE,
        Root.TRAFFIC,
        Root.INTERFACE,
        Root.SOCKET_GROUP,
        Root.TERWAY,
    }
)


class Support(Enum):
    """The rule by which a kernel is known to have a file (Koordinator's)."""

    ALWAYS = "always"
    PER_GROUP = "per group"  # iff the file exists in that group
    KUBEPODS = "kubepods"  # iff the file exists in the kubepods group; negatives are re-checked
    ROOT = "root"  # iff the file exists in the root group


@dataclass(frozen=True, slots=True)
class File(Generic[T]):
    """The file in which a kernel keeps a value, and the parser of its text.

    name may hold "{}", which is replaced by the group argument (for example a pid or a NUMA node)
    when root is not CGROUP.
    """

    name: str
    parse: Callable[[bytes], T]  # raises ValueError; the host layer adds the path
    root: Root = Root.CGROUP
    controller: str = ""  # v1 hierarchy, for example "memory"; v2: "" for every group's own files
    support: Support = Support.ALWAYS
    text: Text[T] | None = None  # how the value is written; None: read only
    validate: Callable[[str], bool] | None = None  # which texts may be written; None: any
    others: tuple[str, ...] = ()  # what kernels without a file of that name call it
    shows: Callable[[str], bool] | None = None  # which the kernel may show; None: as validate
    hold: bool = True  # False: an open file would keep something alive, for example a namespace
    initial: str = ""  # the text in a new group, also after a reset by the kernel; "": unknown
    follower: str = ""  # a file that runtimes set to the same limit, and that may not be below it
    copied: bool = False  # container runtimes give a new group the text of the one above

    def may_restore(self, text: str) -> bool:
        """Return whether a text may have been found here, and so may be written to restore it."""
        if self.text is None or not text.isascii():
            return False
        lines = text.split("\n") if self.text.by_line else [text]
        try:
            value = self.text.value(text)
            whole = not self.text.by_line or self.text.of(value) == text
        except ValueError:
            return False
        if not whole or not all(map(str.isprintable, lines)):
            return False
        shows = self.shows or self.validate
        return shows is None or shows(text)


@dataclass(frozen=True, slots=True, eq=False)
class Resource(Generic[T]):
    """One kernel value. files maps the cgroup version (1 or 2) to the file; a version without
    an entry does not have it: reading raises Unsupported. Host files use the same File for both.
    """

    name: str
    unit: str
    files: Mapping[int, File[T]]
    needs: str = ""  # kernel option, version or flavour that provides it, for `koordletctl doctor`

    @property
    def copied(self) -> bool:
        """Whether a cgroup version has it copied from the group above; see File.copied."""
        return any(file.copied for file in self.files.values())

    @property
    def is_object(self) -> bool:
        """Whether it is no file; see Root."""
        return any(file.root.is_object for file in self.files.values())

    def __repr__(self) -> str:
        """Its name: the files would fill the message that shows it."""
        return f"Resource({self.name})"
