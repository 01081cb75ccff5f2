"""Health that a plugin reports of itself: what it works without."""

from collections.abc import Mapping

MOST_REASON = 200  # characters of one reason
MOST_PARTS = 8  # of a plugin that report something at a time


class SelfReport:
    """Reasons why one plugin works with less, one for each of its parts. For any thread."""

    def __init__(self) -> None:
        self._reasons: Mapping[str, str] = {}  # replaced as a whole

    @property
    def text(self) -> str:
        """All reasons in one line; "" for none."""
        return "; ".join(self._reasons.values())

    def degrade(self, reason: str, part: str) -> None:
        """As ExtensionPlugin.degrade."""
        others = {name: text for name, text in self._reasons.items() if name != part}
        if not reason:
            self._reasons = others
        elif len(others) < MOST_PARTS:
            self._reasons = {**others, part: _bounded(reason)}

    def clear(self) -> None:
        """Forget all reasons: the run that reported them is over."""
        self._reasons = {}


def _bounded(reason: str) -> str:
    """One line of printable text."""
    text = "".join(c if c.isprintable() else " " for c in str(reason)[: 2 * MOST_REASON])
    return text if len(text) <= MOST_REASON else text[: MOST_REASON - 1] + "…"
