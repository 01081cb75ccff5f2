"""Delivers changes of states to callbacks: coalesced per type, each type in a task of its own.

Slots, order and start follow Koordinator's states informer. Isolation, deadline and retry are
additions: a callback that raises or hangs delays only the other callbacks of its type, and those
by the deadline at most. Callbacks of a subscription are called only while it is on; the first call
has the state of the moment at which it was switched on.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from koord.api.slo.nodeslo import HostApplication
from koord.util.backoff import Backoff
from koord.util.clock import Clock
from koord.util.errors import KoordError, error_text
from koord.util.firstof import first_of
from koord.util.logs import get_logger
from koord.util.stop import Stop
from koordlet.statesinformer.model import PodMeta

if TYPE_CHECKING:
    from koordlet.statesinformer.subscription import Subscription

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
    """The states that callbacks usually need: one snapshot for all callbacks of a run."""

    pods: tuple[PodMeta, ...]
    host_applications: tuple[HostApplication, ...]


UpdateCbFn = Callable[[StateType, object, CallbackTarget], Awaitable[None] | None]
"""A callback, plain or async: (type, current state, target). Called on the event loop."""


@dataclass(slots=True)
class CallbackState:
    """One registered callback: its runs, failures and latest error."""

    type: StateType
    name: str
    description: str
    runs: int = 0
    failures: int = 0
    seconds: float = 0.0  # duration of the latest run that ended
    error: str = ""  # why the latest run failed; empty: it did not


@dataclass(slots=True)
class _Registered:
    state: CallbackState
    fn: UpdateCbFn
    context: contextvars.Context  # of the registration, so that blame finds the right plugin
    subscription: "Subscription | None"  # None: called as long as the daemon runs
    due: bool = False  # is to be called with the present state, even if that does not change
    ended: int = 0  # times that the subscription was switched off
    backoff: Backoff = field(default_factory=lambda: Backoff(initial=1.0, cap=60.0))
    retry_at: float | None = None  # monotonic
    running: asyncio.Task[None] | None = None  # a cancelled run that has not ended

    @property
    def label(self) -> str:
        return f"{self.state.type.value}/{self.state.name}"

    @property
    def is_on(self) -> bool:
        return self.subscription is None or self.subscription.on

    @property
    def is_running(self) -> bool:
        return self.running is not None and not self.running.done()

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
        self._entries: list[_Registered] = []
        self._published = False  # whether there was a state to send
        self._everyone = False  # a run for all callbacks is due
        self._pending = asyncio.Event()

    def register(
        self, name: str, description: str, fn: UpdateCbFn, subscription: "Subscription | None"
    ) -> None:
        """Add a callback.

        Raises:
            KoordError: the type has a callback of this name and subscription already.
        """
        known = ((entry.state.name, entry.subscription) for entry in self._entries)
        if (name, subscription) in known:
            raise KoordError(
                f"callback {self._type.value}/{name}: wanted a new name, "
                "found one that is registered already; choose another name"
            )
        state = CallbackState(self._type, name, description)
        entry = _Registered(state, fn, contextvars.copy_context(), subscription)
        self._entries.append(entry)
        if subscription is not None and subscription.on:
            self._owe([entry])

    def send(self) -> None:
        """Request one run. Requests that come before it starts are merged."""
        self._published = self._everyone = True
        self._pending.set()

    def begin(self, subscription: "Subscription") -> None:
        """Call the callbacks of a subscription soon, if there is a state to send."""
        self._owe(self._of(subscription))

    def end(self, subscription: "Subscription") -> list[asyncio.Task[None]]:
        """Cancel and return the running callbacks of a subscription; none is retried."""
        running = self.running(subscription)
        for entry in self._of(subscription):
            entry.ended += 1
            entry.due, entry.retry_at = False, None
            entry.backoff.reset()
        for task in running:
            task.cancel()
        return running

    def running(self, subscription: "Subscription") -> list[asyncio.Task[None]]:
        """The callbacks of a subscription that run now."""
        entries = self._of(subscription)
        return [entry.running for entry in entries if entry.running and not entry.running.done()]

    def states(self, *, owned: bool = True) -> tuple[CallbackState, ...]:
        """All callbacks, or without owned those that belong to no subscription."""
        return tuple(entry.state for entry in self._entries if owned or entry.subscription is None)

    async def run(self, stop: Stop) -> None:
        while await self._turn(stop):
            everyone, self._everyone = self._everyone, False
            self._pending.clear()
            await self._deliver(stop, everyone=everyone)

    def _of(self, subscription: "Subscription") -> list[_Registered]:
        return [entry for entry in self._entries if entry.subscription is subscription]

    def _owe(self, entries: list[_Registered]) -> None:
        if self._published and entries:
            for entry in entries:
                entry.due = True
            self._pending.set()

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
                entry.due, entry.retry_at = False, None
            return
        now = self._clock.monotonic()
        for entry in tuple(self._entries):
            retry = entry.retry_at is not None and entry.retry_at <= now
            if entry.is_on and (everyone or entry.due or retry) and not stop.is_set():
                entry.due = False
                await self._call(entry, state, target, stop)

    async def _call(
        self, entry: _Registered, state: object, target: CallbackTarget, stop: Stop
    ) -> None:
        if entry.is_running:
            self._failed(entry, "still running after it was cancelled")
            return
        start, ended = self._clock.monotonic(), entry.ended
        task = asyncio.get_running_loop().create_task(
            entry.invoke(state, target),
            name=f"callback {entry.label}",
            context=entry.context.copy(),
        )
        entry.running = task
        try:
            await first_of(task, self._clock.sleep(self._deadline), stop.wait())
        finally:
            if not task.done():
                task.cancel()
        if stop.is_set() or entry.ended != ended:
            return
        if not task.done():
            await asyncio.sleep(0)
            self._failed(entry, f"took longer than {self._deadline:g} s and was cancelled")
        elif task.cancelled():
            self._failed(entry, "cancelled itself")
        elif (error := task.exception()) is not None:
            self._failed(entry, error_text(error), error)
        else:
            self._succeeded(entry, self._clock.monotonic() - start)

    def _failed(self, entry: _Registered, error: str, cause: BaseException | None = None) -> None:
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
                owner=entry.subscription.owner if entry.subscription else "koordlet",
                error=error,
                retry_in_s=round(delay, 1),
            )
        if entry.subscription is not None:
            entry.subscription.failed(entry.label, error, cause)

    def _succeeded(self, entry: _Registered, seconds: float) -> None:
        if entry.state.error:
            log.info("callback.recovered", type=self._type.value, callback=entry.state.name)
        entry.state.runs += 1
        entry.state.seconds = seconds
        entry.state.error = ""
        entry.backoff.reset()
        entry.retry_at = None
        if entry.subscription is not None:
            entry.subscription.succeeded(entry.label)
