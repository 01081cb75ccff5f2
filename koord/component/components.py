"""The background components of a daemon, and their health."""

from typing import Protocol

from koord.component.tasks import Run
from koord.util.health import Health, PartHealth
from koord.util.stop import Stop


class Part(Protocol):
    """Something that runs until stop, and knows its health."""

    async def run(self, stop: Stop) -> None: ...

    def health(self) -> PartHealth: ...


class ComponentSet:
    """Names what runs supervised, from before the plugins until after, and watches its health."""

    def __init__(self, health: Health) -> None:
        self.health = health
        self.runs: dict[str, Run] = {}

    def add(self, name: str, part: Part | None, *, live: bool = False, ready: bool = False) -> None:
        """Take a part in; None: this daemon has none. live and ready as in Health.register."""
        if part is not None:
            self.health.register(name, part.health, live=live, ready=ready)
            self.runs[name] = part.run
