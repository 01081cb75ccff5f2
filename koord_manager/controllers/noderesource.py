"""Keeps what nodes offer: one patch of a node's status, and one of its zones, when they differ."""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from koord.api.slocontroller import ColocationStrategy
from koord.cluster.facts import ClusterPod
from koord.kube.client import MERGE_PATCH, NODE_TOPOLOGIES, NODES, ApiClient
from koord.kube.errors import KubeError, NotFound
from koord.kube.events import Event, EventType, ObjectRef
from koord.kube.transport import METADATA
from koord.util.clock import Clock
from koord.util.logs import get_logger
from koord_manager import NAME
from koord_manager.cluster import ManagerCluster, NodeChange, NodeObjects
from koord_manager.controllers.worker import (
    DOUBTFUL,
    ENABLED,
    SHORT,
    STALE,
    NodeResourceMetrics,
    NodeWorker,
)
from koord_manager.framework.calculator import Calculator, History, NodeResult
from koord_manager.framework.facts import ClusterConfig, NodeFacts, gather_facts
from koord_manager.framework.writing import node_patch, zone_operations

# seconds in which each node is looked at, also when nothing happens; more than from one report to
# the next, or nearly each report would mean two looks
SWEEP = 180.0
PROMPT = 30.0  # seconds after a report in which a patch is counted as caused by it
MAX_NAMED = 5  # pods in an event

log = get_logger("koord_manager.noderesource")


@dataclass(slots=True)
class _NodeState:
    history: History = field(default_factory=History)
    written: float | None = None  # Unix seconds
    zones_written: float | None = None
    short: frozenset[str] = frozenset()  # resources of which pods hold more than is offered
    facts: NodeFacts | None = None  # of the last look, with what was made of them
    result: NodeResult | None = None  # of the last look, without how it came about


@dataclass(frozen=True, slots=True)
class InsufficientResource:
    """Pods that hold more of a resource than their node offers."""

    offered: int
    held: int
    pods: tuple[str, ...]  # namespace/name, the largest first


def held_amounts(pods: Iterable[ClusterPod]) -> Mapping[str, int]:
    """Return what the unfinished pods of a node hold together, by resource."""
    found: dict[str, int] = {}
    for pod in pods:
        if not pod.finished:
            for name, amount in pod.spec.requests:
                found[name] = found.get(name, 0) + amount
    return found


def insufficient_resources(
    result: NodeResult, node: NodeFacts
) -> Mapping[str, InsufficientResource]:
    """Return, by resource, where the pods of a node hold more than it offers."""
    found: dict[str, InsufficientResource] = {}
    for name, total in node.of_pods(held_amounts).items():
        settled = result.resources.get(name)
        if settled is not None and total > (offered := settled.amount or 0):
            holders = [
                (amount, pod.key)
                for pod in node.pods
                if not pod.finished and (amount := dict(pod.spec.requests).get(name, 0))
            ]
            keys = tuple(key for _, key in sorted(holders, reverse=True))
            found[name] = InsufficientResource(offered, total, keys)
    return found


