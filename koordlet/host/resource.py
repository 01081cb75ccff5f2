"""A kernel value, whatever each cgroup version calls it: one table row each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from koordlet.host.kerneltext import Text

T = TypeVar("T")


class Root(Enum):
    """The directory a file's path is relative to."""

    CGROUP = "cgroup"  # v1: <root>/<controller>/<group>/<name>; v2: <root>/<group>/<name>
    PROC = "proc"
    SYS = "sys"


class Support(Enum):
    """When a kernel is known to have a file (Koordinator's rules)."""

    ALWAYS = "always"
    PER_GROUP = "per group"  # iff the file exists in that group
    KUBEPODS = "kubepods"  # iff the file exists in the kubepods group; negatives are re-checked
    ROOT = "root"  # iff the file exists in the root group


@dataclass(frozen=True, slots=True)
class File(Generic[T]):
    """Where one kernel keeps a value, and how its text is read.

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
    hold: bool = True  # False: an open file would keep something alive, for example a namespace


@dataclass(frozen=True, slots=True, eq=False)
class Resource(Generic[T]):
    """One kernel value. files maps the cgroup version (1 or 2) to the file; a version without
    an entry does not have it: reading raises Unsupported. Host files use the same File for both.
    """

    name: str
    unit: str
    files: Mapping[int, File[T]]
    needs: str = ""  # kernel option, version or flavour that provides it, for `koordletctl doctor`

    def __repr__(self) -> str:
        """Its name: the files would fill the message that shows it."""
        return f"Resource({self.name})"
