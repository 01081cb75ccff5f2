"""docs/descheduler-configuration.md."""

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
from koord.component.config.typed import Int32, Seconds, UInt, UInt32, json_key, to_json
from koord_descheduler.config.convert import DEFAULT_PLUGINS
from koord_descheduler.config.intree import IN_TREE
from koord_descheduler.config.pluginargs.migration import EvictionGate, Rate
from koord_descheduler.config.v1alpha2 import (
    ClientConnection,
    DeschedulerConfiguration,
    DeschedulerProfile,
    EvictionLedger,
    LeaderElection,
    PluginConfig,
    Plugins,
    PluginSet,
)
from reference.markdown import code, codes, page, sentence, table

_INTRO = """
The file of `--config`: `apiVersion: descheduler/v1alpha2`, `kind: DeschedulerConfiguration`, YAML
or JSON, at most 64 KiB, without aliases. Koordinator's is taken as it is.

Durations are Go's, as texts: `300ms`, `10s`, `1h30m`. Percentages are numbers, not texts. null is
as good as an absent field. The case of keys matters. An unknown field, one that is there twice,
or a bad value refuses the file; all that is wrong is reported, with line, path, value and what
was wanted:

```
config.yaml:7: profiles[0].pluginConfig[0].args.nodeFit: Invalid value: 1: wanted true or false
```

Accepted, with a warning, is what is hardly meant: arguments of a plugin that is not enabled, or
no interval.
"""
_PLUGINS = """
A profile changes the default plugins of an extension point: `disabled` takes defaults out (`*`:
all), `enabled` adds plugins, in their order. What is in both is enabled. There is one evict
plugin; to use another, disable the default.
"""
_ARGS = """
`pluginConfig` has one entry for a plugin, `name` and `args`. A plugin without entry has its
defaults. `apiVersion` and `kind` (`<plugin>Args`) may be given.
"""
_ADAPTED = """
Adapted from the Kubernetes descheduler. As there, the case of keys does not matter, and an
unknown field is ignored, with a warning.
"""
_RELOAD = """
The file is read again when it has changed. At the next cycle take effect: profiles, their plugins
and arguments (a plugin gets a new instance when its arguments change, or its profile's
`nodeSelector` or dry-run; the others keep their state), `deschedulingInterval`, `dryRun`,
`nodeSelector`, `evictionLedger` and the limits. A restart need: `leaderElection`,
`clientConnection`, the addresses, profiling. A file that cannot be used changes nothing.
"""
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


def descheduler_page() -> str:
    """The page."""
    profile = (DeschedulerProfile, PluginConfig, Plugins, PluginSet)
    return page(
        "The descheduler's configuration",
        _INTRO,
        "## Process",
        *_sections(DeschedulerConfiguration, LeaderElection, ClientConnection, EvictionLedger),
        "## Profiles",
        *_sections(*profile),
        _PLUGINS,
        _default_plugins(),
        "## Arguments of plugins",
        _ARGS,
        *_plugins(strict=True),
        f"`skipEvictionGates` are {codes(EvictionGate)}.",
        "## Arguments of adapted plugins",
        _ADAPTED,
        *_plugins(strict=False),
        "## Reading it again",
        _RELOAD,
    )


def _default_plugins() -> str:
    rows = (
        [code(f"plugins.{point}"), codes(names) or "none", codes(_at(point))]
        for point, names in DEFAULT_PLUGINS.items()
    )
    return table(["Extension point", "By default", "Plugins"], rows)


def _at(point: str) -> list[str]:
    return [name for name, plugin in IN_TREE.items() if point in plugin.points]


def _plugins(*, strict: bool) -> Iterator[str]:
    for name, plugin in IN_TREE.items():
        if plugin.args is not None and plugin.args.strict is strict:
            yield f"### {name}"
            yield from _tables(plugin.args.cls)


def _sections(*classes: type[Any]) -> Iterator[str]:
    for cls in classes:
        yield f"### {cls.__name__}"
        yield from (_description(cls), _table(cls, ""))


def _tables(cls: type[Any]) -> Iterator[str]:
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
