"""Text from outside without characters that steer what shows it.

Names of pods, messages of other programs and lines of files may hold control characters (C0, C1),
which move a terminal's cursor or forge a line, and format characters (bidi, zero width), which show
another text than the one that is there.
"""

import json
import re
from collections.abc import Callable

_SUSPECT = re.compile(r"[^\x20-\x7e]")
_SUSPECT_IN_JSON = re.compile(r"[^\x20-\x7e\n]")


def printable(text: object) -> str:
    r"""Return the text with such characters escaped: "\x1b", "\u202e", "\n"."""
    return _SUSPECT.sub(_escaped, str(text))


def printable_json(
    value: object,
    indent: int | None = None,
    *,
    default: Callable[[object], object] | None = None,
) -> str:
    r"""Return a value as JSON, with such characters as "\u202e", which says the same.

    default makes something of what JSON does not know; without it that raises TypeError.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=default)
    return _SUSPECT_IN_JSON.sub(_escaped_in_json, text)


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    return char if char.isprintable() else char.encode("unicode_escape").decode("ascii")


def _escaped_in_json(found: re.Match[str]) -> str:
    char = found[0]
    return char if char.isprintable() else json.dumps(char)[1:-1]
