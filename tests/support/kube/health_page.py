"""A page that shows the health of a daemon alone."""

from collections.abc import Mapping
from typing import Any

from koord.component.page.sections import SectionPage, health_section
from koord.util.clock import Clock
from koord.util.health import Health


class HealthPage(SectionPage):
    """The source of it."""

    view = "health.js"

    def __init__(self, title: str, health: Health, clock: Clock) -> None:
        super().__init__(clock)
        self.title = title
        self._health = health

    async def detail(self, kind: str, name: str) -> Mapping[str, Any] | None:
        """There is no more."""
        return None

    async def _read(self) -> Mapping[str, Any]:
        return {"health": health_section(self._health)}
