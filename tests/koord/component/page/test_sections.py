"""Which sections a reader gets: all at first, then those that changed."""

import asyncio
from collections.abc import Mapping
from typing import Any

from koord.component.page.sections import CURSORS, SectionPage
from koord.util.simulatedclock import SimulatedClock


class Page(SectionPage):
    """One whose sections a test sets."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        super().__init__(self.clock)
        self.reads = 0
        self.now: dict[str, Any] = {}

    def set(self, **sections: Any) -> None:
        """Have these from now on; they are read with the next look."""
        self.now = sections
        self.clock.tick(1.0)

    async def _read(self) -> Mapping[str, Any]:
        self.reads += 1
        await asyncio.sleep(0)
        return dict(self.now)


async def test_each_reader_gets_what_changed_since_its_own_last_answer() -> None:
    page = Page()
    page.set(a=1, b=[1])
    first = await page.snapshot()
    assert first["whole"] is True
    assert first["sections"] == {"a": 1, "b": [1]}

    page.set(a=1, b=[1, 2])
    second = await page.changes(first["now"])
    page.set(a=3)

    assert second["sections"] == {"b": [1, 2]}
    assert "whole" not in second
    assert (await page.changes(second["now"]))["sections"] == {"a": 3}
    assert (await page.changes(first["now"]))["sections"] == {"a": 3, "b": [1, 2]}


async def test_a_reader_that_was_forgotten_gets_everything() -> None:
    page = Page()
    page.set(a=1)
    first = await page.snapshot()
    for _ in range(CURSORS):
        page.clock.tick(1.0)
        await page.snapshot()
    again = await page.changes(first["now"])
    assert (again["whole"], again["sections"]) == (True, {"a": 1})


async def test_answers_of_one_moment_have_different_names() -> None:
    page = Page()
    page.set(a=1)
    first = await page.snapshot()
    assert (await page.changes(first["now"]))["now"] != first["now"]


async def test_many_pages_have_the_sections_read_once() -> None:
    page = Page()
    page.set(a=1)
    answers = await asyncio.gather(*(page.snapshot() for _ in range(8)))
    assert [each["sections"] for each in answers] == [{"a": 1}] * 8
    assert page.reads == 1
    page.clock.tick(1.0)
    await page.snapshot()
    assert page.reads == 2
