"""The file of --config: YAML with flag names as keys, read again while the daemon runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from koord.util.documents import decode
from koord.util.errors import InvalidObject, OptionError
from koord.util.filewatch import FileReadError, read_bounded

MAX_BYTES = 64 << 10  # half a second to read
LIVE_KEYS = frozenset(
    {"feature-gates", "qos-extension-plugins", "log-level", "dry-run", "evict-budget-per-hour"}
)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The entries of one config file, and the lines they stand on."""

    path: Path
    values: Mapping[str, object]
    lines: Mapping[str, int] = field(default_factory=dict)

    def where(self, key: str) -> str:
        """The place of a key, for messages."""
        line = self.lines.get(key)
        return f"{self.path}:{line}: {key}" if line else f"{self.path}: {key}"


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """What a newly read config file changes in a running daemon."""

    in_force: Mapping[str, object]  # entries to go on with: live ones new, the others as before
    live: tuple[str, ...]  # keys that take effect at once
    needs_restart: tuple[str, ...]  # keys whose new value (or absence) waits for a restart


def load_config(path: Path) -> ConfigFile:
    """Read a config file. An empty one has no entries.

    Raises:
        OptionError: it is unreadable, larger than 64 KiB, no YAML map, or has a key twice. What
            keys and values mean is checked by FlagSet.set_from_config.
    """
    try:
        return parse_config(read_bounded(path, MAX_BYTES), path)
    except FileReadError as err:
        raise OptionError("--config", str(path), str(err)) from err


def parse_config(data: bytes, path: Path) -> ConfigFile:
    """Return the entries of a config file's bytes; see load_config."""
    import yaml  # 2 MiB, and most daemons run without a config file

    try:
        root = yaml.compose(data.decode("utf-8-sig"), Loader=yaml.SafeLoader)
        values = {} if root is None else decode(data, str(path))
    except InvalidObject as err:
        raise OptionError("--config", str(path), str(err)) from err
    except (yaml.YAMLError, ValueError, RecursionError) as err:
        raise OptionError("--config", str(path), f"not YAML: {' '.join(str(err).split())}") from err
    if values is None or root is None:
        return ConfigFile(path, {})
    if not isinstance(values, dict):
        raise OptionError("--config", str(path), "wanted a map of flag names to values")
    return ConfigFile(path, values, _check_keys(root, path))


def compare(before: Mapping[str, object], after: Mapping[str, object]) -> ConfigChange:
    """Return what changes from the entries in force to newly read ones."""
    differing = sorted(key for key in before.keys() | after.keys() if _differ(before, after, key))
    in_force = {key: value for key, value in before.items() if key not in LIVE_KEYS}
    in_force |= {key: value for key, value in after.items() if key in LIVE_KEYS}
    return ConfigChange(
        in_force,
        live=tuple(key for key in differing if key in LIVE_KEYS),
        needs_restart=tuple(key for key in differing if key not in LIVE_KEYS),
    )


def _differ(before: Mapping[str, object], after: Mapping[str, object], key: str) -> bool:
    return key not in before or key not in after or before[key] != after[key]


def _check_keys(root: Any, path: Path) -> dict[str, int]:
    """Return the line of each key of the file's map, having looked for double keys everywhere."""
    lines = _lines(root, path)
    for _, value in root.value:
        if value.id == "mapping":
            _lines(value, path)
    return lines


def _lines(mapping: Any, path: Path) -> dict[str, int]:
    lines: dict[str, int] = {}
    for key, _ in mapping.value:
        line = key.start_mark.line + 1
        if key.value in lines:
            hint = f"the same key is on line {lines[key.value]}; keep one"
            raise OptionError(f"{path}:{line}", key.value, hint)
        lines[key.value] = line
    return lines
