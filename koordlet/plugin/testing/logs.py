"""Captured logs of a plugin, as data."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One log event of a plugin."""

    level: str
    event: str
    facts: dict[str, Any]


class CapturedLog:
    """A plugin's logger (koordlet.plugin.Log) that keeps all events."""

    def __init__(self) -> None:
        self.events: list[LogEvent] = []

    def debug(self, event: str, **facts: Any) -> None:
        self.events.append(LogEvent("debug", event, facts))

    def info(self, event: str, **facts: Any) -> None:
        self.events.append(LogEvent("info", event, facts))

    def warning(self, event: str, **facts: Any) -> None:
        self.events.append(LogEvent("warning", event, facts))

    def error(self, event: str, **facts: Any) -> None:
        self.events.append(LogEvent("error", event, facts))

    def exception(self, event: str, **facts: Any) -> None:
        self.events.append(LogEvent("error", event, facts))

    def named(self, event: str) -> list[dict[str, Any]]:
        """The facts of all events of that name, oldest first."""
        return [entry.facts for entry in self.events if entry.event == event]

    def clear(self) -> None:
        self.events.clear()
