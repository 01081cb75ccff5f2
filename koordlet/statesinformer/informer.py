"""Desired state of this node, as snapshots: Node, NodeSLO, pods and more.

Sources (API server, kubelet, files, the cgroup tree) call the set methods on the event loop.
Readers may be on any thread: each state is one immutable object that is replaced as a whole.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from koord.api.nodemetric import NodeMetricSpec
from koord.api.nodes.node import Node
from koord.api.slo.nodeslo import NodeSLO
from koord.util.clock import Clock
from koord.util.errors import KoordError
from koord.util.health import OK, PartHealth, Status
from koord.util.stop import Stop
from koordlet.rules.allocations import RefusedAllocation
from koordlet.statesinformer.callbacks import (
    CALLBACK_DEADLINE,
    CallbackState,
    CallbackTarget,
    CallbackWorker,
    StateType,
    UpdateCbFn,
)
from koordlet.statesinformer.model import PodMeta
from koordlet.statesinformer.pods.grantedpods import GrantedPods
from koordlet.statesinformer.subscription import Failed, Subscription

if TYPE_CHECKING:
    from koordlet.rules.nodetopology import NodeTopology


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
        """trusts_allocations: as GrantedPods."""
        self._node: Node | None = None
        self._node_slo: NodeSLO | None = None
        self._node_metric_spec = NodeMetricSpec()
        self._node_topology: NodeTopology | None = None
        self._grants = GrantedPods(trusts_allocations)
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
        """Have fn called after each change of a state, and again later if it fails.

        Changes that come while callbacks of the type run are one more run; fn sees the state of
        the moment it runs. fn is cancelled when it takes longer than the callback deadline. With a
        subscription it is called only while that is on.

        Raises:
            KoordError: the type does not exist, or has a callback of this name.
        """
        self._worker(state_type).register(name, description, fn, subscription)

    def subscribe(self, owner: str, failed: Failed) -> Subscription:
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
            return PartHealth(Status.UNHEALTHY, f"not known yet: {' and '.join(missing)}")
        failing = {
            f"{state.type.value}/{state.name}": state.error
            for worker in self._workers.values()
            for state in worker.states(owned=False)
            if state.error
        }
        if failing:
            names = ", ".join(failing)
            return PartHealth(Status.DEGRADED, f"callbacks fail: {names}", dict(failing))
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
