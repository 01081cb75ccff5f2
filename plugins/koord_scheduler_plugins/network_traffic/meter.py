"""The meter: reads traffic beside the cycles, and has the latest measure for them."""

import asyncio
from collections.abc import Mapping
from itertools import islice
from typing import Protocol

from koord_scheduler.plugin import (
    OK,
    Clock,
    ClusterState,
    HealthStatus,
    KoordError,
    PartHealth,
    Stop,
    Transport,
    View,
    get_logger,
)
from koord_scheduler_plugins.network_traffic.args import Direction, NetworkTrafficArgs
from koord_scheduler_plugins.network_traffic.metrics import Figures
from koord_scheduler_plugins.network_traffic.readings import UNKNOWN, Measure, Reading

FIRST_WAIT = 10.0  # seconds that the first cycle waits for figures
MOST_LINES = 1000  # of nodes, in the log of one round
LINES_AT_ONCE = 100
BYTES_OF_MEGABIT = 125_000

log = get_logger("NetworkTraffic")


class Source(Protocol):
    """Where readings come from."""

    interval: float
    """Seconds between two calls of read."""

    async def read(self, nodes: Mapping[str, str]) -> Mapping[str, Reading]:
        """Return what is new about these nodes, by name; they are given with their addresses.

        Raises:
            KoordError: nothing is, and why.
        """


class Meter:
    """A shared part. Readings count until they expire, whatever their source does meanwhile."""

    def __init__(
        self,
        args: NetworkTrafficArgs,
        source: Source,
        transport: Transport,
        cluster: ClusterState,
        clock: Clock,
    ) -> None:
        self.measure = Measure({})
        self.figures = Figures()
        self._args = args
        self._direction = args.direction or Direction.SUM
        self._source = source
        self._transport = transport
        self._cluster = cluster
        self._clock = clock
        self._readings: dict[str, Reading] = {}
        self._stale: set[str] = set()  # nodes whose latest readings have expired
        self._error = ""
        self._ready = asyncio.Event()

    async def run(self, stop: Stop) -> None:
        """Read until stop."""
        try:
            async for _ in stop.every(self._source.interval):
                await stop.bound(self.refresh())
        finally:
            await self._transport.close()

    async def wait_ready(self) -> None:
        """Return after the first round, or when it takes too long: nodes are unknown then."""
        timer = self._clock.timer(FIRST_WAIT)
        ready: asyncio.Future[object] = asyncio.ensure_future(self._ready.wait())
        try:
            await asyncio.wait((ready, timer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            ready.cancel()

    def health(self) -> PartHealth:
        """Degraded while the source does not answer: cycles go on with what is known."""
        if not self._error:
            return OK
        known = len(self.measure.raw)
        detail: dict[str, object] = {"nodes_known": known}
        return PartHealth(HealthStatus.DEGRADED, self._error, detail)

    def age(self) -> float | None:
        """Seconds since the newest reading; None: there is none. Callable from any thread."""
        newest = self.figures.newest
        return None if newest is None else self._clock.monotonic() - newest

    async def refresh(self) -> None:
        """Read once, and make the measure anew."""
        view = self._cluster.view()
        nodes = {(one := view.node(row)).name: one.internal_ip for row in range(len(view))}
        try:
            self._readings.update(await self._source.read(nodes))
        except KoordError as err:
            if not self._error:
                log.warning("traffic.unknown", error=str(err))
            self._error = str(err)
        else:
            if self._error:
                log.info("traffic.known", nodes=len(self._readings))
            self._error = ""
        await self._renew(nodes)
        self._ready.set()
        await self._log_nodes(nodes)

    async def _renew(self, nodes: Mapping[str, str]) -> None:
        oldest = self._clock.monotonic() - self._args.expiration
        expired = {name for name, one in self._readings.items() if one.at < oldest}
        self._readings = {
            name: one
            for name, one in self._readings.items()
            if name in nodes and name not in expired
        }
        self._stale = (self._stale | expired) & nodes.keys() - self._readings.keys()
        self.measure = await asyncio.to_thread(
            self._measure_of, self._readings, self._cluster.view(), self.measure.version + 1
        )
        self.figures = self._figures_of(self.measure, len(nodes))

    def _figures_of(self, measure: Measure, nodes: int) -> Figures:
        known, stale = sum(score >= 0 for score in measure.raw.values()), len(self._stale)
        newest = max((one.at for one in self._readings.values()), default=self.figures.newest)
        states = {"known": known, "stale": stale, "unknown": nodes - known - stale}
        return Figures(newest, states, measure.without_capacity)

    def _measure_of(self, readings: Mapping[str, Reading], view: View, version: int) -> Measure:
        measure = Measure.of(
            readings,
            direction=self._direction,
            scoring=self._args.scoring,
            usual_speed=self._args.link_speed_mbps * BYTES_OF_MEGABIT or None,
            idle_below=self._args.idle_below,
            version=version,
        )
        measure.column(view)  # so that no cycle has to make it
        return measure

    async def _log_nodes(self, nodes: Mapping[str, str]) -> None:
        unit = "percent of the link" if self.measure.by_capacity else "bytes"
        for number, name in enumerate(islice(nodes, MOST_LINES), 1):
            found, raw = self._readings.get(name), self.measure.raw.get(name, UNKNOWN)
            if found is None or raw == UNKNOWN:
                log.debug("node.bandwidth", node=name, known=False)
            elif found.error:
                log.debug("node.bandwidth", node=name, error=found.error)
            else:
                amount = found.traffic.amount(self._direction)
                log.debug("node.bandwidth", node=name, bandwidth=amount, score=raw, unit=unit)
            if number % LINES_AT_ONCE == 0:
                await asyncio.sleep(0)
        if len(nodes) > MOST_LINES:
            log.debug("nodes.omitted", count=len(nodes) - MOST_LINES)
