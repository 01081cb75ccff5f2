"""Parts of the daemon that run while a feature gate is on, which may change at any time."""

import asyncio
from collections.abc import Callable

from koord.component.components import Part
from koord.component.features import FeatureGates
from koord.component.tasks import Run
from koord.util.clock import Clock
from koord.util.firstof import first_of
from koord.util.health import OK, HealthCheck, PartHealth, Status
from koord.util.stop import Stop


class Gated:
    """Starts the part when the gate is switched on, and stops it when it is switched off."""

    def __init__(
        self, gates: FeatureGates, gate: str, clock: Clock, run: Run, health: HealthCheck
    ) -> None:
        self._gates = gates
        self._gate = gate
        self._clock = clock
        self._run = run
        self._health = health
        self._switched = asyncio.Event()
        gates.subscribe(lambda changed: self._switched.set() if gate in changed else None)

    def health(self) -> PartHealth:
        """The part's health; a part that is off is well."""
        return self._health() if self._is_on else OK

    async def run(self, stop: Stop) -> None:
        """Follow the gate until stop. Raises what the part raises."""
        while not stop.is_set():
            self._switched.clear()
            if self._is_on:
                await self._run_until_switched(stop)
            else:
                await self._until_switched(stop)

    @property
    def _is_on(self) -> bool:
        return self._gates.enabled(self._gate)

    async def _run_until_switched(self, stop: Stop) -> None:
        own = Stop(self._clock)
        part = asyncio.ensure_future(self._run(own))
        try:
            await first_of(part, self._until_switched(stop))
            own.set()
            await part
        finally:
            part.cancel()  # does nothing to a part that has ended
            await asyncio.wait({part})

    async def _until_switched(self, stop: Stop) -> None:
        await first_of(self._switched.wait(), stop.wait())


class Late:
    """A part whose code is loaded when it runs for the first time: off it costs nothing."""

    def __init__(self, make: Callable[[], Part]) -> None:
        """make imports and makes the part."""
        self._make = make
        self._part: Part | None = None

    async def run(self, stop: Stop) -> None:
        """Run the part until stop."""
        if self._part is None:
            self._part = self._make()
        await self._part.run(stop)

    def health(self) -> PartHealth:
        """The part's health; one that has not run yet is well."""
        return OK if self._part is None else self._part.health()


class Lacking:
    """Stands for a part that cannot run here; its health says why."""

    def __init__(self, problem: str) -> None:
        self._problem = problem

    async def run(self, stop: Stop) -> None:
        """Wait for stop."""
        await stop.wait()

    def health(self) -> PartHealth:
        """Degraded."""
        return PartHealth(Status.DEGRADED, self._problem)
