"""The GPUs of this node: asked of the helper, which is killed and started anew when it hangs."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter

from koord.util.backoff import Backoff
from koord.util.clock import Clock
from koord.util.firstof import first_of
from koord.util.health import OK, PartHealth, Status
from koord.util.logs import LogState, get_logger
from koord.util.stop import Stop
from koordlet.nvml.answers import FoundGpu, GpuAnswer, HelperFailed, parse_answer
from koordlet.rules.devices import LOST, DeviceTopology, Gpu, GpuSet

ANSWER_LIMIT = 5.0  # seconds for an answer
OPEN_LIMIT = 30.0  # for the first one: opening NVML wakes each GPU that no one uses
ABSENT_PAUSE = 60.0  # seconds between looks for a driver
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 300.0
MOST_STUCK = 2  # helpers that cannot be killed, after which no more are started

log = get_logger("koordlet.nvml")


class Helper(Protocol):
    """A running helper; HelperProcess is the real one."""

    async def ask(self) -> bytes: ...

    async def end(self) -> bool: ...

    @property
    def gone(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class GpuReading:
    """An answer with the time at which it came, in monotonic seconds."""

    at: float
    gpus: tuple[FoundGpu, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuSinks:
    """Who gets what was found."""

    gpus: Callable[[GpuSet], object]  # whenever it changes; nothing while NVML is away
    reading: Callable[[GpuReading | None], object]  # each answer; None: there is no driver


class Gpus:
    """Asks a helper each interval, and publishes what it answers.

    A GPU with a critical Xid stays unhealthy, also over helpers, until it is gone from the list or
    the daemon is started anew: a driver does not say when it has recovered.
    """

    def __init__(
        self,
        start: Callable[[], Awaitable[Helper]],
        sinks: GpuSinks,
        clock: Clock,
        registry: CollectorRegistry,
        *,
        present: Callable[[], bool],
        locate: Callable[[str], DeviceTopology | None],
        interval: float,
        limits: tuple[float, float] = (OPEN_LIMIT, ANSWER_LIMIT),
    ) -> None:
        """start makes a helper, or raises HelperFailed. present: whether there is a driver.

        locate returns where the device of a PCI address is; both of them read sysfs, on a thread.
        limits: seconds for a helper's first answer, and for each other one.
        """
        self._open_limit, self._answer_limit = limits
        self._start = start
        self._sinks = sinks
        self._clock = clock
        self._present = present
        self._locate = locate
        self._interval = interval
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
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
        """Degraded while NVML gives no answer; a node without its driver is well."""
        return PartHealth(Status.DEGRADED, self._problem) if self._problem else OK

    async def _turn(self, stop: Stop) -> float:
        """Have one helper work, if there is a driver; return the seconds until the next."""
        if not await asyncio.to_thread(self._present):
            self._publish(GpuSet("", ()))
            self._sinks.reading(None)
            self._works()
            return ABSENT_PAUSE
        try:
            await self._serve(stop)
        except HelperFailed as err:
            self._failed(str(err))
            return self._backoff.next()
        return 0.0

    async def _serve(self, stop: Stop) -> None:
        """Ask one helper until stop, or until it fails."""
        self._stuck = [helper for helper in self._stuck if not helper.gone]
        if len(self._stuck) >= MOST_STUCK:
            raise HelperFailed(
                f"{len(self._stuck)} helpers hang in the driver and cannot be killed; "
                "see the kernel log, and reset the GPU or reboot"
            )
        helper, limit = await self._start(), self._open_limit
        try:
            while not stop.is_set():
                line = await self._ask(helper, limit, stop)
                if line is None:
                    return
                await self._take(parse_answer(line))
                limit = self._answer_limit
                await stop.sleep(self._interval)
        finally:
            if not await helper.end():
                self._stuck.append(helper)

    async def _ask(self, helper: Helper, limit: float, stop: Stop) -> bytes | None:
        """The helper's answer; None: stop came first."""
        asking, timer = asyncio.ensure_future(helper.ask()), self._clock.timer(limit)
        try:
            await first_of(asking, timer, stop.wait())
            if asking.done():
                return asking.result()
        finally:
            timer.cancel()
            asking.cancel()
            await asyncio.wait({asking})
        if stop.is_set():
            return None
        raise HelperFailed(f"NVML did not answer within {limit:g} s; its helper was killed")

    async def _take(self, answer: GpuAnswer) -> None:
        unknown = {found.bus for found in answer.gpus} - self._places.keys()
        for bus in unknown:
            self._places[bus] = await asyncio.to_thread(self._locate, bus)
        self._places = {found.bus: self._places[found.bus] for found in answer.gpus}
        found = {each.gpu.uuid: each.gpu.error for each in answer.gpus}
        lasting = {uuid: error for uuid, error in found.items() if error and error != LOST}
        self._errors = {uuid: e for uuid, e in self._errors.items() if uuid in found} | lasting
        gpus = tuple(replace(each, gpu=self._judged(each)) for each in answer.gpus)
        self._publish(GpuSet(answer.driver, tuple(each.gpu for each in gpus)))
        self._sinks.reading(GpuReading(self._clock.monotonic(), gpus))
        self._works()
        self._backoff.reset()

    def _judged(self, found: FoundGpu) -> Gpu:
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
            log.warning("gpu.gone", uuids=gone)
        self._published = gpus
        self._sinks.gpus(gpus)

    def _works(self) -> None:
        self._problem = ""
        self._trouble.ended("gpu.answers_again")

    def _failed(self, problem: str) -> None:
        self._problem = problem
        self._restarts.inc()
        self._trouble.failed("gpu.not_answering", error=problem)
