"""One kernel value as a table row: files by cgroup version, text, and validators."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Generic, Protocol, TypeVar

from koord.api.machine import format_cpulist, parse_cpulist, parse_cpulist_file
from koordlet.host.cgroups import cgroupfiles as cg
from koordlet.host.cgroups.cgroupfiles import shares_to_weight

INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1
MAX_HEX_CLASSID = 99_999_999
Validator = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class InRange:
    """Accepts a decimal number from low to high; "max" is 2^63-1."""

    low: int
    high: int

    def __call__(self, text: str) -> bool:
        number = INT64_MAX if text == "max" else _int64(text)
        return number is not None and self.low <= number <= self.high

    def __str__(self) -> str:
        return f"{self.low} or more" if self.high == INT64_MAX else f"{self.low} to {self.high}"


def in_range(low: int, high: int = INT64_MAX) -> Validator:
    """Accept a decimal number from low to high; "max" is 2^63-1."""
    return InRange(low, high)


def cpu_list(text: str) -> bool:
    """Accept what the list parser accepts; the empty list too."""
    try:
        parse_cpulist(text)
    except ValueError:
        return False
    return True


def class_id(text: str) -> bool:
    """Accept a network class: a decimal 31-bit number, or "0x" and up to eight decimal digits."""
    high = MAX_HEX_CLASSID if text.startswith("0x") else INT32_MAX
    number = _int64(text.removeprefix("0x"))
    return number is not None and 0 <= number <= high


def _int64(text: str) -> int | None:
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > len(str(INT64_MAX)):
        return None
    return int(text)


T = TypeVar("T")

ANOLIS = "an Anolis or Alibaba Cloud kernel"
ABSENT = "absent"  # text and value of an object that is not there; see ObjectKind

_PAGE = os.sysconf("SC_PAGE_SIZE")  # bytes; the kernel keeps memory limits in pages


@dataclass(frozen=True, slots=True)
class Text(Generic[T]):
    """The text form of one kind of value. All raise ValueError for what is not such a value."""

    of: Callable[[T], str]  # the text of a value
    shown: Callable[[bytes], str]  # the text of what a file says now
    value: Callable[[str], T]  # the value of a text
    content: Callable[[str, bytes], str] = lambda text, now: text  # what to write, given the file
    by_line: bool = False  # each line of the content is a write of its own, about one device
    kernel_generated: str = ""  # the text for which the kernel makes up another one


def _number(value: int) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _value_error("a whole number", value)
    return str(value)


def _value_error(wanted: str, value: object) -> ValueError:
    return ValueError(f"wanted {wanted}, found {value!r:.60}")


def number_or_max(value: int) -> str:
    """Return the text of a limit, "max" for -1. Raises ValueError: it is no whole number."""
    return "max" if _number(value) == "-1" else str(value)


def _bytes(value: int) -> str:
    """Whole pages, which is what the kernel makes of other numbers."""
    number = int(_number(value))
    return str(number if number < 0 else number // _PAGE * _PAGE)


def _bytes_or_max(value: int) -> str:
    return "max" if _number(value) == "-1" else _bytes(value)


def _cpus(value: frozenset[int]) -> str:
    if not isinstance(value, set | frozenset) or not all(isinstance(cpu, int) for cpu in value):
        raise _value_error("a set of CPU numbers", value)
    return format_cpulist(value)


def _line(text: str) -> bytes:
    return f"{text}\n".encode()


def parsed_text(of: Callable[[T], str], parse: Callable[[bytes], T]) -> Text[T]:
    """A file that shows nothing but the value."""
    return Text(of, lambda data: of(parse(data)), lambda text: parse(_line(text)))


def _weight_shown(data: bytes) -> str:
    """The weight as it is; 0 while the group is idle."""
    return str(cg.parse_number(data))


def _quota_shown(data: bytes) -> str:
    return number_or_max(cg.parse_cpu_max_quota(data))


def _with_period(text: str, now: bytes) -> str:
    return f"{text} {cg.parse_cpu_max_period(now)}"


NUMBER: Text[int] = parsed_text(_number, cg.parse_number)
V1_MEMORY_LIMIT: Text[int] = parsed_text(_bytes, cg.parse_v1_memory_limit)
BYTES_OR_MAX: Text[int] = parsed_text(_bytes_or_max, cg.parse_number_or_max)
CPU_LIST: Text[frozenset[int]] = parsed_text(_cpus, parse_cpulist_file)
CPU_WEIGHT: Text[int] = Text(
    lambda shares: str(shares_to_weight(int(_number(shares)))),
    _weight_shown,
    lambda text: cg.parse_cpu_weight(_line(text)),
)
CPU_MAX_QUOTA: Text[int] = Text(
    number_or_max, _quota_shown, lambda text: cg.parse_number_or_max(_line(text)), _with_period
)


def optional_text(text: Text[T]) -> Text[Any]:
    """The text of an object that may also not be there."""
    return Text(
        of=lambda value: ABSENT if value == ABSENT else text.of(value),
        shown=lambda data: ABSENT if data == _line(ABSENT) else text.shown(data),
        value=lambda found: ABSENT if found == ABSENT else text.value(found),
        content=lambda wanted, now: wanted if wanted == ABSENT else text.content(wanted, now),
    )


_BY_PARSER: dict[Callable[[bytes], Any], Text[Any]] = {
    cg.parse_number: NUMBER,
    cg.parse_cpu_weight: CPU_WEIGHT,
    parse_cpulist_file: CPU_LIST,
}


def text_for(parse: Callable[[bytes], T]) -> Text[T] | None:
    """The text form of what a parser reads, where there is only one; None: it is not written."""
    return _BY_PARSER.get(parse)


class Root(Enum):
    """The directory of a file's relative path."""

    CGROUP = "cgroup"  # v1: <root>/<controller>/<group>/<name>; v2: <root>/<group>/<name>
    PROC = "proc"
    SYS = "sys"
    RESCTRL = "resctrl"  # <root>/<control group>/<name>


