"""The document of --config: a map in YAML or JSON, with the line of each of its keys."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from koord.component.config.places import decode_with_places
from koord.util.errors import InvalidObject, OptionError
from koord.util.filewatch import FileReadError, read_bounded

T = TypeVar("T")

MAX_BYTES = 64 << 10  # half a second to read


@dataclass(frozen=True, slots=True)
class ConfigDocument:
    """The entries of one config file, and the line of each."""

    path: Path
    values: Mapping[str, object]
    lines: Mapping[str, int] = field(default_factory=dict)

    def where(self, key: str) -> str:
        """The place of a key, for messages."""
        line = self.lines.get(key)
        return f"{self.path}:{line}: {key}" if line else f"{self.path}: {key}"


ParseConfig = Callable[[bytes, Path], T]
"""Returns the configuration of a file's bytes; raises a KoordError that names the fault."""


def read_config(path: Path, parse: ParseConfig[T]) -> T:
    """Return the parsed configuration of a file.

    Raises:
        OptionError: it is unreadable, or larger than 64 KiB. Its cause is the FileReadError.
        KoordError: what parse raises.
    """
    try:
        data = read_bounded(path, MAX_BYTES)
    except FileReadError as err:
        raise OptionError("--config", str(path), str(err)) from err
    return parse(data, path)


def parse_document(data: bytes, path: Path, *, keys: str = "names") -> ConfigDocument:
    """Return the entries of a config file's bytes. An empty file has none.

    keys says what its keys are, for messages.

    Raises:
        OptionError: it is no map, or a map in it has a key twice.
    """
    try:
        placed = decode_with_places(data, str(path))
    except InvalidObject as err:
        raise OptionError("--config", str(path), str(err)) from err
    for fault in placed.duplicates:
        hint = f"the same key is on line {placed.lines[fault.path]}; keep one"
        raise OptionError(f"{path}:{fault.line}", str(fault.path[-1]), hint)
    if placed.value is None:
        return ConfigDocument(path, {})
    if not isinstance(placed.value, dict):
        raise OptionError("--config", str(path), f"wanted a map of {keys} to values")
    lines = {str(place[0]): line for place, line in placed.lines.items() if len(place) == 1}
    return ConfigDocument(path, placed.value, lines)
