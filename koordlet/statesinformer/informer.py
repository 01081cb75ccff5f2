"""Desired state of this node, as snapshots with callbacks: Node, NodeSLO, pods and more.

Changes are coalesced per type and delivered by a task per type; a Subscription holds the callbacks
of one owner, for example a plugin.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from koord.api.node import Node
from koord.api.nodemetric import NodeMetricSpec
from koord.api.nodeslo import HostApplication, NodeSLO
from koord.util.clock import Clock
from koord.util.errors import KoordError, error_text
from koord.util.health import OK, HealthStatus, PartHealth
from koord.util.logs import get_logger
from koord.util.stop import Stop, first_completed
from koord.util.timebudget import Backoff
from koordlet.rules.allocations import RefusedAllocation
from koordlet.statesinformer.podmeta import PodAllocations, PodMeta

if TYPE_CHECKING:
    from koordlet.rules.node_topology import NodeTopology


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
            self._mark_due([entry])

    def send(self) -> None:
        """Request one run. Requests that come before it starts are merged."""
        self._published = self._everyone = True
        self._pending.set()

    def begin(self, subscription: "Subscription") -> None:
        """Call the callbacks of a subscription soon, if there is a state to send."""
        self._mark_due(self._of(subscription))

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
        while await self._run_next(stop):
            everyone, self._everyone = self._everyone, False
            self._pending.clear()
            await self._deliver(stop, everyone=everyone)

    def _of(self, subscription: "Subscription") -> list[_Registered]:
        return [entry for entry in self._entries if entry.subscription is subscription]

    def _mark_due(self, entries: list[_Registered]) -> None:
        if self._published and entries:
            for entry in entries:
                entry.due = True
            self._pending.set()

    async def _run_next(self, stop: Stop) -> bool:
        """Wait for an event or a retry. Returns False on stop."""
        waits: list[Coroutine[object, object, object]] = [self._pending.wait(), stop.wait()]
        retries = [entry.retry_at for entry in self._entries if entry.retry_at is not None]
        if retries:
            waits.append(self._clock.sleep(max(min(retries) - self._clock.monotonic(), 0.0)))
        await first_completed(*waits)
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
            await first_completed(task, self._clock.sleep(self._deadline), stop.wait())
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


OnCallbackFailed = Callable[[str, str, BaseException | None], None]
"""Called after each callback that failed: its type and name, why, and what it raised if it did."""


class Subscription:
    """The callbacks of one owner. Off until begin; all methods belong to the event loop."""

    def __init__(self, informer: "StatesInformer", owner: str, failed: OnCallbackFailed) -> None:
        self.owner = owner
        self.on = False
        self.failing: dict[str, str] = {}  # why, by type and name; without what works again
        self.states = SubscriptionStates(informer, self)
        """The informer for the owner: callbacks registered there belong to this subscription."""
        self._informer = informer
        self._failed = failed

    def begin(self) -> None:
        """Call the callbacks from now on, each soon with the present state if there is one."""
        if not self.on:
            self.on = True
            self._informer.begin(self)

    def end(self) -> list[asyncio.Task[None]]:
        """Stop calling them; cancel and return those that run."""
        self.on = False
        self.failing.clear()
        return self._informer.end(self)

    def running(self) -> list[asyncio.Task[None]]:
        """The callbacks that run now."""
        return self._informer.running(self)

    def failed(self, callback: str, error: str, cause: BaseException | None) -> None:
        """Record that a callback failed, and report it to the owner."""
        self.failing[callback] = error
        self._failed(callback, error, cause)

    def succeeded(self, callback: str) -> None:
        """Record that a callback succeeded."""
        self.failing.pop(callback, None)


class SubscriptionStates:
    """The states informer for one owner; see koordlet.plugin.registry.States."""

    def __init__(self, informer: "StatesInformer", subscription: Subscription) -> None:
        self._informer = informer
        self._subscription = subscription

    def node(self) -> "Node | None":
        return self._informer.node()

    def node_slo(self) -> "NodeSLO | None":
        return self._informer.node_slo()

    def node_topology(self) -> "NodeTopology | None":
        return self._informer.node_topology()

    def pods(self) -> "tuple[PodMeta, ...]":
        return self._informer.pods()

    def pod(self, uid: str) -> "PodMeta | None":
        return self._informer.pod(uid)

    def has_synced(self) -> bool:
        return self._informer.has_synced()

    def register_callbacks(
        self, state_type: StateType | str, name: str, description: str, fn: UpdateCbFn
    ) -> None:
        """Call fn while the owner is on; raises as StatesInformer.register_callbacks."""
        self._informer.register_callbacks(
            state_type, name, description, fn, subscription=self._subscription
        )

    def send_callback(self, state_type: StateType | str) -> None:
        self._informer.send_callback(state_type)


class StatesInformer:
    """Holds the last known states and calls callbacks when they change.

    A state that its source lost (object deleted, file gone) stays as it was last known.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        callback_deadline: float = CALLBACK_DEADLINE,
        trusts_allocations: Callable[[], bool] = lambda: False,
    ) -> None:
        """trusts_allocations: see PodAllocations."""
        self._node: Node | None = None
        self._node_slo: NodeSLO | None = None
        self._node_metric_spec = NodeMetricSpec()
        self._node_topology: NodeTopology | None = None
        self._grants = PodAllocations(trusts_allocations)
        self._found_pods: tuple[PodMeta, ...] | None = None  # before the grants
        self._pods: tuple[PodMeta, ...] | None = None
        self._pods_changed = asyncio.Event()  # another one after each change
        self._pods_by_uid: dict[str, PodMeta] = {}
        self._pods_known = False
        self._synced = asyncio.Event()
        self._workers = {
            state_type: CallbackWorker(state_type, clock, self._snapshot, callback_deadline)
            for state_type in StateType
        }

    def node(self) -> Node | None:
        """This node; None: not known yet."""
        return self._node

    def node_slo(self) -> NodeSLO | None:
        """The NodeSLO of this node; None: there is none, and plugins that need one stay idle."""
        return self._node_slo

    def node_metric_spec(self) -> NodeMetricSpec:
        """The NodeMetric's spec: how to report. Koordinator's defaults until a source sets it."""
        return self._node_metric_spec

    def node_topology(self) -> "NodeTopology | None":
        """CPUs and NUMA zones of this node, and their allocation; None: not known yet."""
        return self._node_topology

    def pods(self) -> tuple[PodMeta, ...]:
        """Pods of this node, finished ones included; empty or provisional until synced.

        They have the annotations resource-status and device-allocated only where these count.
        """
        return self._pods or ()

    def refused_allocations(self) -> Mapping[str, tuple[RefusedAllocation, ...]]:
        """The annotations that pods lack here, as they do not count, by UID."""
        return self._grants.refused

    async def pods_changed(self) -> None:
        """Return when there are other pods than now."""
        await self._pods_changed.wait()

    def pod(self, uid: str) -> PodMeta | None:
        """The pod with this UID; None: there is none."""
        return self._pods_by_uid.get(uid)

    def has_synced(self) -> bool:
        """Whether node and pods are known. A node without pods counts, a NodeSLO is optional."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Return when node and pods are known."""
        await self._synced.wait()

    def register_callbacks(
        self,
        state_type: StateType | str,
        name: str,
        description: str,
        fn: UpdateCbFn,
        *,
        subscription: Subscription | None = None,
    ) -> None:
        """Call fn after each change of a state, and again later if it fails.

        Changes that come while callbacks of the type run are one more run; fn sees the state of
        the moment it runs. fn is cancelled when it takes longer than the callback deadline. With a
        subscription it is called only while that is on.

        Raises:
            KoordError: the type does not exist, or has a callback of this name.
        """
        self._worker(state_type).register(name, description, fn, subscription)

    def subscribe(self, owner: str, failed: OnCallbackFailed) -> Subscription:
        """Return a subscription for the callbacks of an owner; failed is called when one fails."""
        return Subscription(self, owner, failed)

    def begin(self, subscription: Subscription) -> None:
        """Call the callbacks of a subscription with present states; see Subscription.begin."""
        for worker in self._workers.values():
            worker.begin(subscription)

    def end(self, subscription: Subscription) -> list[asyncio.Task[None]]:
        """Cancel the callbacks of a subscription; see Subscription.end."""
        return [task for worker in self._workers.values() for task in worker.end(subscription)]

    def running(self, subscription: Subscription) -> list[asyncio.Task[None]]:
        """The callbacks of a subscription that run now."""
        return [task for worker in self._workers.values() for task in worker.running(subscription)]

    def send_callback(self, state_type: StateType | str) -> None:
        """Run the callbacks of a type soon. Never blocks; call it on the event loop.

        Raises:
            KoordError: the type does not exist.
        """
        self._worker(state_type).send()

    def callbacks(self) -> tuple[CallbackState, ...]:
        """All registered callbacks with runs, failures, duration and latest error."""
        return tuple(state for worker in self._workers.values() for state in worker.states())

    async def run(self, stop: Stop) -> None:
        """Deliver callbacks until stop; states sent earlier are delivered first."""
        async with asyncio.TaskGroup() as group:
            for state_type, worker in self._workers.items():
                group.create_task(worker.run(stop), name=f"callbacks {state_type.value}")

    def set_node(self, node: Node) -> None:
        """Publish the node. Callbacks run when its labels or annotations changed."""
        old, self._node = self._node, node
        self._check_synced()
        if old is None or (old.labels, old.annotations) != (node.labels, node.annotations):
            self.send_callback(StateType.NODE_METADATA)

    def set_node_slo(self, node_slo: NodeSLO | None) -> None:
        """Publish the NodeSLO; None: the cluster has none."""
        if node_slo != self._node_slo:
            self._node_slo = node_slo
            self.send_callback(StateType.NODE_SLO_SPEC)

    def set_node_metric_spec(self, spec: NodeMetricSpec) -> None:
        """Publish the spec of the NodeMetric."""
        if spec != self._node_metric_spec:
            self._node_metric_spec = spec
            self.send_callback(StateType.NODE_METRIC_SPEC)

    def set_node_topology(self, topology: "NodeTopology") -> None:
        """Publish the topology."""
        if topology != self._node_topology:
            before, self._node_topology = self._node_topology, topology
            self.send_callback(StateType.NODE_TOPOLOGY)
            if before is None or before.kubelet_allocations != topology.kubelet_allocations:
                self._publish_pods()

    def set_pods(self, pods: tuple[PodMeta, ...], *, provisional: bool = False) -> None:
        """Publish all pods of this node. Of pods with the same UID the first counts.

        Provisional pods are measured, but not yet the list of this node's pods.
        """
        if not provisional and not self._pods_known:
            self._pods_known = True
            self._check_synced()
        by_uid: dict[str, PodMeta] = {}
        for pod in pods:
            by_uid.setdefault(pod.uid, pod)
        unique = tuple(by_uid.values())
        if unique != self._found_pods:
            self._found_pods = unique
            self._publish_pods()

    def _publish_pods(self) -> None:
        """Publish the pods as found, with the annotations that count."""
        if self._found_pods is None:
            return
        topology = self._node_topology
        given = () if topology is None else topology.kubelet_allocations
        pods = self._grants.of(self._found_pods, {each.uid: each.cpus for each in given})
        if pods == self._pods:
            return
        self._pods_by_uid = {meta.uid: meta for meta in pods}
        self._pods = pods
        changed, self._pods_changed = self._pods_changed, asyncio.Event()
        changed.set()
        self.send_callback(StateType.ALL_PODS)

    def health(self) -> PartHealth:
        """Unhealthy until synced; degraded while a callback without a subscription fails."""
        missing = [
            name
            for name, known in (("node", self._node is not None), ("pods", self._pods_known))
            if not known
        ]
        if missing:
            return PartHealth(HealthStatus.UNHEALTHY, f"not known yet: {' and '.join(missing)}")
        failing = {
            f"{state.type.value}/{state.name}": state.error
            for worker in self._workers.values()
            for state in worker.states(owned=False)
            if state.error
        }
        if failing:
            names = ", ".join(failing)
            return PartHealth(HealthStatus.DEGRADED, f"callbacks fail: {names}", dict(failing))
        return OK

    def _worker(self, state_type: StateType | str) -> CallbackWorker:
        try:
            return self._workers[StateType(state_type)]
        except ValueError as err:
            known = ", ".join(known.value for known in StateType)
            raise KoordError(f"callback type: wanted one of {known}, found {state_type!r}") from err

    def _check_synced(self) -> None:
        if self._node is not None and self._pods_known:
            self._synced.set()

    def _snapshot(self, state_type: StateType) -> tuple[object, CallbackTarget]:
        state: object = None
        if state_type is StateType.NODE_SLO_SPEC:
            state = self._node_slo
        elif state_type is StateType.NODE_METADATA:
            state = self._node
        elif state_type is StateType.NODE_METRIC_SPEC:
            state = self._node_metric_spec
        elif state_type is StateType.NODE_TOPOLOGY:
            state = self._node_topology
        applications = () if self._node_slo is None else self._node_slo.host_applications
        return state, CallbackTarget(self.pods(), applications)
