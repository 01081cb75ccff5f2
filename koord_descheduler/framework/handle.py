"""The handle: everything that the factory of a plugin gets, and the evictions of one round."""

import asyncio
from abc import abstractmethod
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from msgspec.structs import replace

from koord.api.labelselector import LabelSelector
from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterNode, ClusterPod
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.state import ClusterState
from koord.cluster.view import View
from koord.component.plugins.shared import SharedParts
from koord.kube.client import DEVICES, NODE_TOPOLOGIES
from koord.kube.reflector import MissingKind
from koord.util.clock import Clock
from koord_descheduler.config import Namespaces
from koord_descheduler.framework.evictor import (
    Action,
    Decisions,
    EvictorProxy,
    Findings,
    FrameworkMetrics,
)
from koord_descheduler.framework.interfaces import (
    AdmissionGate,
    DeschedulePlugin,
    EvictOptions,
    OpenGate,
    Status,
)
from koord_descheduler.rules.hardware import (
    GPU,
    NUMA_NODE,
    Parts,
    gpu_parts,
    need_of,
    numa_parts,
)
from koord_descheduler.rules.hardwaretable import NodeHardware

if TYPE_CHECKING:
    from koord.kube.client import ApiClient, Resource
    from koord.kube.events import EventRecorder
    from koord.kube.informer import SharedInformer


T = TypeVar("T")

FilterFunc = Callable[[ClusterPod], bool]
"""Whether a pod is selected."""


def combine(*filters: FilterFunc | None) -> FilterFunc:
    """Return the conjunction, which asks in this order and no further than needed; None: none."""
    wanted = tuple(each for each in filters if each is not None)
    return lambda pod: all(each(pod) for each in wanted)


def pod_filter(
    *,
    include: Collection[str] = (),
    exclude: Collection[str] = (),
    selector: LabelSelector | None = None,
    custom: FilterFunc | None = None,
) -> FilterFunc:
    """Return the filter for pods of these namespaces, not of those, with these labels.

    Without included namespaces all are selected. The order is that of the arguments.
    """
    wanted, unwanted = frozenset(include), frozenset(exclude)
    return combine(
        (lambda pod: pod.namespace in wanted) if wanted else None,
        (lambda pod: pod.namespace not in unwanted) if unwanted else None,
        (lambda pod: selector.matches(pod.labels)) if selector is not None else None,
        custom,
    )


def pods_in(namespaces: Namespaces | None, selector: LabelSelector | None = None) -> FilterFunc:
    """Return the filter for the pods that a plugin's arguments are about; None: all."""
    named = namespaces or Namespaces()
    return pod_filter(include=named.include, exclude=named.exclude, selector=selector)


