"""The known name that a mistyped one most resembles."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name most like the given one, upper or lower case; "" when none is known."""
    names = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.0)
    return names[found[0]] if found else ""
