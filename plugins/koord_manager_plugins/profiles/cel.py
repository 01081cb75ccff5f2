"""CEL that policies are made of: literals, selectors, JSON patch operations and their paths."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from koord.api.labelselector import LabelSelector, Requirement
from koord.plugin import InvalidObject

_MAPS = {"labels", "annotations", "nodeSelector"}  # fields whose keys are no fields


@dataclass(frozen=True, slots=True)
class ListItem:
    """An item of a list that is merged by a key, as a part of a path."""

    key: str
    value: str | int

    def __str__(self) -> str:
        return f"[{self.key}={self.value}]"


Path = tuple[str | ListItem, ...]


def literal(value: object) -> str:
    """Return a JSON value as a CEL expression; lists and maps are of type dyn."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return text_literal(value)
        case list():
            return "[" + ", ".join(f"dyn({literal(one)})" for one in value) + "]"
        case Mapping():
            items = (f"{text_literal(key)}: dyn({literal(one)})" for key, one in value.items())
            return "{" + ", ".join(items) + "}"
    raise InvalidObject("spec.patch", wanted="JSON", found=value)


def text_literal(value: str) -> str:
    """Return a text as a CEL expression."""
    return '"' + "".join(map(_letter, value)) + '"'


def _letter(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    if " " <= letter <= "~":
        return letter
    code = ord(letter)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def selects(selector: LabelSelector, labels: str) -> str:
    """Return the CEL expression that says whether a selector matches; labels is one for the map."""
    parts = [f"{labels}[?{text_literal(key)}] == optional.of({text_literal(value)})"
             for key, value in sorted(selector.match_labels.items())]  # fmt: skip
    parts += [_requires(one, labels) for one in selector.match_expressions]
    return " && ".join(parts) or "true"


def _requires(one: Requirement, labels: str) -> str:
    key, values = text_literal(one.key), literal_texts(one.values)
    match one.operator:
        case "In":
            return f"({key} in {labels} && {labels}[{key}] in {values})"
        case "NotIn":
            return f"!({key} in {labels} && {labels}[{key}] in {values})"
        case "Exists":
            return f"{key} in {labels}"
    return f"!({key} in {labels})"


def literal_texts(values: Iterable[str]) -> str:
    """Return texts as a list in CEL."""
    return "[" + ", ".join(map(text_literal, values)) + "]"


def pointer(path: Sequence[str]) -> str:
    """Return a JSON pointer."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path)


def add(path: Sequence[str], value: str) -> str:
    """Return an operation that sets a field to a value, which is CEL."""
    return add_at(text_literal(pointer(path)), value)


def remove(path: Sequence[str]) -> str:
    """Return an operation that removes a field, which must be there."""
    return remove_at(text_literal(pointer(path)))


def optional(path: Path) -> str:
    """Return the value at a path without items, as an optional."""
    found, is_map = "object", False
    for part in map(str, path):
        found += f"[?{text_literal(part)}]" if is_map else f".?{part}"
        is_map = part in _MAPS
    return found


def located(path: Path, operations: Callable[[str, str], str]) -> str:
    """Return operations on a path with items; where an item is missing there are none.

    operations makes them of the JSON pointer and of the value at the path, an optional; all CEL.
    """
    lookups: list[tuple[str, str]] = []
    place, value = "", "object"
    pointers: list[str] = []
    for part in path:
        if isinstance(part, ListItem):
            index = f"i{len(lookups)}"
            lookups.append((f"[{keys_of(value, part)}.indexOf({literal(part.value)})]", index))
            value = f"{value}.value()[{index}]"
            pointers += [text_literal(f"{place}/"), f"string({index})"]
            place = ""
        else:
            value = f"{value}[?{text_literal(part)}]"
            place += pointer((part,))
    if place:
        pointers.append(text_literal(place))
    found = operations(" + ".join(pointers), value)
    for where, index in reversed(lookups):
        found = f"{where}.filter({index}, {index} >= 0).map({index}, {found}).flatten()"
    return found


def keys_of(items: str, item: ListItem) -> str:
    """Return the keys of a list of items, which is an optional; CEL."""
    absent = '""' if isinstance(item.value, str) else "0"
    return f"{items}.orValue([]).map(c, c[?{text_literal(item.key)}].orValue({absent}))"


def has_items(path: Path) -> bool:
    """Whether a path leads through items of lists, whose indexes only the server knows."""
    return any(isinstance(part, ListItem) for part in path)


def add_at(place: str, value: str) -> str:
    """Return an operation as add does; place is CEL, too: a JSON pointer."""
    return f'JSONPatch{{op: "add", path: {place}, value: {value}}}'


def remove_at(place: str) -> str:
    """Return an operation as remove does; place is CEL, too: a JSON pointer."""
    return f'JSONPatch{{op: "remove", path: {place}}}'


def plain(path: Path) -> tuple[str, ...]:
    """Return a path without items."""
    return tuple(map(str, path))
