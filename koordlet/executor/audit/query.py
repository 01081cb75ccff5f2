"""The latest events that match a query, for `koordletctl audit`."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from koord.util.errors import OptionError
from koordlet.executor.audit.reader import AuditReader

DEFAULT, MOST = 50, 2048  # events in an answer
MOST_LINES = 200_000  # looked at for it; the whole log has about as many


def parse_query(given: Mapping[str, str]) -> "AuditQuery":
    """Return the query of a URL's parameters: lines, pod, reason.

    Raises:
        OptionError: lines is no number, or too large.
    """
    text = given.get("lines", str(DEFAULT))
    most = int(text) if text.isdecimal() and len(text) < 10 else 0
    return AuditQuery(most=most, pod=given.get("pod", ""), reason=given.get("reason", ""))


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditQuery:
    """Which events: the latest so many, of this pod (namespace/name or name) and reason."""

    most: int = DEFAULT
    pod: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.most <= MOST:
            raise OptionError("lines", self.most, f"use 1 to {MOST}")

    def find(self, directory: Path) -> list[dict[str, Any]]:
        """Return the events, latest last. Blocks: not for the event loop."""
        found: list[dict[str, Any]] = []
        with closing(AuditReader(directory)) as reader:
            for event in reader.events(MOST_LINES):
                if self._matches(event):
                    found.append(event)
                    if len(found) == self.most:
                        break
        return found[::-1]

    def _matches(self, event: Mapping[str, Any]) -> bool:
        name = event.get("name", "")
        about = (name, f"{event.get('namespace', '')}/{name}")
        return (not self.pod or self.pod in about) and self.reason in ("", event.get("reason"))
