"""Never two leaders at a time: candidates with clocks of their own, and a server full of faults."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from koord.component.leaderelection import ElectionConfig, LeaderElector, LeaderMetrics, LeaseLost
from koord.kube.client import LEASES
from koord.kube.errors import Unreachable, api_error
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop
from tests.support.kube.object_store import Object, ObjectStore, Refused

COLLECTION, KEY = LEASES.collection(), "ns/lease"
SECONDS = 240
FAULTS = ("ok", "ok", "ok", "slow", "late", "lost", "unsent", "500", "409", "hang")


class SkewedClock:
    """A machine's clock: its wall time is off, its other times are the test's."""

    def __init__(self, base: SimulatedClock, offset: float) -> None:
        self._base, self._offset = base, offset

    def wall(self) -> float:
        return self._base.wall() + self._offset

    def monotonic(self) -> float:
        return self._base.monotonic()

    def boottime(self) -> float:
        return self._base.boottime() + self._offset * 7

    async def sleep(self, seconds: float) -> None:
        await self._base.sleep(seconds)

    def timer(self, seconds: float) -> "asyncio.Future[None]":
        return self._base.timer(seconds)


class FaultyLeases:
    """The server as one candidate reaches it: each request has the next fault of the list.

    slow: stored after 4 s. late: stored at once, answered after 4 s. lost: stored, no response.
    Within the cuts (from and to, in seconds of the test) nothing comes through.
    """

    def __init__(
        self,
        store: ObjectStore,
        clock: SimulatedClock,
        faults: list[str],
        cuts: list[tuple[int, int]],
    ) -> None:
        self._store, self._clock, self._faults = store, clock, iter(faults)
        self._cuts, self._began = cuts, clock.monotonic()

    async def get(
        self, path: str, query: Mapping[str, str] | None = None, *, attempts: int
    ) -> Object:
        return await self._request(lambda: self._store.get(COLLECTION, KEY))

    async def create(self, path: str, body: Object, *, attempts: int) -> Object:
        return await self._request(lambda: self._store.create(COLLECTION, body))

    async def replace(self, path: str, body: Object, *, attempts: int) -> Object:
        return await self._request(lambda: self._store.replace(COLLECTION, body))

    async def _request(self, act: Any) -> Object:
        now = self._clock.monotonic() - self._began
        cut = any(start <= now < start + length for start, length in self._cuts)
        fault = "unsent" if cut else next(self._faults, "ok")
        match fault:
            case "unsent":
                raise Unreachable("cut")
            case "500" | "409":
                raise api_error(int(fault), {"reason": "Fault"}, where="the test")
            case "hang":
                await asyncio.Event().wait()
            case "slow":
                await asyncio.shield(self._later())
        try:
            found: Object = act()
        except Refused as err:
            raise api_error(err.status, {"reason": err.reason}, where="the test") from err
        if fault == "late":
            await self._clock.sleep(4.0)
        if fault == "lost":
            raise Unreachable("cut")
        return found

    def _later(self) -> Awaitable[None]:
        return self._clock.timer(4.0)


class Candidate:
    """Runs again after each lead, as a pod that is restarted."""

    def __init__(
        self, number: int, store: ObjectStore, clock: SimulatedClock, active: set[int], plan: Any
    ) -> None:
        self.number, self._active, self._base = number, active, clock
        offset, faults, cuts, self._lasts = plan
        self._clock = SkewedClock(clock, offset)
        self._client = FaultyLeases(store, clock, faults, cuts)
        self.is_leader = 0

    async def run(self) -> None:
        while True:
            identity = f"c{self.number}.{self.is_leader}"
            elector = LeaderElector(
                self._client,
                ElectionConfig(namespace="ns", name="lease", identity=identity),
                self._work,
                self._clock,
                metrics=LeaderMetrics(CollectorRegistry()),
                component="test",
                draw=lambda: 0.3 * self.number,
            )
            try:
                await elector.run(Stop(self._clock))
            except LeaseLost:
                await self._base.sleep(1.0)

    async def _work(self, stop: Stop) -> None:
        self.is_leader += 1
        assert not self._active, f"{self.number} leads beside {self._active}"
        self._active.add(self.number)
        try:
            await self._base.sleep(self._lasts)
        finally:
            self._active.discard(self.number)


PLANS = st.tuples(
    st.sampled_from([0.0, 30.0, -30.0]),  # seconds that its wall clock is off
    st.lists(st.sampled_from(FAULTS), max_size=60),
    st.lists(st.tuples(st.integers(3, 150), st.sampled_from([8, 20, 50])), max_size=3),
    st.sampled_from([5.0, 40.0, 1000.0]),  # seconds of work until it ends by itself
)


@given(plans=st.lists(PLANS, min_size=2, max_size=3))
async def test_two_replicas_never_lead_at_once(plans: list[Any]) -> None:
    """Whatever the server does; and when it works again, one of them leads."""
    clock, store, active = SimulatedClock(), ObjectStore(), set[int]()
    candidates = [
        Candidate(number, store, clock, active, plan) for number, plan in enumerate(plans)
    ]
    tasks = [asyncio.create_task(candidate.run()) for candidate in candidates]
    try:
        for _ in range(SECONDS):
            await clock.advance(1.0)
            for task in tasks:
                assert not task.done(), task.exception()
        assert sum(candidate.is_leader for candidate in candidates) > 0
    finally:
        for task in tasks:
            task.cancel()
        for _ in range(30):
            await clock.advance(1.0)
        await asyncio.gather(*tasks, return_exceptions=True)
