"""The document of --config: a map in YAML or JSON, with the line of each field."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from koord.component.config.field_errors import FieldError, FieldPath, duplicate_field
from koord.util.documents import decode, resolve_key
from koord.util.errors import InvalidObject, OptionError
from koord.util.filewatch import FileReadError, read_bounded


@dataclass(frozen=True, slots=True)
class DocumentWithLines:
    """The values of a document, and the place of each of its fields."""

    value: object  # None: the document is empty
    lines: Mapping[FieldPath, int] = field(default_factory=dict)  # from 1
    duplicates: tuple[FieldError, ...] = ()

    def place(self, fault: FieldError) -> FieldError:
        """The fault with its line; that of the object around a field that is not there."""
        if fault.line:
            return fault
        path = fault.path
        while path and path not in self.lines:
            path = path[:-1]
        return replace(fault, line=self.lines.get(path, 0))


def decode_with_lines(data: bytes, where: str) -> DocumentWithLines:
    """Return the object that the bytes of a file describe, YAML or JSON. where is for errors.

    Of a field that is there twice the last value counts; the caller decides what a duplicate means.

    Raises:
        InvalidObject: it cannot be read; see koord.util.documents.
    """
    import yaml  # 2 MiB, and most daemons run without a config file

    try:
        text = data.decode("utf-8-sig")
        if text.lstrip()[:1] == "{":
            text = text.replace("\t", " ")  # JSON has them only between its values, YAML never
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as err:
        found = f"not YAML: {' '.join(str(err).split())}"
        raise InvalidObject(where, wanted="a document", found=found) from err
    if root is None:
        return DocumentWithLines(None)
    value = decode(data, where)
    lines: dict[FieldPath, int] = {}
    duplicates: list[FieldError] = []
    _walk(root, (), lines, duplicates)
    return DocumentWithLines(value, lines, tuple(duplicates))


def _walk(
    node: Any, path: FieldPath, lines: dict[FieldPath, int], duplicates: list[FieldError]
) -> None:
    """Note the fields below a node; decode has bounded their depth."""
    if node.id == "mapping":
        for key, value in node.value:
            below = (*path, _key(key))
            line = key.start_mark.line + 1
            if below in lines:
                duplicates.append(duplicate_field(below, line, lines[below]))
            else:
                lines[below] = line
            _walk(value, below, lines, duplicates)
    elif node.id == "sequence":
        for index, item in enumerate(node.value):
            lines[(*path, index)] = item.start_mark.line + 1
            _walk(item, (*path, index), lines, duplicates)


def _key(node: Any) -> str:
    """Return the key as decode has it; keys that decode rejects do not come here."""
    return str(node.value if node.style else resolve_key(node.value))


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
        placed = decode_with_lines(data, str(path))
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
