"""Single values of Koordinator's configuration as JSON: what Go takes for a number and so on.

A shape says what a JSON value must look like. Reading brings foreign JSON into its canonical form;
loading and dumping convert between that and the value that Python code works with.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from koord.api.quantity import Quantity
from koord.util import goduration
from koord.util.errors import InvalidObject


class Shape:
    """The shape of one JSON value."""

    zero: object = None  # what Go makes of a null inside of a list or map

    def read(self, value: object, where: str, *, fold_case: bool = False) -> object:
        """Return the canonical form. Raises InvalidObject with the path of what has a wrong type.

        With fold_case the case of an object's keys does not matter.
        """
        raise NotImplementedError

    def check(self, value: object, where: str) -> None:
        """Compare a canonical value with the limits of its fields. Raises InvalidObject."""

    def overlay(self, base: object, new: object) -> object:
        """Return what base becomes when new is decoded onto it. Both are canonical."""
        return new

    def load(self, value: object) -> object:
        """Return the Python value of a canonical one."""
        return value

    def dump(self, value: object) -> object:
        """Return the canonical form of a Python value."""
        return value

    def omits(self, value: object) -> bool:
        """Whether Go leaves a field with this value out, so that it overlays nothing."""
        return value in ("", None)


def _same(value: object) -> object:
    return value


@dataclass(frozen=True, eq=False)
class Scalar(Shape):
    """A value without parts. accept returns its canonical form or raises ValueError."""

    wanted: str
    accept: Callable[[object], object]
    zero: object = None
    loads: Callable[[object], object] = _same
    dumps: Callable[[object], object] = _same

    def read(self, value: object, where: str, *, fold_case: bool = False) -> object:
        try:
            return self.accept(value)
        except (ValueError, OverflowError) as err:
            raise InvalidObject(where, wanted=self.wanted, found=value) from err

    def load(self, value: object) -> object:
        return self.loads(value)

    def dump(self, value: object) -> object:
        return self.dumps(value)


def _require(value: object, *types: type) -> None:
    """Raise ValueError unless the value is of one of the types; true and false are no numbers."""
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise ValueError(value)


def _whole_number(bits: int) -> Callable[[object], object]:
    reach = range(-(2 ** (bits - 1)), 2 ** (bits - 1))

    def accept(value: object) -> object:
        _require(value, int)
        if value not in reach:
            raise ValueError(value)
        return value

    return accept


def _boolean(value: object) -> object:
    _require(value, bool)
    return value


def _text(value: object) -> object:
    _require(value, str)
    str(value).encode()  # fails for half a surrogate pair, which JSON can say
    return value


def _number(value: object) -> object:
    _require(value, int, float)
    number = float(str(value))
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def _duration(value: object) -> object:
    _require(value, str)
    return goduration.format_ns(goduration.parse_ns(str(value)))


INT64 = Scalar("a whole number of 64 bits", _whole_number(64), zero=0)
INT32 = Scalar("a whole number of 32 bits", _whole_number(32), zero=0)
BOOL = Scalar("true or false", _boolean, zero=False)
TEXT = Scalar("a text", _text, zero="")
NUMBER = Scalar("a number", _number, zero=0.0)
INT_OR_TEXT = Scalar(
    "a whole number or a text",
    accept=lambda value: (TEXT if isinstance(value, str) else INT32).accept(value),
    zero=0,
)
QUANTITY = Scalar(
    "a quantity",
    accept=lambda value: str(Quantity.parse(value)),
    zero="0",
    loads=Quantity.parse,
    dumps=str,
)
DURATION = Scalar(  # in Python, seconds
    'a duration like "5m0s"',
    accept=_duration,
    zero="0s",
    loads=lambda value: goduration.parse(str(value)),
    dumps=lambda value: goduration.format(_float(value)),
)


def words(enum: type[StrEnum], *, otherwise: StrEnum | None) -> Scalar:
    """A text that is a word of enum. Like in Koordinator, another one is otherwise in disguise."""
    known = {word.value: word for word in enum}
    return Scalar(
        TEXT.wanted, _text, zero="", loads=lambda text: known.get(str(text), otherwise), dumps=str
    )


@dataclass(frozen=True, eq=False)
class Limit:
    """A bound on values of the right type, as the CRD or Koordinator has it."""

    wanted: str
    holds: Callable[[object], bool]


def between(low: int, high: int) -> Limit:
    return Limit(f"{low} to {high}", lambda value: low <= _float(value) <= high)


def at_least(low: int) -> Limit:
    return Limit(f"{low} or more", lambda value: _float(value) >= low)


def above(low: int) -> Limit:
    return Limit(f"more than {low}", lambda value: _float(value) > low)


def one_of(enum: type[StrEnum]) -> Limit:
    known = [word.value for word in enum]
    return Limit(" or ".join(known), lambda value: value in known)


PERCENT = between(0, 100)
NOT_NEGATIVE = at_least(0)
POSITIVE = above(0)


def _float(value: object) -> float:
    """A canonical number; what is none fulfils no limit."""
    return value if isinstance(value, (int, float)) else math.nan
