"""A page that shows the health of a daemon alone."""

from collections.abc import Mapping
from typing import Any

from koord.component.page.health import health_section
from koord.component.page.sections import SectionReader
from koord.component.page.source import Answer
from koord.util.clock import Clock
from koord.util.health import Health


class HealthPage:
    """The source of it."""

    view = "health.js"

    def __init__(self, title: str, health: Health, clock: Clock) -> None:
        self.title = title
        self._health = health
        self._reader = SectionReader(clock)

    async def snapshot(self) -> Answer:
        """All of it is one section."""
        self._look()
        return self._reader.all()

    async def changes(self, since: float) -> Answer:
        """Nothing, mostly."""
        self._look()
        return self._reader.since(since)

    async def detail(self, kind: str, name: str) -> Mapping[str, Any] | None:
        """There is no more."""
        return None

    def _look(self) -> None:
        self._reader.take({"health": health_section(self._health)})