def unfinished(pods: Iterable[ClusterPod], wanted: FilterFunc) -> list[ClusterPod]:
    """Return the pods that have not ended for good and pass the filter, in their order."""
    return [pod for pod in pods if not pod.finished and wanted(pod)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Migration:
    """One pod on its way."""

    pod: str  # namespace/name
    uid: str  # of the pod
    node: str  # where it is; "": not known
    target: str = ""  # the node that is reserved for it; "": none yet


class Migrations:
    """Migrations by uid of the pod, kept by the plugins that carry them out.

    Other plugins count them: a pod that is leaving relieves its node already, see carried_out.
    Belongs to the event loop.
    """

    def __init__(self) -> None:
        self._by_uid: dict[str, Migration] = {}
        self.by_uid: Mapping[str, Migration] = MappingProxyType(self._by_uid)  # live

    def put(self, migration: Migration) -> None:
        """Note that a pod is on its way, or where to."""
        self._by_uid[migration.uid] = migration

    def end(self, uid: str) -> None:
        """The pod is gone, or stays after all; one that is not known is none."""
        self._by_uid.pop(uid, None)

    def carried_out(self, cluster: ClusterState) -> View:
        """Return a view of the cluster in which all migrations are complete.

        A pod whose target is unknown is on no node. A pod that is gone or has ended stays as it is.
        """
        view = cluster.view()
        complete = HypotheticalCluster(view)
        for one in self._by_uid.values():
            pod = cluster.pod(one.pod)
            if pod is None or pod.uid != one.uid or pod.finished or pod.node == one.target:
                continue
            if view.row(pod.node) is None:
                continue
            complete.remove(pod.key, pod.node)
            if view.row(one.target) is not None:
                complete.add(replace(pod, node=one.target), one.target)
        return complete.view()


class Informers(Protocol):
    """The collections that the daemon follows, one copy of each for all plugins."""

    def informer(
        self, resource: "Resource", *, absent: "MissingKind | None" = None, without: str = ""
    ) -> "SharedInformer[Any]":
        """Return the informer of a kind; it is started with the others.

        absent and without: for a kind that the cluster, or the role, need not have.
        """


_DISCOVERY_INTERVAL, _MAX_DISCOVERY_INTERVAL = 30.0, 600.0  # seconds
_WITHOUT = "pods may be evicted whose {what} no other node has free"


class Hardware:
    """Knows the devices and CPUs that are free on nodes. Belongs to the event loop.

    Device and NodeResourceTopology objects are followed from when the first pod needs it.
    """

    def __init__(self, informers: Informers) -> None:
        self._informers = informers
        self._columns = NodeHardware()
        self._kinds: dict[str, SharedInformer[Any]] = {}
        self._changes = 0

    def fits(self, pod: ClusterPod, view: View) -> Mask | None:
        """Return the nodes that can give a pod the devices and CPUs that it has; None: it has none.

        It is a necessary condition; see koord_descheduler.rules.hardwaretable. No node fits while
        the objects are being listed for the first time. All do where there are none, or where
        their CRD is missing.
        """
        need = need_of(pod) if pod.annotations else None
        if need is None:
            return None
        followed = [self._follow("CPUs", NODE_TOPOLOGIES)]  # and policies of kubelets
        if need.devices:
            followed.append(self._follow("devices", DEVICES))
        if not all(one.answered for one in followed):
            return np.zeros(len(view), np.bool_)
        return self._columns.table(
            view, self._objects("devices"), self._objects("CPUs"), self._changes
        ).fits(need)

    def parts(self, kind: str, view: View) -> dict[int, Parts] | None:
        """Return the GPUs, or the NUMA nodes, of all nodes that have some, by row.

        kind: of PART_KINDS. None: the objects are being listed for the first time.
        """
        what, resource = _PART_OBJECTS[kind]
        followed = self._follow(what, resource)
        if not followed.answered:
            return None
        read = gpu_parts if kind == GPU else numa_parts
        found: dict[int, Parts] = {}
        for name, one in followed.objects.items():
            row = view.row(name)
            if row is not None and (parts := read(one, view.pods(row))):
                found[row] = parts
        return found

    async def listed(self) -> None:
        """Follow the objects now; return when they are listed, or cannot be."""
        for what, resource in _PART_OBJECTS.values():
            await self._follow(what, resource).wait_answered()

    def gaps(self, view: View) -> Iterator[str]:
        """Yield what pods of a view have of their nodes while no object says who has any.

        Each node counts as having enough of it.
        """
        needs = [
            need
            for row in range(len(view))
            for pod in view.pods(row)
            if pod.annotations and (need := need_of(pod)) is not None
        ]
        for what, count in (
            ("devices", sum(bool(need.devices) for need in needs)),
            ("CPUs", sum(bool(need.cpus) for need in needs)),
        ):
            if count and not self._objects(what):
                kind = _OBJECT_KINDS[what]
                yield (
                    f"{count} pods have {what} of their own, and no {kind} is known: each node "
                    "counts as having enough"
                )

    def _follow(self, what: str, resource: "Resource") -> "SharedInformer[Any]":
        found = self._kinds.get(what)
        if found is None:
            without = _WITHOUT.format(what=what)
            absent = MissingKind(
                pause=_DISCOVERY_INTERVAL, hint=without, max_pause=_MAX_DISCOVERY_INTERVAL
            )
            found = self._informers.informer(resource, absent=absent, without=without)
            self._kinds[what] = found
            found.add_handler(self._changed)
        return found

    def _changed(self, _: object) -> None:
        self._changes += 1

    def _objects(self, what: str) -> Mapping[str, Any]:
        found = self._kinds.get(what)
        return {} if found is None else found.objects


_PART_OBJECTS = {GPU: ("devices", DEVICES), NUMA_NODE: ("CPUs", NODE_TOPOLOGIES)}
_OBJECT_KINDS = {"devices": "Device", "CPUs": "NodeResourceTopology"}


class PluginsRunner(Protocol):
    """Runs the plugins of a profile."""

    async def run_deschedule_plugins(self, nodes: Sequence[ClusterNode]) -> Status: ...

    async def run_balance_plugins(self, nodes: Sequence[ClusterNode]) -> Status: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Services:
    """The services that all profiles of a process share."""

    client: "ApiClient"
    events: "EventRecorder"
    informers: Informers
    cluster: ClusterState
    """The cluster as it is known; plugins only read it."""
    decisions: Decisions
    migrations: Migrations
    clock: Clock
    metrics: FrameworkMetrics
    shared: SharedParts = field(default_factory=SharedParts)
    """Parts of plugins that exist once in this process, and run while it leads."""
    identity: str = "koord-descheduler"
    """The same for all replicas and after a restart: what this descheduler's objects are named by.

    The daemon gives namespace/name of its Lease.
    """
    gate: AdmissionGate = field(default_factory=OpenGate)
    """Asked before each eviction; the daemon gives the ledger."""
    hardware: Hardware = field(init=False)
    """The devices and CPUs that are free on nodes, for NodeFit."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "hardware", Hardware(self.informers))


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle:
    """The interface between the plugins of one profile and the descheduler."""

    profile: str
    services: Services
    dry_run: bool
    node_selector: LabelSelector | None  # of the profile; None: all nodes
    runner: PluginsRunner
    evictor: Callable[[], EvictorProxy]
    """Returns a new proxy, which is stateless; all share the limits of the process."""

    def view_with_migrations(self) -> View:
        """Return the cluster as if all pods that are on their way were where they go.

        For decisions about what else has to move: a pod whose target is not known yet is nowhere.
        """
        return self.services.migrations.carried_out(self.services.cluster)

    def list_pods_on_node(
        self, node: str, wanted: FilterFunc = lambda pod: True
    ) -> list[ClusterPod]:
        """Return the pods of a node that have not ended for good and pass the filter."""
        return unfinished(self.services.cluster.pods_of_node(node), wanted)


CHUNK = 64  # pods that are looked at without a pause for the event loop
STEPS = 32  # of a plan that are made ahead
UNFIT = "the filters do not let it go now: it may fit no other node"


class EvictionCandidate(NamedTuple):
    """A pod that should leave its node, and why: a sentence for people."""

    pod: ClusterPod
    why: str
    but: str = ""  # why it stays all the same; "": nothing holds it


class Evictions:
    """Evicts the pods that a plugin chooses, within filters and limits. Belongs to one round.

    Use it in a `with` statement: at the end the plugin's decisions are published, even after an
    error.
    """

    def __init__(self, handle: Handle, plugin: str) -> None:
        """plugin: its name."""
        self._handle = handle
        self._evictor = handle.evictor()
        self.findings = Findings(handle.profile, plugin)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, at: TracebackType | None
    ) -> None:
        self._handle.services.decisions.publish(self.findings)

    @property
    def over(self) -> bool:
        """Whether no further pod may be evicted in this cycle."""
        return self._evictor.total_limit_exceeded

    def over_on(self, node: str) -> bool:
        """Whether no further pod of a node may be evicted in this cycle."""
        return self.over or self._evictor.node_limit_exceeded(node)

    def may_go(self, pod: ClusterPod, why: str) -> bool:
        """Whether the filters let a pod go that should leave; if not, that is noted."""
        if not self._evictor.filter(pod):
            self.findings.pod(pod, Action.REFUSED, f"{why}, but {self._evictor.reject_reason(pod)}")
            return False
        return True

    async def those_that_may_go(self, pods: Iterable[ClusterPod], why: str) -> list[ClusterPod]:
        """Return the pods that the filters let go; of the others that is noted."""
        found = []
        for number, pod in enumerate(pods):
            if number % CHUNK == 0:
                await asyncio.sleep(0)
            if self.may_go(pod, why):
                found.append(pod)
        return found

    async def steps(self, plan: Iterator[T]) -> AsyncIterator[T]:
        """Yield the steps of a plan, which is made in a worker thread, until the round is over.

        A few at a time, so that a limit which is reached ends the planning, too.
        """
        while not self.over:
            some = await asyncio.to_thread(lambda: list(islice(plan, STEPS)))
            for step in some:
                yield step
            if len(some) < STEPS:
                return

    async def evict(self, pod: ClusterPod, why: str, candidates: tuple[str, ...] = ()) -> bool:
        """Evict a pod that may go, if it may go now; return whether that worked."""
        await asyncio.sleep(0)  # many pods in a row do not hold up the loop
        if self._limited(pod, why):
            return False
        if not self._evictor.pre_eviction_filter(pod):
            but = self._evictor.pre_eviction_reject_reason(pod) or UNFIT
            self.findings.pod(pod, Action.REFUSED, f"{why}, but {but}")
            return False
        self.findings.pod(pod, Action.EVICT, why, candidates=candidates)
        return await self._evictor.evict(pod, EvictOptions(reason=why))

    async def evict_all(self, choices: Iterator[EvictionCandidate]) -> None:
        """Evict the pods that filters and limits let go, in this order; see steps."""
        async for pod, why, but in self.steps(choices):
            if but:
                self.findings.pod(pod, Action.STAY, f"{why}, but {but}")
            elif not self._limited(pod, why) and self.may_go(pod, why):
                await self.evict(pod, why)

    def _limited(self, pod: ClusterPod, why: str) -> bool:
        """Whether a limit forbids further evictions from a pod's node; that is noted."""
        if not self.over_on(pod.node):
            return False
        limit = "of this cycle" if self.over else f"of node {pod.node}"
        self.findings.pod(
            pod, Action.REFUSED, f"{why}, but the limit of evictions {limit} is reached"
        )
        return True


class PureDeschedulePlugin(DeschedulePlugin):
    """Names the pods that should leave, and why; filters, limits and evictions are done for it."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    @abstractmethod
    def pods_to_evict(
        self, view: View, rows: Sequence[int], now: float
    ) -> Iterator[EvictionCandidate]:
        """Yield the pods that should leave these rows of the view, in the order of importance.

        It runs in a worker thread, so it must change nothing; once a limit of evictions is reached
        it is not resumed. now is in Unix seconds.
        """

    async def deschedule(self, nodes: Sequence[ClusterNode]) -> None:
        services = self._handle.services
        view, now = services.cluster.view(), services.clock.wall()
        rows = [row for node in nodes if (row := view.row(node.name)) is not None]
        with Evictions(self._handle, self.name) as evictions:
            await evictions.evict_all(iter(self.pods_to_evict(view, rows, now)))
