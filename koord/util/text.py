"""Text for people: printable text, suggestions for mistyped names, snake_case names."""

import json
import re
from collections.abc import Callable, Iterable

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


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name most like the given one, upper or lower case; "" when none is known."""
    import difflib  # only mistakes need it

    names = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.0)
    return names[found[0]] if found else ""


def snake_case(name: str) -> str:
    """PressureWatch -> pressure_watch, CPUBurst -> cpu_burst, NetworkQoS -> network_qos."""
    name = name.replace("QoS", "Qos")  # one word
    words = re.sub(r"([A-Z]+)([A-Z][a-z])|([a-z0-9])([A-Z])", r"\1\3_\2\4", name)
    return re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")
