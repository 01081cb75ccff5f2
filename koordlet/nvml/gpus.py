"""The GPUs of this node: asked of the helper, which is killed and started anew when it hangs."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter

from koord.util.clock import Clock
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop, first_completed
from koord.util.timebudget import Backoff
from koordlet.nvml.process import GpuResponse, GpuStatus, HelperError, parse_response
from koordlet.rules.devices import GPU_LOST, DeviceTopology, Gpu, GpuSet

RESPONSE_TIMEOUT = 5.0  # seconds for a response
OPEN_TIMEOUT = 30.0  # for the first one: opening NVML wakes each GPU that no one uses
NO_DRIVER_INTERVAL = 60.0  # seconds between looks for a driver
INITIAL_BACKOFF, MAX_BACKOFF = 1.0, 300.0
MAX_STUCK_HELPERS = 2  # helpers that cannot be killed, after which no more are started

log = get_logger("koordlet.nvml")


class Helper(Protocol):
    """A running helper; HelperProcess is the real one."""

    async def request(self) -> bytes: ...

    async def end(self) -> bool: ...

    @property
    def exited(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class GpuReading:
    """A response and the time of its arrival, in monotonic seconds."""

    at: float
    gpus: tuple[GpuStatus, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuObservers:
    """Callbacks for the GPUs and the readings of the helper."""

    gpus: Callable[[GpuSet], object]  # whenever it changes; nothing while NVML is away
    reading: Callable[[GpuReading | None], object]  # each response; None: there is no driver


class GpuMonitor:
    """Asks a helper each interval, and publishes what it answers.

    A GPU with a critical Xid stays unhealthy, also over helpers, until it is gone from the list or
    the daemon is started anew: a driver does not say when it has recovered.
    """

    def __init__(
        self,
        start: Callable[[], Awaitable[Helper]],
        sinks: GpuObservers,
        clock: Clock,
        registry: CollectorRegistry,
        *,
        present: Callable[[], bool],
        locate: Callable[[str], DeviceTopology | None],
        interval: float,
        limits: tuple[float, float] = (OPEN_TIMEOUT, RESPONSE_TIMEOUT),
    ) -> None:
        """start makes a helper, or raises HelperError. present: whether there is a driver.

        locate returns where the device of a PCI address is; both of them read sysfs, on a thread.
        limits: seconds for a helper's first response, and for each other one.
        """
        self._open_limit, self._answer_limit = limits
        self._start = start
        self._sinks = sinks
        self._clock = clock
        self._present = present
        self._locate = locate
        self._interval = interval
        self._backoff = Backoff(INITIAL_BACKOFF, MAX_BACKOFF)
        self._stuck: list[Helper] = []
        self._errors: dict[str, str] = {}
        self._places: dict[str, DeviceTopology | None] = {}
        self._published: GpuSet | None = None
        self._problem = ""
        self._trouble = LogState(log)
        self._restarts = Counter(
            "koordlet_gpu_helper_failures_total",
            "Helpers that ask NVML about GPUs and were ended because they failed or hung.",
            registry=registry,
        )

    async def run(self, stop: Stop) -> None:
        """Ask until stop."""
        try:
            while not stop.is_set():
                await stop.sleep(await self._turn(stop))
        finally:
            self._sinks.reading(None)

    def health(self) -> PartHealth:
        """Degraded while NVML gives no response; a node without its driver is well."""
        return PartHealth(HealthStatus.DEGRADED, self._problem) if self._problem else OK

    async def _turn(self, stop: Stop) -> float:
        """Run one helper, if there is a driver; return the seconds until the next helper."""
        if not await asyncio.to_thread(self._present):
            self._publish(GpuSet("", ()))
            self._sinks.reading(None)
            self._recovered()
            return NO_DRIVER_INTERVAL
        try:
            await self._serve(stop)
        except HelperError as err:
            self._failed(str(err))
            return self._backoff.next()
        return 0.0

    async def _serve(self, stop: Stop) -> None:
        """Ask one helper until stop, or until it fails."""
        self._stuck = [helper for helper in self._stuck if not helper.exited]
        if len(self._stuck) >= MAX_STUCK_HELPERS:
            raise HelperError(
                f"{len(self._stuck)} helpers hang in the driver and cannot be killed; "
                "see the kernel log, and reset the GPU or reboot"
            )
        helper, limit = await self._start(), self._open_limit
        try:
            while not stop.is_set():
                line = await self._request(helper, limit, stop)
                if line is None:
                    return
                await self._take(parse_response(line))
                limit = self._answer_limit
                await stop.sleep(self._interval)
        finally:
            if not await helper.end():
                self._stuck.append(helper)

    async def _request(self, helper: Helper, limit: float, stop: Stop) -> bytes | None:
        """Return the helper's answer; None: stop was set first."""
        pending, timer = asyncio.ensure_future(helper.request()), self._clock.timer(limit)
        try:
            await first_completed(pending, timer, stop.wait())
            if pending.done():
                return pending.result()
        finally:
            timer.cancel()
            pending.cancel()
            await asyncio.wait({pending})
        if stop.is_set():
            return None
        raise HelperError(f"NVML did not answer within {limit:g} s; its helper was killed")

    async def _take(self, response: GpuResponse) -> None:
        unknown = {found.bus for found in response.gpus} - self._places.keys()
        for bus in unknown:
            self._places[bus] = await asyncio.to_thread(self._locate, bus)
        self._places = {found.bus: self._places[found.bus] for found in response.gpus}
        found = {each.gpu.uuid: each.gpu.error for each in response.gpus}
        lasting = {uuid: error for uuid, error in found.items() if error and error != GPU_LOST}
        self._errors = {uuid: e for uuid, e in self._errors.items() if uuid in found} | lasting
        gpus = tuple(replace(each, gpu=self._judged(each)) for each in response.gpus)
        self._publish(GpuSet(response.driver, tuple(each.gpu for each in gpus)))
        self._sinks.reading(GpuReading(self._clock.monotonic(), gpus))
        self._recovered()
        self._backoff.reset()

    def _judged(self, found: GpuStatus) -> Gpu:
        gpu = found.gpu
        error = self._errors.get(gpu.uuid, gpu.error)
        return replace(gpu, topology=self._places[found.bus], error=error)

    def _publish(self, gpus: GpuSet) -> None:
        if gpus == self._published:
            return
        before = {} if self._published is None else {g.uuid: g for g in self._published.gpus}
        for gpu in gpus.gpus:
            earlier = before.get(gpu.uuid)
            if gpu.error and (earlier is None or earlier.error != gpu.error):
                log.warning("gpu.unhealthy", uuid=gpu.uuid, minor=gpu.minor, reason=gpu.error)
        if gone := sorted(before.keys() - {gpu.uuid for gpu in gpus.gpus}):
            log.warning("gpu.removed", uuids=gone)
        self._published = gpus
        self._sinks.gpus(gpus)

    def _recovered(self) -> None:
        self._problem = ""
        self._trouble.ended("gpu.answers_again")

    def _failed(self, problem: str) -> None:
        self._problem = problem
        self._restarts.inc()
        self._trouble.failed("gpu.not_answering", error=problem)
