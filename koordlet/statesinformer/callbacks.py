"""Tells subscribers that a state changed: coalesced per type, delivered off the source's loop.

The slot, order and start rules are those of Koordinator's states informer; isolation, deadline and
retry are ours: a callback that raises or hangs delays nobody but the callbacks of its own type, and
those by no more than the deadline.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum

from koordlet.api.nodeslo import HostApplication
from koordlet.statesinformer.model import PodMeta
from koordlet.util.backoff import Backoff
from koordlet.util.clock import Clock
from koordlet.util.errors import KoordletError
from koordlet.util.firstof import first_of
from koordlet.util.logs import get_logger
from koordlet.util.stop import Stop

CALLBACK_DEADLINE = 30.0  # seconds one callback may take before it is cancelled

log = get_logger("koordlet.statesinformer")


class StateType(Enum):
    """A state that callbacks can be registered for, by Koordinator's name; the last is our own."""

    NODE_SLO_SPEC = "NodeSLOSpec"  # state: NodeSLO; not delivered while there is none
    ALL_PODS = "AllPods"  # state: None, the pods are in the target
    NODE_TOPOLOGY = "NodeTopology"  # state: NodeTopology; None where there is no cluster
    NODE_METADATA = "NodeMetadata"  # state: Node, sent when its labels or annotations change
    NODE_METRIC_SPEC = "NodeMetricSpec"  # state: NodeMetricSpec, how to report


@dataclass(frozen=True, slots=True)
class CallbackTarget:
    """What a callback usually acts upon: one snapshot shared by all callbacks of a run."""

    pods: tuple[PodMeta, ...]
    host_applications: tuple[HostApplication, ...]


UpdateCbFn = Callable[[StateType, object, CallbackTarget], Awaitable[None] | None]
"""A callback, plain or async: (type, current state, target). Called on the event loop."""


@dataclass(slots=True)
class CallbackState:
    """One registered callback and how it is doing."""

    type: StateType
    name: str
    description: str
    runs: int = 0
    failures: int = 0
    seconds: float = 0.0  # duration of the latest run that ended
    error: str = ""  # why the latest run failed; empty: it did not


@dataclass(slots=True)
class _Entry:
    state: CallbackState
    fn: UpdateCbFn
    context: contextvars.Context  # of the registration, so that blame finds the right plugin
    backoff: Backoff = field(default_factory=lambda: Backoff(initial=1.0, cap=60.0))
    retry_at: float | None = None  # monotonic
    running: asyncio.Task[None] | None = None  # a cancelled run that has not ended

    async def invoke(self, state: object, target: CallbackTarget) -> None:
        result = self.fn(self.state.type, state, target)
        if result is not None:
            await result


class CallbackWorker:
    """Runs the callbacks of one state type, one after another in the order of registration."""

    def __init__(
        self,
        state_type: StateType,
        clock: Clock,
        snapshot: Callable[[StateType], tuple[object, CallbackTarget]],
        deadline: float = CALLBACK_DEADLINE,
    ) -> None:
        self._type = state_type
        self._clock = clock
        self._snapshot = snapshot
        self._deadline = deadline
        self._entries: list[_Entry] = []
        self._pending = asyncio.Event()

    def register(self, name: str, description: str, fn: UpdateCbFn) -> None:
        """Add a callback.

        Raises:
            KoordletError: the type has a callback of this name already.
        """
        if any(entry.state.name == name for entry in self._entries):
            raise KoordletError(
                f"callback {self._type.value}/{name}: wanted a new name, "
                "found one that is registered already; choose another name"
            )
        state = CallbackState(self._type, name, description)
        self._entries.append(_Entry(state, fn, contextvars.copy_context()))

    def send(self) -> None:
        """Ask for one run. Sends that come before it starts are one."""
        self._pending.set()

    def states(self) -> tuple[CallbackState, ...]:
        return tuple(entry.state for entry in self._entries)

    async def run(self, stop: Stop) -> None:
        while await self._turn(stop):
            everyone = self._pending.is_set()
            self._pending.clear()
            await self._deliver(stop, everyone=everyone)

    async def _turn(self, stop: Stop) -> bool:
        """Wait for an event or a retry. Returns False on stop."""
        waits: list[Coroutine[object, object, object]] = [self._pending.wait(), stop.wait()]
        retries = [entry.retry_at for entry in self._entries if entry.retry_at is not None]
        if retries:
            waits.append(self._clock.sleep(max(min(retries) - self._clock.monotonic(), 0.0)))
        await first_of(*waits)
        return not stop.is_set()

    async def _deliver(self, stop: Stop, *, everyone: bool) -> None:
        state, target = self._snapshot(self._type)
        if state is None and self._type is StateType.NODE_SLO_SPEC:
            for entry in self._entries:
                entry.retry_at = None
            return
        now = self._clock.monotonic()
        for entry in tuple(self._entries):
            due = entry.retry_at is not None and entry.retry_at <= now
            if (everyone or due) and not stop.is_set():
                await self._call(entry, state, target, stop)

    async def _call(self, entry: _Entry, state: object, target: CallbackTarget, stop: Stop) -> None:
        if entry.running is not None and not entry.running.done():
            self._failed(entry, "still running after it was cancelled")
            return
        start = self._clock.monotonic()
        task = asyncio.get_running_loop().create_task(
            entry.invoke(state, target),
            name=f"callback {self._type.value}/{entry.state.name}",
            context=entry.context.copy(),
        )
        entry.running = task
        try:
            await first_of(task, self._clock.sleep(self._deadline), stop.wait())
        finally:
            if not task.done():
                task.cancel()
        if stop.is_set():
            return
        if not task.done():
            await asyncio.sleep(0)
            self._failed(entry, f"took longer than {self._deadline:g} s and was cancelled")
        elif task.cancelled():
            self._failed(entry, "cancelled itself")
        elif (error := task.exception()) is not None:
            self._failed(entry, repr(error))
        else:
            self._succeeded(entry, self._clock.monotonic() - start)

    def _failed(self, entry: _Entry, error: str) -> None:
        known = bool(entry.state.error)
        entry.state.runs += 1
        entry.state.failures += 1
        entry.state.error = error
        delay = entry.backoff.next()
        entry.retry_at = self._clock.monotonic() + delay
        if not known:
            log.warning(
                "callback.failed",
                type=self._type.value,
                callback=entry.state.name,
                error=error,
                retry_in_s=round(delay, 1),
            )

    def _succeeded(self, entry: _Entry, seconds: float) -> None:
        if entry.state.error:
            log.info("callback.recovered", type=self._type.value, callback=entry.state.name)
        entry.state.runs += 1
        entry.state.seconds = seconds
        entry.state.error = ""
        entry.backoff.reset()
        entry.retry_at = None
