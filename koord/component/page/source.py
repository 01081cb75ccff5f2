"""What a daemon shows on its status page."""

from collections.abc import Mapping
from typing import Any, Protocol

Answer = Mapping[str, Any]
"""As JSON: {"now": Unix seconds, "sections": {name: value}}, with "whole": true if it is all."""


class PageSource(Protocol):
    """One daemon's data. It is asked only while somebody looks, on the event loop."""

    @property
    def title(self) -> str: ...  # of the page

    @property
    def view(self) -> str: ...  # the file that draws the sections, of those given to add_page

    async def snapshot(self) -> Answer:
        """Return everything."""
        ...

    async def changes(self, since: float) -> Answer:
        """Return the sections that changed after the answer whose "now" was since."""
        ...

    async def detail(self, kind: str, name: str) -> Mapping[str, Any] | None:
        """Return more about one thing that was clicked; None: there is none of that name."""
        ...
