"""Sections of the status page, and which of them a reader has not seen yet."""

import asyncio
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

from koord.util.clock import Clock
from koord.util.health import Health, worst

PageData = Mapping[str, Any]
"""As JSON: {"now": Unix seconds, "sections": {name: value}}, with "whole": true if it is all."""


class PageSource(Protocol):
    """One daemon's data. It is asked only while a page is open, on the event loop."""

    @property
    def title(self) -> str: ...  # of the page

    @property
    def view(self) -> str: ...  # the file that draws the sections, of those given to add_page

    async def snapshot(self) -> PageData:
        """Return everything."""
        ...

    async def changes(self, since: float) -> PageData:
        """Return the sections that changed after the response whose "now" was since."""
        ...

    async def detail(self, kind: str, name: str) -> Mapping[str, Any] | None:
        """Return more about one thing that was clicked; None: there is none of that name."""
        ...


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


FRESH = 0.9  # seconds for which what was read serves another page as well
CURSORS = 64  # answers whose readers can go on from them; at most 8 pages look

Cursor = TypeVar("Cursor")


class Sections:
    """The sections as read last, and the version with which each changed."""

    def __init__(self) -> None:
        self.version = 0
        self._values: dict[str, Any] = {}
        self._changed: dict[str, int] = {}

    def take(self, sections: Mapping[str, Any]) -> None:
        """Take over what was read; the others stay."""
        self.version += 1
        for name, value in sections.items():
            if name not in self._values or self._values[name] != value:
                self._values[name] = value
                self._changed[name] = self.version

    def after(self, version: int) -> dict[str, Any]:
        """Those that changed after a version; after 0 all."""
        return {name: self._values[name] for name, at in self._changed.items() if at > version}


class Cursors(Generic[Cursor]):
    """How far the readers of the last responses are, by the "now" of each response."""

    def __init__(self) -> None:
        self._cursors: OrderedDict[float, Cursor] = OrderedDict()

    def remember(self, wall: float, cursor: Cursor) -> float:
        """Return the "now" of a response at so many Unix seconds, which no other response has."""
        now = round(wall, 3)
        while now in self._cursors:
            now = round(now + 0.001, 3)
        self._cursors[now] = cursor
        if len(self._cursors) > CURSORS:
            self._cursors.popitem(last=False)
        return now

    def get(self, now: float) -> Cursor | None:
        """The cursor of a response; None: it is forgotten."""
        return self._cursors.get(now)

    def clear(self) -> None:
        self._cursors.clear()


class SectionPage(ABC):
    """A PageSource all of whose sections come whole, and are read only when a page asks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sections = Sections()
        self._cursors: Cursors[int] = Cursors()
        self._reading = asyncio.Lock()
        self._read_at = float("-inf")  # monotonic time

    @abstractmethod
    async def _read(self) -> Mapping[str, Any]:
        """Return the sections as they are now; one that is missing stays as it was."""

    async def snapshot(self) -> PageData:
        """Return all sections, refreshed."""
        await self._refresh()
        return self._all()

    async def changes(self, since: float) -> PageData:
        """Return the sections that changed after the response whose "now" was since; else all."""
        await self._refresh()
        version = self._cursors.get(since)
        if version is None:
            return self._all()
        return {"now": self._now(), "sections": self._sections.after(version)}

    async def _refresh(self) -> None:
        """Read the sections, unless another page has just had them read."""
        async with self._reading:
            now = self._clock.monotonic()
            if now - self._read_at >= FRESH:
                self._read_at = now
                self._sections.take(await self._read())

    def _all(self) -> PageData:
        return {"now": self._now(), "sections": self._sections.after(0), "whole": True}

    def _now(self) -> float:
        return self._cursors.remember(self._clock.wall(), self._sections.version)
