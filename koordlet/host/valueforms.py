"""The closed set of forms that the value of a plugin's own kernel file can have.

Each says how the file is parsed and written, what a plugin may have written, what the kernel may
show, so that it may be restored, and by which kind and facts a definition describes it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from koord.util.errors import InvalidObject
from koordlet.host.cgroups import cgroupfiles as cg
from koordlet.host.kerneltext import NUMBER, Text, number_or_max, parsed_text
from koordlet.host.validators import INT64_MAX, in_range

INT64_MIN = -INT64_MAX - 1
MOST_WORDS = 16
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,31}", re.ASCII)
_ANY_NUMBER = in_range(INT64_MIN)
_ANY_LIMIT = in_range(0)


@dataclass(frozen=True, slots=True)
class WholeNumber:
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
class NumberOrMax:
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
class OneWord:
    """One of these words: all that the file may show, as what is found there is restored."""

    kind: ClassVar[str] = "one word"
    words: tuple[str, ...]

    def __post_init__(self) -> None:
        words = self.words
        fits = isinstance(words, tuple) and 2 <= len(words) <= MOST_WORDS
        if not fits or not all(isinstance(w, str) and _WORD.fullmatch(w) for w in words):
            raise _unfit(f"a tuple of 2 to {MOST_WORDS} words of letters, digits and _.+-", words)
        if len(set(words)) < len(words):
            raise _unfit("each word once", words)

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


AnyForm = WholeNumber | NumberOrMax | OneWord
FORMS: tuple[type[AnyForm], ...] = (WholeNumber, NumberOrMax, OneWord)


def form_of(kind: object, facts: Mapping[str, Any]) -> AnyForm:
    """Return the form that a definition describes.

    Raises:
        InvalidObject: there is no such form, or it does not fit the form's own rules.
    """
    match kind, dict(facts):
        case WholeNumber.kind, {"low": low, "high": high, **more} if not more:
            return WholeNumber(low, high)
        case NumberOrMax.kind, {"low": low, "high": high, **more} if not more:
            return NumberOrMax(low, high)
        case OneWord.kind, {"words": list(words), **more} if not more:
            return OneWord(tuple(words))
    raise _unfit("a form of value that this koordlet knows", kind)


def _check_range(low: object, high: object, least: int) -> None:
    numbers = [each for each in (low, high) if type(each) is int]
    if len(numbers) < 2 or not least <= numbers[0] <= numbers[1] <= INT64_MAX:
        raise _unfit(f"low and high, whole numbers from {least} to {INT64_MAX}", (low, high))


def _unfit(wanted: str, found: object) -> InvalidObject:
    return InvalidObject("form of a kernel file", wanted=wanted, found=found)
