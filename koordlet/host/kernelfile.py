"""Kernel files that plugins declare as their own: allowed files, forms of values, rows."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, overload

from koord.util.errors import InvalidObject
from koordlet.host.cgroups import cgroupfiles as cg
from koordlet.host.cgroups.tree import V1_ONLY, V2_ONLY
from koordlet.host.resource import (
    INT64_MAX,
    NUMBER,
    File,
    Resource,
    Root,
    Support,
    Text,
    in_range,
    number_or_max,
    parsed_text,
)
from koordlet.host.resources import BY_NAME

INT64_MIN = -INT64_MAX - 1
MAX_WORDS = 16
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,31}", re.ASCII)
_ANY_NUMBER = in_range(INT64_MIN)
_ANY_LIMIT = in_range(0)


@dataclass(frozen=True, slots=True)
class IntegerForm:
    """A whole number from low to high, both within 64 bits; the kernel may hold others."""

    kind: ClassVar[str] = "whole number"
    low: int
    high: int

    def __post_init__(self) -> None:
        _check_range(self.low, self.high, INT64_MIN)

    def parse(self, data: bytes) -> int:
        number = cg.parse_number(data)
        if not _ANY_NUMBER(str(number)):
            raise ValueError("wanted a number of 64 bits, found a longer one")
        return number

    def text(self) -> Text[int]:
        return parsed_text(NUMBER.of, self.parse)

    def may_write(self, text: str) -> bool:
        return in_range(self.low, self.high)(text)

    def may_show(self, text: str) -> bool:
        return _ANY_NUMBER(text)

    def facts(self) -> dict[str, object]:
        return {"low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True)
class IntegerOrMaxForm:
    """A whole number from low (0 at least) to high, or no limit: -1, which the file calls "max"."""

    kind: ClassVar[str] = "number or max"
    low: int
    high: int

    def __post_init__(self) -> None:
        _check_range(self.low, self.high, 0)

    def parse(self, data: bytes) -> int:
        if data == b"max\n":
            return cg.NO_LIMIT
        number = cg.parse_number(data)
        if not _ANY_LIMIT(str(number)):
            raise ValueError('wanted a number of 63 bits or "max", found another')
        return number

    def text(self) -> Text[int]:
        return parsed_text(number_or_max, self.parse)

    def may_write(self, text: str) -> bool:
        return text == "max" or in_range(self.low, self.high)(text)

    def may_show(self, text: str) -> bool:
        return _ANY_LIMIT(text)  # which takes "max"

    def facts(self) -> dict[str, object]:
        return {"low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True)
class ChoiceForm:
    """One of these words: all that the file may show, as what is found there is restored."""

    kind: ClassVar[str] = "one word"
    words: tuple[str, ...]

    def __post_init__(self) -> None:
        words = self.words
        fits = isinstance(words, tuple) and 2 <= len(words) <= MAX_WORDS
        if not fits or not all(isinstance(w, str) and _WORD.fullmatch(w) for w in words):
            raise _form_error(
                f"a tuple of 2 to {MAX_WORDS} words of letters, digits and _.+-", words
            )
        if len(set(words)) < len(words):
            raise _form_error("each word once", words)

    def parse(self, data: bytes) -> str:
        found = data.decode("ascii", "replace").removesuffix("\n")
        if found not in self.words or not data.endswith(b"\n"):
            raise ValueError(f"wanted one of {', '.join(self.words)}, found {found[:40]!r}")
        return found

    def text(self) -> Text[str]:
        return parsed_text(self._of, self.parse)

    def may_write(self, text: str) -> bool:
        return text in self.words

    def may_show(self, text: str) -> bool:
        return text in self.words

    def facts(self) -> dict[str, object]:
        return {"words": list(self.words)}

    def _of(self, value: str) -> str:
        if value not in self.words:
            raise ValueError(f"wanted one of {', '.join(self.words)}, found {value!r:.40}")
        return value


AnyForm = IntegerForm | IntegerOrMaxForm | ChoiceForm
FORMS: tuple[type[AnyForm], ...] = (IntegerForm, IntegerOrMaxForm, ChoiceForm)


def form_of(kind: object, facts: Mapping[str, Any]) -> AnyForm:
    """Return the form that a definition describes.

    Raises:
        InvalidObject: there is no such form, or it does not fit the form's own rules.
    """
    match kind, dict(facts):
        case IntegerForm.kind, {"low": low, "high": high, **more} if not more:
            return IntegerForm(low, high)
        case IntegerOrMaxForm.kind, {"low": low, "high": high, **more} if not more:
            return IntegerOrMaxForm(low, high)
        case ChoiceForm.kind, {"words": list(words), **more} if not more:
            return ChoiceForm(tuple(words))
    raise _form_error("a form of value that this koordlet knows", kind)


def _check_range(low: object, high: object, least: int) -> None:
    numbers = [each for each in (low, high) if type(each) is int]
    if len(numbers) < 2 or not least <= numbers[0] <= numbers[1] <= INT64_MAX:
        raise _form_error(f"low and high, whole numbers from {least} to {INT64_MAX}", (low, high))


def _form_error(wanted: str, found: object) -> InvalidObject:
    return InvalidObject("form of a kernel file", wanted=wanted, found=found)


MAX_NAME_LENGTH = 128  # characters
SYSCTL = "/proc/sys/"

_NAME = re.compile(r"[A-Za-z0-9/][A-Za-z0-9_./-]*", re.ASCII)
_BOTH = ("cpu", "cpuset", "hugetlb", "memory", "misc", "pids", "rdma")
_CGROUP = re.compile(rf"({'|'.join((*_BOTH, *V1_ONLY, *V2_ONLY))})(\.[A-Za-z0-9_-]+)+", re.ASCII)
_SYSCTL = re.compile(
    SYSCTL + r"(vm/[a-z0-9_]+|kernel/(sched_[a-z0-9_]+|numa_balancing[a-z0-9_]*|timer_migration"
    r"|threads-max|watchdog_thresh|perf_cpu_time_max_percent))",
    re.ASCII,
)
_COUNTER = "it counts or triggers something, and holds no setting that could be restored"
_ONE_WAY = "what it does cannot be undone by writing what was there before"
_MEMBERS = "it moves, ends or delegates processes and cgroups; only the kubelet may"
_PROGRAM = "the kernel runs what it names as root"
_SECURITY = "it is a protection of the node"
_DENIED = tuple(
    (re.compile(pattern), why)
    for pattern, why in (
        (r"cgroup\..*|tasks|release_agent|notify_on_release", _MEMBERS),
        (
            r".*\.(stat|current|peak|events(\.local)?|failcnt|(max_)?usage(_.*)?|.*pressure"
            r"|reset_stats|memory_pressure.*|pressure_level)",
            _COUNTER,
        ),
        (
            r"memory\.(force_empty|reclaim|oom_control|kmem\..*|use_hierarchy|move_charge_.*)",
            _ONE_WAY,
        ),
        (
            r"cpuset\.(.*exclusive.*|mem_hardwall|cpus\.partition|memory_migrate)",
            "it takes CPUs or memory away from other cgroups",
        ),
        (
            SYSCTL + r"kernel/(core_pattern|core_pipe_limit|modprobe|hotplug|poweroff_cmd"
            r"|usermodehelper.*|.*_helper)",
            _PROGRAM,
        ),
        (
            SYSCTL + r"(kernel/(randomize_va_space|.*_restrict|perf_event_paranoid|sysrq|yama.*"
            r"|.*_disabled|seccomp.*)|vm/(mmap_min_addr|mmap_rnd.*|legacy_va_layout"
            r"|unprivileged_userfaultfd|memfd_noexec|hugetlb_shm_group))",
            _SECURITY,
        ),
        (SYSCTL + r".*panic.*", "it can stop the node"),
        (SYSCTL + r"vm/(drop_caches|compact_memory|stat_refresh)", _COUNTER),
        (
            SYSCTL + r"vm/(dirty_(background_)?(ratio|bytes)|overcommit_(ratio|kbytes))",
            "setting it clears another one, which would not be restored",
        ),
        (
            SYSCTL + r"net/.*",
            "it is of the network namespace of the process that writes, a pod's where koordlet "
            "runs in one",
        ),
    )
)


def _path(root: Root, name: str) -> str:
    return name if root is Root.CGROUP else f"/{root.value}/{name}"


_COVERED = {
    _path(file.root, name): row.name
    for row in BY_NAME.values()
    for file in row.files.values()
    if isinstance(file.root, Root)
    for name in (file.name, *file.others)
}


def declaration_defect(name: object) -> str:
    """Return why a plugin may not declare a file, as what was found; "" if it may."""
    if not isinstance(name, str) or len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        return repr(name)[:MAX_NAME_LENGTH]
    for pattern, why in _DENIED:
        if pattern.fullmatch(name):
            return f"{name}: {why}"
    if known := _COVERED.get(name):
        return f"{name}, which is {known.upper()} of koordlet.plugin.resources; claim that"
    if _CGROUP.fullmatch(name) or _SYSCTL.fullmatch(name):
        return ""
    return f"{name}, which is neither"


def controllers_by_version(name: str) -> dict[int, str]:
    """Return the controller of a file that may be declared, by cgroup version; "" for sysctls."""
    if name.startswith(SYSCTL):
        return {1: "", 2: ""}
    controller = name.partition(".")[0]
    if controller in V1_ONLY:
        return {1: controller}
    return {2: controller} if controller in V2_ONLY else {1: controller, 2: controller}


T = TypeVar("T")

MAX_UNIT_LENGTH = 80  # characters
MAX_DEFINITION_LENGTH = 2048  # characters


class KernelFile(Resource[T]):
    """A kernel file of a plugin's own, which it may then claim like the values of the table.

    Two are equal when they are about the same file, whatever else they say of it.
    """

    __slots__ = ("form",)
    form: AnyForm

    @overload
    def __init__(
        self: "KernelFile[int]",
        file: str,
        unit: str,
        form: IntegerForm | IntegerOrMaxForm,
        needs: str = "",
    ) -> None: ...
    @overload
    def __init__(
        self: "KernelFile[str]", file: str, unit: str, form: ChoiceForm, needs: str = ""
    ) -> None: ...
    @overload
    def __init__(
        self: "KernelFile[Any]", file: str, unit: str, form: AnyForm, needs: str = ""
    ) -> None: ...
    def __init__(self, file: str, unit: str, form: AnyForm, needs: str = "") -> None:
        """Check the declaration.

        file is the name of a cgroup's file ("pids.max"), of the same name on both cgroup versions
        as far as they have it, or the path of a sysctl ("/proc/sys/vm/swappiness"). unit is what
        its value is in, in a few words. needs is what provides it, for `koordletctl doctor`.

        Raises:
            InvalidObject: the table covers the file, it is none that a plugin may set, or another
                part is unusable.
        """
        if found := declaration_defect(file):
            wanted = "a setting of a cgroup controller, or a sysctl of vm/ or the scheduler"
            raise InvalidObject("kernel file", wanted=wanted, found=found)
        for text, what in ((unit, "unit"), (needs or "-", "needs")):
            fits = isinstance(text, str) and text.isprintable()
            if not fits or not 1 <= len(text) <= MAX_UNIT_LENGTH:
                wanted = f"a {what} of 1 to {MAX_UNIT_LENGTH} printable characters"
                raise InvalidObject(f"kernel file {file}", wanted=wanted, found=text)
        if type(form) not in (IntegerForm, IntegerOrMaxForm, ChoiceForm):
            wanted = "a WholeNumber, NumberOrMax or OneWord as form"
            raise InvalidObject(f"kernel file {file}", wanted=wanted, found=form)
        super().__init__(file, unit, _files(file, form), needs)
        object.__setattr__(self, "form", form)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KernelFile) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"KernelFile({self.name})"

    @property
    def definition(self) -> str:
        """All that is needed to restore a value of the file without the plugin, as text."""
        facts = {"unit": self.unit, "form": self.form.kind, **self.form.facts()}
        return json.dumps(facts, separators=(",", ":"))

    @classmethod
    def from_definition(cls, file: str, text: str) -> "KernelFile[Any]":
        """Return the row that has this definition, checked as a declaration is.

        Raises:
            InvalidObject: there is none, or a plugin could not have declared it.
        """
        try:
            facts = json.loads(text) if len(text) <= MAX_DEFINITION_LENGTH else None
        except (ValueError, RecursionError):
            facts = None
        if not isinstance(facts, dict) or not {"unit", "form"} <= facts.keys():
            wanted = "its definition as a JSON object with unit and form"
            raise InvalidObject("kernel file", wanted=wanted, found=text)
        unit, kind = facts.pop("unit"), facts.pop("form")
        return cls(file, unit, form_of(kind, facts))


def definition_of(resource: Resource[Any]) -> str:
    """Return the definition of a row that a plugin declared; "" for one of the table."""
    return resource.definition if isinstance(resource, KernelFile) else ""


def _files(name: str, form: AnyForm) -> dict[int, File[Any]]:
    is_sysctl = name.startswith(SYSCTL)
    return {
        version: File(
            name.removeprefix("/proc/"),
            form.parse,
            root=Root.PROC if is_sysctl else Root.CGROUP,
            controller=controller,
            support=Support.PER_GROUP,
            text=form.text(),
            validate=form.may_write,
            shows=form.may_show,
        )
        for version, controller in controllers_by_version(name).items()
    }
