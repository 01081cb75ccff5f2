"""Objects with conditions in them, and their text as a Helm template."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import yaml

_STEP = 2  # spaces


@dataclass(frozen=True, slots=True)
class When:
    """An entry of a mapping or list that is there on a condition."""

    condition: str
    value: Any


@dataclass(frozen=True, slots=True)
class Either:
    """A scalar that is another one on a condition."""

    condition: str
    then: Any
    otherwise: Any


@dataclass(frozen=True, slots=True)
class Expr:
    """A scalar that a template's action writes."""

    text: str


@dataclass(frozen=True, slots=True)
class Yaml:
    """A value of the chart, as it is; the entry is left out when the value is empty."""

    value: str


@dataclass(frozen=True, slots=True)
class Lines:
    """A text of many lines that a template's action writes."""

    text: str


@dataclass(frozen=True, slots=True)
class Items:
    """List items of which an action writes each, as many as a value of the chart has."""

    value: str


def document(tree: dict[str, Any]) -> str:
    """The text of one object."""
    return "".join(f"{line}\n" for line in _mapping(tree, 0))


def when(condition: str, text: str) -> str:
    """A text that is there on a condition."""
    return f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"


def _mapping(tree: dict[str, Any], indent: int) -> Iterator[str]:
    for condition, entries in groupby(tree.items(), lambda entry: _condition(entry[1])):
        lines = [line for key, each in entries for line in _entry(key, _bare(each), indent)]
        yield from _on(condition, lines, indent)


def _entry(key: str, value: Any, indent: int) -> Iterator[str]:
    pad, name = " " * indent, _scalar(key)
    if isinstance(value, Yaml):
        yield f"{pad}{{{{- with {value.value} }}}}"
        yield f"{pad}{name}:"
        yield f"{pad}{{{{- toYaml . | nindent {indent + _STEP} }}}}"
        yield f"{pad}{{{{- end }}}}"
    elif isinstance(value, Lines):
        yield f"{pad}{name}: |"
        yield f"{pad}{{{{- {value.text} | nindent {indent + _STEP} }}}}"
    elif isinstance(value, dict) and value:
        yield f"{pad}{name}:"
        yield from _mapping(value, indent + _STEP)
    elif isinstance(value, list) and value:
        yield f"{pad}{name}:"
        yield from _list(value, indent + _STEP)
    else:
        yield f"{pad}{name}: {_scalar(value)}"


def _list(items: list[Any], indent: int) -> Iterator[str]:
    for condition, group in groupby(items, _condition):
        lines = [line for each in group for line in _item(_bare(each), indent)]
        yield from _on(condition, lines, indent)


def _condition(value: Any) -> str:
    return value.condition if isinstance(value, When) else ""


def _bare(value: Any) -> Any:
    return value.value if isinstance(value, When) else value


def _on(condition: str, lines: list[str], indent: int) -> Iterator[str]:
    pad = " " * indent
    yield from (
        [f"{pad}{{{{- if {condition} }}}}", *lines, f"{pad}{{{{- end }}}}"] if condition else lines
    )


def _item(item: Any, indent: int) -> Iterator[str]:
    """A list item; a mapping begins with an entry that is always there."""
    if isinstance(item, Items):
        pad = " " * indent
        yield f"{pad}{{{{- range {item.value} }}}}"
        yield f"{pad}- {{{{ . | quote }}}}"
        yield f"{pad}{{{{- end }}}}"
        return
    if not isinstance(item, dict) or not item:
        yield f"{' ' * indent}- {_scalar(item)}"
        return
    first, *rest = _mapping(item, indent + _STEP)
    yield f"{' ' * indent}- {first.lstrip()}"
    yield from rest


def _scalar(value: Any) -> str:
    if isinstance(value, Expr):
        return f"{{{{ {value.text} }}}}"
    if isinstance(value, Either):
        then, otherwise = _scalar(value.then), _scalar(value.otherwise)
        return f"{{{{ if {value.condition} }}}}{then}{{{{ else }}}}{otherwise}{{{{ end }}}}"
    if isinstance(value, str) and ("\n" in value or len(value) > 1000):
        return _escaped(json.dumps(value, ensure_ascii=False))
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return _escaped(text.removesuffix("\n").removesuffix("\n..."))


def _escaped(text: str) -> str:
    """Braces of others' templates, as Helm writes them."""
    return text.replace("{{", '{{ "{{" }}')