class NodeResources(NodeWorker):
    """Keeps the resources of nodes. Belongs to the event loop."""

    name = "noderesource"
    follows = frozenset(
        {
            NodeChange.NODE,
            NodeChange.OFFERS,
            NodeChange.PODS,
            NodeChange.REPORT,
            NodeChange.TOPOLOGY,
            NodeChange.DEVICES,
        }
    )

    def __init__(
        self,
        cluster: ManagerCluster,
        objects: NodeObjects | None,
        calculator: Calculator,
        config: Callable[[], ClusterConfig | None],
        client: ApiClient,
        clock: Clock,
        metrics: NodeResourceMetrics,
        emit: Callable[[Event], None],
        *,
        dry_run: bool = False,
    ) -> None:
        """config returns the configuration; None: it is not known yet."""
        super().__init__(clock)
        self._cluster = cluster
        self._objects = objects
        self._calculator = calculator
        self._config = config
        self._client = client
        self._metrics = metrics
        self._emit = emit
        self._dry_run = dry_run
        self._states: dict[str, _NodeState] = {}

    def ready(self) -> bool:
        return self._config() is not None

    def everything(self) -> Iterable[str]:
        return tuple(self._cluster.snapshot.node_names())

    def changed(self, name: str, change: NodeChange, delay: float) -> None:
        """Look at a node, unless the change is what this daemon has written itself."""
        if change is not NodeChange.OFFERS or not self._is_in_line(name):
            super().changed(name, change, delay)

    def _is_in_line(self, name: str) -> bool:
        """Whether a node has what it is to have by the last look."""
        node, state = self._cluster.snapshot.node(name), self._states.get(name)
        if node is None or state is None or state.result is None:
            return False
        patch = node_patch(node, state.result, ColocationStrategy(), written=None, now=0.0)
        return patch is None

    def facts(self, name: str) -> NodeFacts | None:
        """Return what is known of a node; None: there is none, or no configuration."""
        node, config = self._cluster.snapshot.node(name), self._config()
        if node is None or config is None:
            return None
        objects, pods = self._objects, self._cluster.snapshot.pods_of_node(name)
        topology = objects.topologies.objects.get(name) if objects else None
        devices = objects.devices.objects.get(name) if objects else None
        now, report = self._clock.wall(), self._cluster.reports.get(name)
        _, seen = self._cluster.seen.get(name, (None, None))
        state = self._states.get(name)
        last = state.facts if state else None
        is_same = last is not None and last.pods is pods  # a changed pod makes another tuple
        if (
            last is not None
            and is_same
            and last.node is node
            and last.config is config
            and last.topology is topology
            and last.devices is devices
        ):
            return last.at(now, report, seen)
        facts, problems = gather_facts(
            node,
            config,
            now=now,
            report=report,
            seen=seen,
            pods=pods,
            topology=topology,
            devices=devices,
            derived=last.derived if last is not None and is_same else None,
        )
        if problems:
            log.debug("node.partly_rejected", node=name, problems=[str(one) for one in problems])
        if state is not None:
            state.facts = facts
        return facts

    def explain(
        self, name: str
    ) -> tuple[NodeFacts, NodeResult, Mapping[str, InsufficientResource]] | None:
        """Return what a node is to have now, and why; None: it is not known."""
        facts = self.facts(name)
        if facts is None:
            return None
        state = self._states.get(name) or _NodeState()
        result = self._calculator.calculate(facts, copy.deepcopy(state.history))
        return facts, result, insufficient_resources(result, facts)

    async def reconcile(self, name: str) -> None:
        facts = self.facts(name)
        if facts is None:
            self._forget(name)
            return
        fresh_for = facts.fresh_for
        self.queue.add_after(name, SWEEP if fresh_for is None else min(SWEEP, fresh_for + 1))
        state = self._states.setdefault(name, _NodeState())
        state.facts = facts
        result = self._calculator.calculate(facts, state.history)
        state.result = result.amounts_only()
        self._metrics.offered[name] = {key: one.calculated for key, one in result.resources.items()}
        self._note_insufficient(facts, result, state)
        self._note_state(facts, result, state)
        try:
            await self._write_zones(facts, result, state)
        except KubeError as err:  # the node is written all the same
            self._count("failed", "updateNodeResourceTopology")
            log.debug("zones.failed", node=name, error=str(err))
        await self._write_node(facts, result, state)

    async def _write_node(self, facts: NodeFacts, result: NodeResult, state: _NodeState) -> None:
        name, now = facts.name, facts.now
        patch = node_patch(facts.node, result, facts.strategy, written=state.written, now=now)
        if patch is None:
            return
        log.debug("node.patched", node=name, reason=patch.reason, dry_run=self._dry_run)
        if self._dry_run:
            return
        path = NODES.object(name, subresource="status")
        try:
            await self._client.patch(
                path, patch.body, MERGE_PATCH, accept=METADATA, field_manager=NAME
            )
        except NotFound:  # the watch will say so
            return
        except KubeError:
            self._count("failed", "updateNodeStatus")
            raise
        state.written = now
        self._count("succeeded", "reconcileSuccess")
        seen = self._cluster.seen.get(name)
        if seen is not None and now - seen[1] < PROMPT:
            self._metrics.latency.observe(max(self._clock.wall() - seen[1], 0.0))

    async def _write_zones(self, facts: NodeFacts, result: NodeResult, state: _NodeState) -> None:
        topology = facts.topology
        if topology is None or not result.zones or self._dry_run:
            return
        strategy = facts.strategy
        limit = strategy.update_time_threshold_seconds
        if state.zones_written is None or facts.now - state.zones_written > limit:
            strategy = _writes_all(strategy)
        operations = zone_operations(topology, result.zones, strategy)
        if operations:
            await self._client.json_patch(
                NODE_TOPOLOGIES.object(facts.name), operations, field_manager=NAME
            )
            state.zones_written = facts.now

    def _note_insufficient(self, facts: NodeFacts, result: NodeResult, state: _NodeState) -> None:
        found = insufficient_resources(result, facts)
        for name in found.keys() - state.short:
            one = found[name]
            named = ", ".join(one.pods[:MAX_NAMED])
            more = f" and {len(one.pods) - MAX_NAMED} more" if len(one.pods) > MAX_NAMED else ""
            why = result.resources[name].reason
            message = (
                f"{name}: {one.offered} offered, {one.held} held by {named}{more}"
                f"{f'; {why}' if why else ''}"
            )
            log.info("node.short", node=facts.name, resource=name, offered=one.offered,
                     held=one.held, pods=one.pods[:MAX_NAMED])  # fmt: skip
            about = ObjectRef("v1", "Node", facts.name, uid=facts.name)
            self._emit(Event(about, EventType.WARNING, "LessThanHeld", message, NAME))
        state.short = frozenset(found)

    def _note_state(self, facts: NodeFacts, result: NodeResult, state: _NodeState) -> None:
        if not facts.strategy.enable:
            self._metrics.states.pop(facts.name, None)
            return
        holds = {ENABLED: True, STALE: facts.stale, DOUBTFUL: result.doubts, SHORT: state.short}
        self._metrics.states[facts.name] = frozenset(name for name, is_so in holds.items() if is_so)

    def _forget(self, name: str) -> None:
        self._states.pop(name, None)
        self._metrics.states.pop(name, None)
        self._metrics.offered.pop(name, None)

    def _count(self, status: str, reason: str) -> None:
        self._metrics.reconciles.inc(status, reason)


def _writes_all(strategy: ColocationStrategy) -> ColocationStrategy:
    return replace(strategy, resource_diff_threshold=0.0)
