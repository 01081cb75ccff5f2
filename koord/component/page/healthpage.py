"""The page of a daemon that shows its health alone."""

from collections.abc import Mapping
from typing import Any

from koord.component.page.source import Answer
from koord.util.clock import Clock
from koord.util.health import Health, worst


def health_section(health: Health) -> Mapping[str, object]:
    """The state of the whole and of each part."""
    parts = health.parts()
    return {
        "status": worst(parts).value,
        "parts": [
            {"name": name, "status": part.status.value, "reason": part.reason}
            for name, part in parts.items()
        ],
    }


class HealthPage:
    """The source of it."""

    view = "health.js"

    def __init__(self, title: str, health: Health, clock: Clock) -> None:
        self.title = title
        self._health = health
        self._clock = clock
        self._seen: Mapping[str, object] = {}
        self._changed = 0.0  # when it was seen to be another one

    async def snapshot(self) -> Answer:
        """All of it is one section."""
        now = self._look()
        return {"now": now, "sections": {"health": self._seen}, "whole": True}

    async def changes(self, since: float) -> Answer:
        """Nothing, mostly."""
        now = self._look()
        sections = {"health": self._seen} if self._changed > since else {}
        return {"now": now, "sections": sections}

    def _look(self) -> float:
        found, now = health_section(self._health), self._clock.wall()
        if found != self._seen:
            self._seen, self._changed = found, now
        return now

    async def detail(self, kind: str, name: str) -> Mapping[str, Any] | None:
        """There is no more."""
        return None
