"""Checks of a flag's value: each returns a hint, "" for a usable one."""

import re
from collections.abc import Callable

from koord.util import goduration
from koord.util.address import split_address
from koord.util.errors import OptionError
from koord.util.logs import parse_levels
from koord.util.nearest import nearest

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


def lasting(seconds: float) -> Callable[[float], str]:
    """The duration must not be shorter."""
    return lambda value: "" if value >= seconds else f"use {goduration.format(seconds)} or more"


def zero_or_lasting(seconds: float) -> Callable[[float], str]:
    return lambda value: "" if value == 0 else lasting(seconds)(value)


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
