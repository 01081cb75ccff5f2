"""Kinds of flag values that only the agent has: dry-run and the duties of a missing manager."""

from collections.abc import Iterable

from koord.component.flagkinds import Kind, read_bool
from koordlet.executor.dryrun import DryRun
from koordlet.manager_fallback.mode import DutyMode


def _read_dry_run(text: str) -> DryRun:
    try:
        return DryRun(all_plugins=read_bool(text))
    except ValueError:
        return _dry_run_of(name.strip() for name in text.split(","))


def _yaml_dry_run(value: object) -> DryRun:
    if isinstance(value, bool):
        return DryRun(all_plugins=value)
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
    return ",".join(sorted(value.plugins)) or str(value.all_plugins).lower()


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
