"""What makes a flag's value usable: each check returns a hint, "" when there is nothing to say."""

import re
from collections.abc import Callable, Iterable
from enum import Enum

from koord.component.flagkinds import Kind, read_bool
from koord.util import goduration
from koord.util.address import split_address
from koord.util.errors import OptionError
from koord.util.logs import parse_levels
from koord.util.nearest import nearest
from koordlet.executor.dryrun import DryRun
from koordlet.manager_fallback.mode import DutyMode

_OBJECT_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


class Tri(Enum):
    """A switch that may be left to the daemon."""

    AUTO = "auto"
    ON = "true"
    OFF = "false"

    def settle(self, default: bool) -> bool:
        """Whether it is on, given what auto means."""
        return default if self is Tri.AUTO else self is Tri.ON


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


def two_digits(value: str) -> str:
    usable = len(value) == 2 and value.isascii() and value.isdigit()
    return "" if usable else "use two digits, for example 00"


def _read_tri(text: str) -> Tri:
    if text == Tri.AUTO.value:
        return Tri.AUTO
    try:
        return Tri.ON if read_bool(text) else Tri.OFF
    except ValueError as err:
        raise ValueError("wanted true, false or auto") from err


def _yaml_tri(value: object) -> Tri:
    if isinstance(value, bool):
        return Tri.ON if value else Tri.OFF
    if value == Tri.AUTO.value:
        return Tri.AUTO
    raise ValueError("wanted true, false or auto")


TRI = Kind("true, false or auto", _read_tri, _yaml_tri, lambda tri: tri.value, needs_value=False)


def _read_dry_run(text: str) -> DryRun:
    try:
        return DryRun(everybody=read_bool(text))
    except ValueError:
        return _dry_run_of(name.strip() for name in text.split(","))


def _yaml_dry_run(value: object) -> DryRun:
    if isinstance(value, bool):
        return DryRun(everybody=value)
    if isinstance(value, str):
        return _read_dry_run(value)
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return _dry_run_of(value)
    raise ValueError("wanted true, false or names of plugins")


def _dry_run_of(names: Iterable[str]) -> DryRun:
    plugins = frozenset(filter(None, names))
    if not plugins:
        raise ValueError("wanted true, false or names of plugins")
    return DryRun(plugins=plugins)


def _write_dry_run(value: DryRun) -> str:
    return ",".join(sorted(value.plugins)) or str(value.everybody).lower()


DRY_RUN = Kind(
    "true, false or plugins", _read_dry_run, _yaml_dry_run, _write_dry_run, needs_value=False
)


def _read_duties(text: str) -> DutyMode:
    try:
        return DutyMode(text)
    except ValueError as err:
        raise ValueError("wanted auto, on or off") from err


def _yaml_duties(value: object) -> DutyMode:
    if isinstance(value, bool):  # what on and off are in YAML
        return DutyMode.ON if value else DutyMode.OFF
    return _read_duties(str(value))


DUTY_MODE = Kind("auto, on or off", _read_duties, _yaml_duties, lambda mode: mode.value)