class Level(StrEnum):
    """The level of a target in the tree."""

    NODE = "node"  # sysctl and sysfs values
    QOS = "qos"  # the cgroup of a Kubernetes QoS class
    POD = "pod"
    CONTAINER = "container"  # sandboxes too
    PROCESS = "process"
    RESCTRL = "resctrl"  # a control group of resctrl
    INTERFACE = "interface"  # a network interface of the node
    TERWAY = "terway"  # a file of the agent terway-qos

    @property
    def is_cgroup(self) -> bool:
        """Whether targets of the level are cgroups."""
        return self in CGROUPS


CGROUPS = (Level.QOS, Level.POD, Level.CONTAINER)


@dataclass(frozen=True, slots=True, eq=False)
class ObjectKind:
    """A kind of kernel object that is no file, a resctrl group say: a row of koordlet.host.objects.

    An object's value is a text all the same, and "it is not there" is one of its values, ABSENT: to
    restore that deletes what was made.
    """

    # The classes are named, not referred to: a row alone gives no writer, and the contract on
    # koordlet.host.object_writers can keep writers for the executor.
    level: Level  # of the targets that have such an object
    module: str  # has the classes below, and nothing imports it but host; see ObjectReader, -Writer
    reader: str
    writer: str = ""  # "": the kind is read only
    is_place: Callable[[str], bool] | None = None  # which places may be targets; None: the level's
    directory: str = ""  # where people find it; the name of the row's file follows
    in_node_network: bool = False  # to read it takes a helper process in the node's network


class ObjectTarget(Protocol):
    """The owner of a kernel object, as its reader and writer see it."""

    @property
    def place(self) -> str:
        """The name of the object, or the pid of its process."""

    @property
    def start_time(self) -> int:
        """The start time of the process, in ticks since boot; 0 for other targets.

        A pid alone may be used again.
        """


class ObjectKey(Protocol):
    """One value of a kernel object."""

    @property
    def target(self) -> ObjectTarget: ...


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
    root: Root | ObjectKind = Root.CGROUP
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
        """Whether it is no file; see ObjectKind."""
        return any(isinstance(file.root, ObjectKind) for file in self.files.values())

    def __repr__(self) -> str:
        """Its name: the files would fill the message that shows it."""
        return f"Resource({self.name})"


def group_file(
    controller: str,
    name: str,
    parse: Callable[[bytes], T],
    support: Support = Support.ALWAYS,
    may: Validator | None = None,
    hold: bool = True,
    text: Text[T] | None = None,
    others: tuple[str, ...] = (),
    initial: str = "",
    copied: bool = False,
    follower: str = "",
) -> File[T]:
    """A file of every group; controller "" on v2: every group has it, whatever is enabled.

    It is written when text says how, or may says what and its parser has only one text form.
    """
    text = text or (text_for(parse) if may else None)
    return File(
        name,
        parse,
        controller=controller,
        support=support,
        text=text,
        validate=may,
        others=others,
        hold=hold,
        initial=initial,
        copied=copied,
        follower=follower,
    )


def group_row(
    name: str, unit: str, v1: File[T] | None, v2: File[T] | None, needs: str = ""
) -> Resource[T]:
    files = {version: file for version, file in ((1, v1), (2, v2)) if file is not None}
    return Resource(name, unit, files, needs=needs)


def node_row(
    name: str,
    unit: str,
    path: str,
    parse: Callable[[bytes], T],
    root: Root | ObjectKind = Root.PROC,
    *,
    support: Support = Support.PER_GROUP,
    may: Validator | None = None,
    shows: Validator | None = None,
    text: Text[T] | None = None,
    needs: str = "",
    hold: bool = True,
) -> Resource[T]:
    """A file outside the cgroup tree, or an object; written as with group_file."""
    text = text or (text_for(parse) if may else None)
    file = File(path, parse, root, support=support, text=text, validate=may, shows=shows, hold=hold)
    return Resource(name, unit, {1: file, 2: file}, needs=needs)


def rows_of(names: Mapping[str, object]) -> tuple[Resource[Any], ...]:
    """Return the rows among a module's names, in their order."""
    return tuple(row for row in list(names.values()) if isinstance(row, Resource))
