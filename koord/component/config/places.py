"""The lines of a document's fields, and the fields that it has twice."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from koord.component.config.faults import Fault, FieldPath, duplicate_field
from koord.util.documents import decode
from koord.util.errors import InvalidObject
from koord.util.yamlscalars import resolve_key


@dataclass(frozen=True, slots=True)
class PlacedDocument:
    """The values of a document, and the place of each of its fields."""

    value: object  # None: the document is empty
    lines: Mapping[FieldPath, int] = field(default_factory=dict)  # from 1
    duplicates: tuple[Fault, ...] = ()

    def place(self, fault: Fault) -> Fault:
        """The fault with its line; that of the object around a field that is not there."""
        if fault.line:
            return fault
        path = fault.path
        while path and path not in self.lines:
            path = path[:-1]
        return replace(fault, line=self.lines.get(path, 0))


def decode_with_places(data: bytes, where: str) -> PlacedDocument:
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
        return PlacedDocument(None)
    value = decode(data, where)
    lines: dict[FieldPath, int] = {}
    duplicates: list[Fault] = []
    _walk(root, (), lines, duplicates)
    return PlacedDocument(value, lines, tuple(duplicates))


def _walk(node: Any, path: FieldPath, lines: dict[FieldPath, int], duplicates: list[Fault]) -> None:
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
    """The key as decode has it; what it refuses as one does not come here."""
    return str(node.value if node.style else resolve_key(node.value))
