"""Kernel values as the text that sets them.

A text here is the value alone, as its file shows it once it is set: what is compared, and what is
kept to be restored. Keeping the value itself would not do, as the way through it is lossy: a
cpu.weight of 100 is 2597 shares, which are a weight of 98.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from koord.util.cpulist import format_cpulist, parse_cpulist_file
from koordlet.host.cgroups import cgroupfiles as cg
from koordlet.host.cgroups.cpuvalues import shares_to_weight

T = TypeVar("T")

ABSENT = "absent"  # text and value of an object that is not there; see Root

_PAGE = os.sysconf("SC_PAGE_SIZE")  # bytes; the kernel keeps memory limits in pages


@dataclass(frozen=True, slots=True)
class Text(Generic[T]):
    """The text form of one kind of value. All raise ValueError for what is not such a value."""

    of: Callable[[T], str]  # the text of a value
    shown: Callable[[bytes], str]  # the text of what a file says now
    value: Callable[[str], T]  # the value of a text
    content: Callable[[str, bytes], str] = lambda text, now: text  # what to write, given the file
    by_line: bool = False  # each line of the content is a write of its own, about one device
    made: str = ""  # the text for which the kernel makes up another one


def _number(value: int) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _unfit("a whole number", value)
    return str(value)


def _unfit(wanted: str, value: object) -> ValueError:
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
        raise _unfit("a set of CPU numbers", value)
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


def or_absent(text: Text[T]) -> Text[Any]:
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
