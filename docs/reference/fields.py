"""Tables of the fields of configurations, from their dataclasses and the comments in them."""

import ast
import dataclasses
import inspect
import io
import json
import textwrap
import tokenize
import types
import typing
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, cast

from koord.api.labelselector import LabelSelector
from koord.component.config.componentconfig import Int32, Seconds, UInt, UInt32, json_key, to_json
from koord_descheduler_plugins.migration.args import Rate
from reference.markdown import code, sentence, table

_NAMES: Mapping[Any, str] = {
    bool: "bool",
    int: "int64",
    float: "number",
    str: "text",
    object: "object",
    Seconds: "duration",
    Int32: "int32",
    UInt: "uint",
    UInt32: "uint32",
    Rate: "number or text",
    LabelSelector: "label selector",
    int | str: "number or percent",
}


def sections(*classes: type[Any]) -> Iterator[str]:
    """A heading and a table for each class."""
    for cls in classes:
        yield f"### {cls.__name__}"
        yield from (_description(cls), _table(cls, ""))


def tables(cls: type[Any]) -> Iterator[str]:
    """Describe a class, with a table of its fields and those of the objects in it."""
    yield _description(cls)
    yield _table(cls, "", nested=True)


def _description(cls: type[Any]) -> str:
    """The first paragraphs of the class's docstring."""
    return sentence(inspect.getdoc(cls) or "")


def _table(cls: type[Any], prefix: str, *, nested: bool = False) -> str:
    return table(["Field", "Type", "Default", "Meaning"], _rows(cls, prefix, nested=nested))


def _rows(cls: type[Any], prefix: str, *, nested: bool) -> Iterator[list[str]]:
    hints = typing.get_type_hints(cls, include_extras=True)
    meanings = _comments(cls)
    written = cast(Mapping[str, object], to_json(cls()))
    for field in dataclasses.fields(cls):
        key = f"{prefix}{json_key(field)}"
        hint = _without_none(hints[field.name])
        default = _default(written, json_key(field), hint)
        yield [code(key), _type(hint), default, sentence(meanings.get(field.name, ""))]
        inner, mark = _inner(hint)
        if nested and inner is not None:
            yield from _rows(inner, f"{key}{mark}.", nested=True)


def _inner(hint: Any) -> tuple[type[Any] | None, str]:
    """The dataclass in a field of an object, list or map, and how the path goes on."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        hint, mark = arguments[0], "[]"
    elif typing.get_origin(hint) is Mapping:
        hint, mark = arguments[1], "[KEY]"
    else:
        mark = ""
    return (hint if dataclasses.is_dataclass(hint) and hint is not LabelSelector else None), mark


def _type(hint: Any) -> str:
    for known, name in _NAMES.items():
        if hint == known:
            return name
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return f"list of {_type(arguments[0])}"
    if typing.get_origin(hint) is Mapping:
        return f"map of {_type(arguments[1])}"
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return " or ".join(map(code, hint))
    return "object"


def _default(written: Mapping[str, object], key: str, hint: Any) -> str:
    """The default as it is written; nothing for what is not set, empty, or has its own rows."""
    value = written.get(key)
    if value in (None, "") or dataclasses.is_dataclass(hint):
        return ""
    return code(value if isinstance(value, str) else json.dumps(value))


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) is Annotated or hint == int | str:
        return hint
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint
    rest = [part for part in typing.get_args(hint) if part is not types.NoneType]
    return rest[0] if len(rest) == 1 else int | str


def _comments(cls: type[Any]) -> dict[str, str]:
    """The comment beside each field of a dataclass, by the field's name."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            found |= _comments_of(base)
    return found


def _comments_of(cls: type[Any]) -> dict[str, str]:
    """Those of the fields that a class has itself."""
    source = textwrap.dedent(inspect.getsource(cls))
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and not token.string.startswith("# noqa")
    }
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)  # noqa: S101
    return {
        line.target.id: " ".join(
            comments[at] for at in range(line.lineno, (line.end_lineno or 0) + 1) if at in comments
        )
        for line in body.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }
