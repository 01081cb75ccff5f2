"""Sections of a page that come whole: which of them a reader has not seen yet."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from koord.component.page.source import Answer
from koord.util.clock import Clock

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
    """How far the readers of the last answers are, by the "now" of each answer."""

    def __init__(self) -> None:
        self._cursors: OrderedDict[float, Cursor] = OrderedDict()

    def remember(self, wall: float, cursor: Cursor) -> float:
        """Return the "now" of an answer at so many Unix seconds, which no other answer has."""
        now = round(wall, 3)
        while now in self._cursors:
            now = round(now + 0.001, 3)
        self._cursors[now] = cursor
        if len(self._cursors) > CURSORS:
            self._cursors.popitem(last=False)
        return now

    def get(self, now: float) -> Cursor | None:
        """The cursor of an answer; None: it is forgotten."""
        return self._cursors.get(now)

    def clear(self) -> None:
        self._cursors.clear()


class SectionReader:
    """Answers for a page all of whose sections come whole."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sections = Sections()
        self._cursors: Cursors[int] = Cursors()

    def take(self, sections: Mapping[str, Any]) -> None:
        """As Sections.take."""
        self._sections.take(sections)

    def all(self) -> Answer:
        """As PageSource.snapshot."""
        return {"now": self._now(), "sections": self._sections.after(0), "whole": True}

    def since(self, now: float) -> Answer:
        """As PageSource.changes."""
        version = self._cursors.get(now)
        if version is None:
            return self.all()
        return {"now": self._now(), "sections": self._sections.after(version)}

    def _now(self) -> float:
        return self._cursors.remember(self._clock.wall(), self._sections.version)
