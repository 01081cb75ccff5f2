"""Values of flags: Go syntax, YAML form, canonical text, and checks."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from koord.util import goformat
from koord.util.errors import OptionError
from koord.util.goformat import split_address
from koord.util.logs import parse_levels
from koord.util.text import nearest

T = TypeVar("T")

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_INT = re.compile(r"[+-]?[0-9][0-9a-zA-Z_]*", re.ASCII)
_OLD_OCTAL = re.compile(r"([+-]?)0_?([0-7]+(?:_[0-7]+)*)")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_LONGEST_NUMBER = 64  # characters
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class FlagType(Generic[T]):
    """Reads and writes flag values of one type.

    read takes the text of a command line, from_yaml a value of a YAML file; both raise ValueError
    with a message for people. merge joins an occurrence of the flag with the earlier ones. default
    takes a default as code gives it, and raises ValueError for one of another type.
    """

    name: str
    read: Callable[[str], T]
    from_yaml: Callable[[object], T]
    write: Callable[[T], str]
    merge: Callable[[T, T], T] = lambda _earlier, later: later
    needs_value: bool = True  # False: a bare -name is allowed and means true
    default: Callable[[Any], T] = lambda value: value


def read_bool(text: str) -> bool:
    """Return the truth value of one of the twelve literals that Go knows."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError("wanted true or false")


def read_int(text: str) -> int:
    """Return a whole number of 64 bits: decimal, 0x, 0o, 0b or, as in C, with a leading 0."""
    if len(text) > _LONGEST_NUMBER or not _INT.fullmatch(text):
        raise ValueError("wanted a whole number")
    octal = _OLD_OCTAL.fullmatch(text)
    try:
        number = int(octal[1] + octal[2], 8) if octal else int(text, 0)
    except ValueError as err:
        raise ValueError("wanted a whole number") from err
    return _in_range(number)


def read_float(text: str) -> float:
    """Return a finite decimal number."""
    if len(text) > _LONGEST_NUMBER or not _FLOAT.fullmatch(text):
        raise ValueError("wanted a number")
    return _finite(float(text))


def read_bool_map(text: str) -> dict[str, bool]:
    """Return the map of "A=true,B=false". Blanks do not count; of a key's values the last does."""
    values: dict[str, bool] = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"malformed pair {pair!r}, expect string=bool")
        try:
            values[name.strip()] = read_bool(value.strip())
        except ValueError as err:
            raise ValueError(f"invalid value of {pair!r}, expect string=bool") from err
    return values


def _write_bool(value: bool) -> str:
    return "true" if value else "false"


def _write_bool_map(values: Mapping[str, bool]) -> str:
    return ",".join(f"{name}={_write_bool(value)}" for name, value in sorted(values.items()))


def _in_range(number: int) -> int:
    if number not in _INT64:
        raise ValueError("wanted a whole number of at most 64 bits")
    return number


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError("wanted a finite number")
    return number


def _yaml_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError("wanted true or false")


def _yaml_int(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return _in_range(value)
    raise ValueError("wanted a whole number")


def _yaml_float(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _finite(float(value))
    raise ValueError("wanted a number")


def _yaml_text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("wanted a text (put it in quotes)")


def _any_text(value: object) -> str:
    return value if isinstance(value, str) else f"a {type(value).__name__}"


def _yaml_duration(value: object) -> float:
    if value == 0 and not isinstance(value, bool):
        return 0.0
    if isinstance(value, str):
        return goformat.parse_duration(value)
    raise ValueError("wanted a duration like 300ms, 10s or 1h30m")


def _yaml_bool_map(value: object) -> dict[str, bool]:
    if isinstance(value, Mapping) and all(
        isinstance(name, str) and isinstance(on, bool) for name, on in value.items()
    ):
        return dict(value)
    raise ValueError("wanted a map of names to true or false")


def _yaml_texts(value: object) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise ValueError("wanted a list of texts")


def _seconds(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise ValueError("wanted seconds as a number")


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise ValueError("wanted a list of texts")


BOOL = FlagType("bool", read_bool, _yaml_bool, _write_bool, needs_value=False, default=_yaml_bool)
INT = FlagType("int", read_int, _yaml_int, str, default=_yaml_int)
FLOAT = FlagType("float", read_float, _yaml_float, lambda value: f"{value:g}", default=_yaml_float)
STRING = FlagType("string", str, _yaml_text, str, default=_yaml_text)
ANY_TEXT = FlagType("text", str, _any_text, str)  # of flags that could not be defined
DURATION = FlagType(
    "duration", goformat.parse_duration, _yaml_duration, goformat.format_duration, default=_seconds
)
BOOL_MAP: FlagType[Mapping[str, bool]] = FlagType(
    "map of bool",
    read_bool_map,
    _yaml_bool_map,
    _write_bool_map,
    lambda a, b: {**a, **b},
    default=_yaml_bool_map,
)
STRING_LIST: FlagType[tuple[str, ...]] = FlagType(
    "list of string",
    lambda text: (text,),
    _yaml_texts,
    ",".join,
    lambda earlier, later: earlier + later,
    default=_texts,
)


class TriState(Enum):
    """A switch that has a third position: auto, decided by the daemon."""

    AUTO = "auto"
    ON = "true"
    OFF = "false"

    def settle(self, default: bool) -> bool:
        """Whether it is on, given what auto means."""
        return default if self is TriState.AUTO else self is TriState.ON


def _read_tri_state(text: str) -> TriState:
    if text == TriState.AUTO.value:
        return TriState.AUTO
    try:
        return TriState.ON if read_bool(text) else TriState.OFF
    except ValueError as err:
        raise ValueError("wanted true, false or auto") from err


def _yaml_tri_state(value: object) -> TriState:
    if isinstance(value, bool):
        return TriState.ON if value else TriState.OFF
    if value == TriState.AUTO.value:
        return TriState.AUTO
    raise ValueError("wanted true, false or auto")


TRI_STATE = FlagType(
    "true, false or auto",
    _read_tri_state,
    _yaml_tri_state,
    lambda tri: tri.value,
    needs_value=False,
)

_OBJECT_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


def one_of(*values: str) -> Callable[[str], str]:
    """The value must be one of these words."""

    def check(value: str) -> str:
        if value in values:
            return ""
        return f"use one of {', '.join(values)}; the nearest is {nearest(value, values)}"

    return check


def at_least(least: int) -> Callable[[int], str]:
    return lambda value: "" if value >= least else f"use {least} or more"


def port(value: int) -> str:
    return "" if 0 < value < 65536 else "use 1 to 65535"


def within(least: int, most: int) -> Callable[[int], str]:
    return lambda value: "" if least <= value <= most else f"use {least} to {most}"


def percent(value: float) -> str:
    return "" if 0 <= value <= 100 else "use 0 to 100 percent"


def at_least_seconds(seconds: float) -> Callable[[float], str]:
    """The duration must not be shorter."""
    return lambda value: (
        "" if value >= seconds else f"use {goformat.format_duration(seconds)} or more"
    )


def zero_or_at_least_seconds(seconds: float) -> Callable[[float], str]:
    return lambda value: "" if value == 0 else at_least_seconds(seconds)(value)


def absolute(value: str) -> str:
    return "" if value.startswith("/") else "use an absolute path"


def address(value: str) -> str:
    try:
        split_address(value)
    except ValueError as err:
        return str(err)
    return ""


def levels(value: str) -> str:
    try:
        parse_levels(value)
    except OptionError as err:
        return err.hint
    return ""


def object_name(value: str) -> str:
    return "" if _OBJECT_NAME.fullmatch(value) else "use small letters, digits, dashes and dots"
