"""The document of --config: a map in YAML or JSON, with the line of each of its keys."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from koord.util.documents import decode
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
    import yaml  # 2 MiB, and most daemons run without a config file

    try:
        root = yaml.compose(data.decode("utf-8-sig"), Loader=yaml.SafeLoader)
        values = {} if root is None else decode(data, str(path))
    except InvalidObject as err:
        raise OptionError("--config", str(path), str(err)) from err
    except (yaml.YAMLError, ValueError, RecursionError) as err:
        raise OptionError("--config", str(path), f"not YAML: {' '.join(str(err).split())}") from err
    if values is None or root is None:
        return ConfigDocument(path, {})
    if not isinstance(values, dict):
        raise OptionError("--config", str(path), f"wanted a map of {keys} to values")
    return ConfigDocument(path, values, _lines(root, path))


def _lines(mapping: Any, path: Path) -> dict[str, int]:
    """Return the line of each key of a map; no map in it may have a key twice."""
    lines: dict[str, int] = {}
    for key, value in mapping.value:
        line = key.start_mark.line + 1
        if key.value in lines:
            hint = f"the same key is on line {lines[key.value]}; keep one"
            raise OptionError(f"{path}:{line}", key.value, hint)
        lines[key.value] = line
        _check_keys(value, path)
    return lines


def _check_keys(node: Any, path: Path) -> None:
    """Check the maps in a value; decode has bounded their depth."""
    if node.id == "mapping":
        _lines(node, path)
    elif node.id == "sequence":
        for item in node.value:
            _check_keys(item, path)
