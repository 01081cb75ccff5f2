"""The values of the chart: default, meaning and form of each, in the order of values.yaml."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from reference.markdown import code, table

Schema = Mapping[str, object]

BOOLEAN: Schema = {"type": "boolean"}
TEXT: Schema = {"type": "string"}
TEXTS: Schema = {"type": "array", "items": TEXT}
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 100}
OBJECT: Schema = {"type": "object"}
OBJECTS: Schema = {"type": "array", "items": OBJECT}
AFFINITY: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "nodeAffinity": OBJECT,
        "podAffinity": OBJECT,
        "podAntiAffinity": OBJECT,
    },
}
NODE_AFFINITY: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "requiredDuringSchedulingIgnoredDuringExecution": OBJECT,
        "preferredDuringSchedulingIgnoredDuringExecution": OBJECTS,
    },
}
LABELS: Schema = {"type": "object", "additionalProperties": TEXT}
LEVEL: Schema = {
    "type": ["string", "integer"],  # --set makes a number of it
    "pattern": "^([0-9]{1,2})?$",
    "minimum": 0,
    "maximum": 99,
}
NAME: Schema = {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"}
DIGEST: Schema = {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}
PULL_POLICY: Schema = {"type": "string", "enum": ["Always", "IfNotPresent", "Never"]}

CELL_WORDS = 36


@dataclass(frozen=True, slots=True)
class Value:
    """One value. path: names with dots between them."""

    path: str
    default: Any
    meaning: str
    schema: Schema


def values_file(values: Iterable[Value]) -> str:
    """values.yaml, with the meaning of each value above it."""
    lines = ["# Written by `make docs` from docs/reference/chart; copy what you change."]
    open_groups: list[str] = []
    for value in values:
        *groups, name = value.path.split(".")
        common = 0
        while open_groups[: common + 1] == groups[: common + 1] and common < len(groups):
            common += 1
        for depth in range(common, len(groups)):
            lines += [""] * (depth == 0) + [f"{'  ' * depth}{groups[depth]}:"]
        pad = "  " * len(groups)
        open_groups = groups
        text = yaml.safe_dump(
            {name: value.default}, sort_keys=False, width=1000, allow_unicode=True
        )
        lines += [""] * (not groups)
        lines += [f"{pad}# {line}" for line in value.meaning.splitlines()]
        if isinstance(value.default, str) and "\n" in value.default:
            text = f"{name}: |\n" + "".join(
                f"  {line}\n" for line in value.default.removesuffix("\n").split("\n")
            )
        lines += [f"{pad}{line}".rstrip() for line in text.splitlines()]
    return "\n".join(lines) + "\n"


def values_schema(values: Iterable[Value]) -> dict[str, object]:
    """A JSON schema that refuses what is not there."""
    root = _group()
    for value in values:
        at = root
        *groups, name = value.path.split(".")
        for group in groups:
            at = at["properties"].setdefault(group, _group())
        description = " ".join(value.meaning.split())
        at["properties"][name] = {**value.schema, "description": description}
    root["properties"]["global"] = dict(OBJECT)  # which Helm adds
    return {"$schema": "http://json-schema.org/draft-07/schema#", **root}


def values_table(values: Iterable[Value]) -> str:
    """For the page: a cell has at most CELL_WORDS words of a meaning, the rest stands below."""
    rows, notes = [], []
    for each in values:
        cell, rest = _split(" ".join(each.meaning.split()))
        rows.append(
            (code(each.path), _shown(each.default), cell + " See [Notes](#notes)." * bool(rest))
        )
        notes += [f"* **{code(each.path)}** {rest}"] * bool(rest)
    found = table(("Value", "Default", "Meaning"), rows)
    return f"{found}\n\n### Notes\n\n" + "\n".join(notes) if notes else found


def _split(meaning: str) -> tuple[str, str]:
    """Return the first sentences that a cell holds, and the others."""
    first, *others = re.split(r'(?<=\.) (?=[A-Z/"])', meaning)
    while others and len(f"{first} {others[0]}".split()) <= CELL_WORDS:
        first = f"{first} {others.pop(0)}"
    return first, " ".join(others)


def _group() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def _shown(default: Any) -> str:
    if isinstance(default, str) and "\n" in default:
        return "a configuration"
    text = yaml.safe_dump(default, default_flow_style=True, width=10**6, sort_keys=False)
    return code(text.removesuffix("\n").removesuffix("\n..."))
