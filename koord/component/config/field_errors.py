"""Field errors of a component config, with paths as in Kubernetes' field.Error."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from koord.util import goformat
from koord.util.errors import KoordError
from koord.util.text import nearest, printable

_LONGEST = 120  # characters of a value that a message shows
_SHOWN = 20  # faults that a message lists


class Key(str):
    """The key of a map with free keys: a path has it in brackets."""

    __slots__ = ()


FieldPath = tuple[str | int, ...]
"""A field of a document: names of fields, indices of lists, and Keys of maps with free keys."""


def path_text(path: FieldPath) -> str:
    """Return a path for messages: "profiles[0].nodeSelector", "highThresholds[cpu]"."""
    text = ""
    for step in path:
        if isinstance(step, int | Key):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return printable(text)


@dataclass(frozen=True, slots=True)
class FieldError:
    """One fault of one field; as a warning it does not reject the document."""

    path: FieldPath
    text: str
    line: int = 0  # of the file, from 1; 0: not known
    is_warning: bool = False

    def below(self, prefix: FieldPath) -> "FieldError":
        """The same fault in a document that has this one at prefix."""
        return replace(self, path=prefix + self.path)

    def __str__(self) -> str:
        place = path_text(self.path)
        return f"{place}: {self.text}" if place else self.text


def invalid(path: FieldPath, found: object, wanted: str) -> FieldError:
    """A value that cannot be used."""
    return FieldError(path, f"Invalid value: {_shown(found)}: {wanted}")


def invalid_duration(path: FieldPath, seconds: float, wanted: str) -> FieldError:
    """A duration that cannot be used."""
    return invalid(path, goformat.format_duration(seconds), wanted)


def required(path: FieldPath, hint: str = "") -> FieldError:
    """A field that must have a value."""
    return FieldError(path, f"Required value: {hint}" if hint else "Required value")


def duplicate(path: FieldPath, found: object) -> FieldError:
    """A value that another item of the same list has."""
    return FieldError(path, f"Duplicate value: {_shown(found)}")


def unsupported(path: FieldPath, found: object, supported: Iterable[str]) -> FieldError:
    """A text that is none of the supported ones."""
    words = ", ".join(f'"{word}"' for word in supported)
    return FieldError(path, f"Unsupported value: {_shown(found)}: supported values: {words}")


def unknown_field(path: FieldPath, known: Iterable[str] = ()) -> FieldError:
    """A field that its object does not have; known are those that it could have, for a hint."""
    close = nearest(str(path[-1]), known)
    hint = f'; did you mean "{close}"?' if close else ""
    return FieldError(path, f'unknown field "{printable(path[-1])}"{hint}')


def duplicate_field(path: FieldPath, line: int, first: int) -> FieldError:
    """A field that its object has twice, on these lines."""
    return FieldError(
        path, f'duplicate field "{printable(path[-1])}": it is on line {first}, too', line
    )


def warning(path: FieldPath, text: str) -> FieldError:
    """A value that is accepted, but is probably a mistake."""
    return FieldError(path, text, is_warning=True)


def independent(faults: Iterable[FieldError], earlier: Iterable[FieldError]) -> list[FieldError]:
    """The faults that are not about a field that could not be read, so that it has its default."""
    unread = {fault.path for fault in earlier}
    around = {path[:length] for path in unread for length in range(len(path))}
    return [
        fault
        for fault in faults
        if fault.path not in around
        and not any(fault.path[:length] in unread for length in range(len(fault.path) + 1))
    ]


class InvalidConfig(KoordError):
    """A component config with faults, all of which it has."""

    def __init__(self, path: Path, faults: Sequence[FieldError]) -> None:
        lines = [_located(path, fault) for fault in faults[:_SHOWN]]
        if len(faults) > _SHOWN:
            lines.append(f"and {len(faults) - _SHOWN} more")
        super().__init__("; ".join(lines))
        self.faults = tuple(faults)


def _located(path: Path, fault: FieldError) -> str:
    return f"{path}:{fault.line}: {fault}" if fault.line else f"{path}: {fault}"


def _shown(found: object) -> str:
    """A value as JSON, shortened; texts in quotes."""
    try:
        text = json.dumps(found, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        text = f"a {type(found).__name__}"
    text = text.encode("utf-8", "backslashreplace").decode()
    return printable(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")
