"""The handle: everything that the factory of a plugin gets and a plugin may use."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from prometheus_client import CollectorRegistry

from koord.cluster.columns import Mask
from koord.cluster.decoder import Decoder
from koord.cluster.facts import ClusterPod
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.kinds import POD
from koord.cluster.lenient_decoding import DecodingFaults
from koord.cluster.state import ClusterState
from koord.cluster.view import View
from koord.component.plugins.execution import RepeatedTimeLimit
from koord.component.plugins.shared import SharedParts
from koord.util.clock import Clock
from koord.util.errors import InvalidObject
from koord_scheduler.framework.calls import FrameworkMetrics
from koord_scheduler.framework.customresources import CustomResources
from koord_scheduler.framework.extension.networktopology import (
    MISSING,
    TOPOLOGIES,
    WITHOUT,
    NetworkTopology,
)
from koord_scheduler.framework.groupplan import GroupPlanner
from koord_scheduler.framework.interfaces import (
    Changes,
    FailureFilters,
    ForgetHandlers,
    PodClaims,
    StartHooks,
)
from koord_scheduler.framework.nominator import Nominator, WaitingPods
from koord_scheduler.framework.status import SUCCESS, CycleInput, CycleState, NodeStatuses, Status
from koord_scheduler.framework.types import Refresh

if TYPE_CHECKING:
    from koord.kube.client import ApiClient, Resource
    from koord.kube.events import EventRecorder
    from koord.kube.informer import SharedInformer
    from koord.kube.reflector import MissingKind
    from koord_scheduler.framework.extension.auditor import WorkloadAuditor
    from koord_scheduler.framework.extension.numa import TopologyManager
    from koord_scheduler.framework.extension.reservations import ReservationPlugins

Json = Mapping[str, Any]


class PodDecoder:
    """Makes pods of manifests and templates, with the fields that plugins declare to read.

    As with pods of the API server, a part that cannot be read is left out, and named in
    pod.spec.unread: such a pod fits no node.
    """

    def __init__(self, decoder: Decoder | None = None) -> None:
        """decoder: that of the cluster's pods, so that equal pods share what they have."""
        self._decoder = decoder or Decoder()

    def read(self, manifest: Json) -> ClusterPod:
        """Return the pod of a Pod object, as it is in JSON.

        Raises:
            InvalidObject: it is no pod, or too large.
        """
        if not isinstance(manifest, Mapping):
            raise InvalidObject("pod", wanted="an object", found=manifest)
        try:
            data = msgspec.json.encode(manifest)
        except (TypeError, ValueError, RecursionError) as err:
            raise InvalidObject("pod", wanted="JSON", found=str(err)) from err
        return self._decoder.object(POD, data, DecodingFaults())

    def read_template(
        self,
        template: Json,
        *,
        name: str,
        namespace: str,
        uid: str,
        node: str = "",
        priority: int | None = None,
    ) -> ClusterPod:
        """Return a pod of a PodTemplateSpec, such as that of a Reservation.

        Labels and annotations are the template's. node: where it is bound; "": nowhere, whatever
        the template says. priority: by default the template's, as no admission has looked at its
        class.

        Raises:
            InvalidObject: there is no pod in it.
        """
        if not isinstance(template, Mapping):
            raise InvalidObject(f"template of pod {name}", wanted="an object", found=template)
        meta, spec = template.get("metadata") or {}, template.get("spec") or {}
        for found in (meta, spec):
            if not isinstance(found, Mapping):
                wanted = "metadata and spec to be objects"
                raise InvalidObject(f"template of pod {name}", wanted=wanted, found=found)
        own: dict[str, Any] = {"nodeName": node or None}
        if priority is not None:
            own["priority"] = priority
        kept = {key: meta.get(key) for key in ("labels", "annotations")}
        identity = {"name": name, "namespace": namespace, "uid": uid}
        return self.read({"metadata": {**kept, **identity}, "spec": {**spec, **own}})


class SchedulerControl(ABC):
    """The scheduler's cache, for plugins that have pods of their own.

    There is none yet while plugins are made; ask the handle for it each time.

    Source: Koordinator, pkg/scheduler/frameworkext (Scheduler).
    """

    @abstractmethod
    def pod(self, key: str) -> ClusterPod | None:
        """A pod by namespace/name, on the node that it is assumed to be on; None: not known."""

    @abstractmethod
    def is_assumed(self, uid: str) -> bool:
        """Whether a pod is on its node though the API server does not say so yet."""

    @abstractmethod
    def forget_pod(self, pod: ClusterPod) -> bool:
        """Take an assumed pod off its node; return whether it was assumed.

        All forget handlers are called, whether it was or not.
        """

    @abstractmethod
    def put_own_pod(self, pod: ClusterPod) -> None:
        """Put a pod that the API server does not have, such as one that stands for a reservation.

        Bound to a node, it takes resources there; without one, and asking for one of our profiles,
        it is queued. Put again, it is changed. Lists of the API server do not remove it.

        Raises:
            ValueError: the API server has a pod of this name.
        """

    @abstractmethod
    def remove_own_pod(self, key: str) -> None:
        """Remove such a pod; one that is none is left alone."""

    @abstractmethod
    def put_smaller_pod(self, pod: ClusterPod) -> None:
        """Let a bound pod of the API server take what this one requests, until it changes there.

        As one whose room others have, such as a pod in operating mode. No event comes of it.
        """

    @abstractmethod
    def refresh_own_pods(self, refresh: Refresh) -> None:
        """Let own pods follow the account: what is left of a reservation, say.

        refresh(before, now) is called before a view of another account is taken. It returns the own
        pods that are others now, and others as for put_smaller_pod; no event comes of that. It must
        be fast; if it fails, that is logged, and they stay as they are.
        """

    @abstractmethod
    def report_unschedulable(self, pod: ClusterPod, message: str) -> None:
        """Write into the condition PodScheduled of a pod why it is not scheduled; never waits.

        For a pod that was not tried, as another one of its group has failed for all of them. One
        that says why already is left alone, or a large group would cost its size each time; so is
        one that has gone or has a node, and an own pod.
        """


class ControlSlot:
    """Where the scheduler is found once it is there."""

    def __init__(self) -> None:
        self._control: SchedulerControl | None = None

    def set(self, control: SchedulerControl) -> None:
        self._control = control

    def get(self) -> SchedulerControl:
        """Raises LookupError: it is not there."""
        if self._control is None:
            raise LookupError("there is no scheduler yet: ask for it when pods are scheduled")
        return self._control


class Informers(Protocol):
    """The collections that the daemon follows, one copy of each for all plugins."""

    def informer(
        self, resource: "Resource", *, absent: "MissingKind | None" = None, without: str = ""
    ) -> "SharedInformer[Any]":
        """Return the informer of a kind; it is started with the others.

        absent and without: for a kind that a cluster, or a role, need not have: what to do about
        it, and what is missed. Without them the start waits for its first list.
        """


class PodCounting(Protocol):
    """Plugins of a profile that count pods in the state of a cycle.

    Raises ExtensionPointError where a plugin has failed.
    """

    def count_pods(self, state: CycleState) -> bool:
        """Whether any plugin has to be asked to add and remove pods; otherwise it does nothing."""

    def add_pod(
        self, state: CycleState, pod: ClusterPod, added: ClusterPod, nodes: View, row: int
    ) -> None:
        """Make plugins count a pod that the view has on a node, in a clone of the state."""

    def remove_pod(
        self, state: CycleState, pod: ClusterPod, removed: ClusterPod, nodes: View, row: int
    ) -> None:
        """Make plugins stop counting a pod that has left a node of the view."""


class NodeFilters(PodCounting, Protocol):
    """PreFilter and Filter of all plugins of a profile, for what-ifs as of preemption.

    Raises ExtensionPointError where a plugin has failed.
    """

    def filter(self, state: CycleState, pod: ClusterPod, nodes: View, wanted: Mask) -> NodeStatuses:
        """Call Filter for some nodes; the others are absent."""

    def filter_row(self, state: CycleState, pod: ClusterPod, nodes: View, row: int) -> Status:
        """Call Filter for one node: Success or a rejection."""

    def victim_groups(
        self, state: CycleState, pod: ClusterPod, nodes: View, row: int
    ) -> Sequence[Collection[str]]:
        """Keys of pods of a node that hold what lies together, as plugins say."""


Victims = tuple[tuple[ClusterPod, ...], int]
"""Pods of a node that would be evicted, and how many of them a disruption budget protects."""


class PreemptExtenders(Protocol):
    """Services outside that have a say in preemptions."""

    async def preempt(
        self, pod: ClusterPod, candidates: Mapping[str, Victims]
    ) -> Mapping[str, Victims]:
        """Return the candidates for a pod that they leave, by node, and with which victims.

        Raises:
            KoordError: one that must not fail has failed.
        """


def _no_gate(name: str) -> bool:
    return False


@dataclass(frozen=True, kw_only=True, slots=True)
class Services:
    """Services that all profiles of a process share."""

    client: "ApiClient"
    events: "EventRecorder"
    informers: Informers
    cluster: ClusterState
    """The cluster as it is known, with the pods that are assumed.

    Plugins only read it, and have accounts kept of what pods hold.
    """
    changes: Changes
    """Changes of the cluster's objects, for plugins with a state of their own."""
    waiting: WaitingPods
    """Pods that wait for a permit; plugins allow or reject them."""
    nominator: Nominator
    """Pods nominated to a node by preemption; others: nominated by other schedulers."""
    activate: Callable[[Iterable[str]], None]
    """Retry pods, by uid, now, whatever they wait for; gates still count.

    This is for what a plugin knows by itself. Pods that wait for an object are retried by the
    events that a plugin registers. One whose attempt goes on is retried after its backoff if that
    fails. There is nothing to retry before the scheduler is there, and in a plan.
    """
    clock: Clock
    metrics: FrameworkMetrics
    failures: FailureFilters
    """Filters of plugins for pods whose attempts failed."""
    forgotten: ForgetHandlers
    """Called when a plugin has an assumed pod taken off its node."""
    hooks: StartHooks
    """Hooks of plugins, run when the cluster is known, before the first pod is tried."""
    custom_resources: CustomResources
    """Kinds of plugins' own, whose changes are events for the queue."""
    pod_decoder: PodDecoder = field(default_factory=PodDecoder)
    """Makes pods of manifests and templates."""
    control: ControlSlot = field(default_factory=ControlSlot)
    network: NetworkTopology | None = None
    """The network between nodes; None, unless --enable-network-topology-manager is given."""
    auditor: "WorkloadAuditor | None" = None
    """The audit of each workload; None, unless --enable-workload-auditor is given."""
    extenders: PreemptExtenders | None = None
    """Extenders that support preemption; None: there are none."""
    gates: Callable[[str], bool] = _no_gate
    """Whether a feature gate of the scheduler, by its name, is on."""
    shared: SharedParts = field(default_factory=SharedParts)
    """Parts of plugins that exist once in this process, and run while it is the leader."""
    limits: RepeatedTimeLimit = field(default_factory=RepeatedTimeLimit)
    """Time limits of plugin code that does not await. The runners of cycles and of the queue enter
    it once for their whole run, which makes each call cheap.
    """


def new_services(
    *,
    client: "ApiClient",
    events: "EventRecorder",
    informers: Informers,
    cluster: ClusterState,
    activate: Callable[[Iterable[str]], None],
    clock: Clock,
    registry: CollectorRegistry,
    extenders: PreemptExtenders | None = None,
    network: bool = False,
    auditor: "WorkloadAuditor | None" = None,
    decoder: Decoder | None = None,
    gates: Callable[[str], bool] = _no_gate,
) -> Services:
    """Return services for one process, with no state yet.

    network: the network between nodes is followed. decoder: that of the cluster's pods. gates:
    whether a feature gate is on; by default none is.
    """
    changes, topology = Changes(clock), None
    if network:
        informer = informers.informer(TOPOLOGIES, absent=MISSING, without=WITHOUT)
        topology = NetworkTopology(cluster, changes, informer, clock)
    return Services(
        network=topology,
        auditor=auditor,
        client=client,
        events=events,
        informers=informers,
        custom_resources=CustomResources(informers, clock),
        pod_decoder=PodDecoder(decoder),
        cluster=cluster,
        changes=changes,
        waiting=WaitingPods(clock),
        nominator=Nominator(),
        activate=activate,
        clock=clock,
        metrics=FrameworkMetrics(registry),
        failures=FailureFilters(clock),
        forgotten=ForgetHandlers(clock),
        hooks=StartHooks(clock),
        extenders=extenders,
        gates=gates,
    )


def _ignore() -> None:
    """Nothing is kept, as in tests of one plugin."""


def _none_yet() -> "ReservationPlugins":
    raise LookupError("the profile is not complete: ask for reservations in a cycle")


def _no_numa() -> "TopologyManager":
    raise LookupError("the profile is not complete: ask for NUMA admission in a cycle")


def _no_groups() -> GroupPlanner:
    raise LookupError("the profile is not complete: ask for plans in a cycle")


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle:
    """The access that the plugins of one profile get."""

    profile: str  # its scheduler name
    services: Services
    filters: Callable[[], NodeFilters]
    """Those of the profile; there are none yet while its plugins are made."""
    claims: PodClaims | None = None
    """The keys of pods that plugins of the profile claim; None: in no profile, as in tests."""
    reservations: Callable[[], "ReservationPlugins"] = _none_yet
    """Runs the profile's reservation plugins; none while plugins are made."""
    numa: Callable[[], "TopologyManager"] = _no_numa
    """Chooses NUMA nodes by the hints of the profile's plugins; none while plugins are made."""
    groups: Callable[[], GroupPlanner] = _no_groups
    """Plans nodes for pods that must be placed together; none while plugins are made."""
    reconsider: Callable[[], None] = _ignore
    """Has plugins of the profile asked anew at which extension points they are active."""

    def scheduler(self) -> SchedulerControl:
        """The scheduler's cache.

        Raises:
            LookupError: there is none yet, as while plugins are made, or none at all, as in a plan.
        """
        return self.services.control.get()


class HypotheticalNode:
    """A node with other pods, and the state of a cycle in which plugins count them."""

    def __init__(
        self, counting: PodCounting, state: CycleState, pod: ClusterPod, nodes: View, row: int
    ) -> None:
        """state: after PreFilter; not changed. pod: the one that is to be placed."""
        self.state = state.clone()
        self._counting = counting
        self._pod = pod
        self._row = row
        self._name = nodes.node(row).name
        self._counted = counting.count_pods(state)
        self._cluster = HypotheticalCluster(nodes)

    @property
    def nodes(self) -> View:
        """All nodes, as they are now."""
        return self._cluster.view()

    @property
    def cycle(self) -> CycleInput:
        """The input of plugins for the pod that is to be placed."""
        return CycleInput(self.state, self._pod, self.nodes, is_altered=True)

    def add(self, pods: Iterable[ClusterPod]) -> None:
        """Put pods on the node."""
        for pod in pods:
            self._cluster.add(pod, self._name)
            if self._counted:
                self._counting.add_pod(self.state, self._pod, pod, self.nodes, self._row)

    def remove(self, pods: Iterable[ClusterPod]) -> None:
        """Remove pods from the node."""
        for pod in pods:
            self._cluster.remove(pod.key, self._name)
            if self._counted:
                self._counting.remove_pod(self.state, self._pod, pod, self.nodes, self._row)


class PreemptionTrial:
    """A node on which pods leave and come back, as all plugins of a profile see it.

    Where other pods are nominated to the node, the pod must fit with them and without them. Raises
    ExtensionPointError where a plugin has failed.
    """

    def __init__(
        self,
        filters: NodeFilters,
        state: CycleState,
        pod: ClusterPod,
        nodes: View,
        row: int,
        nominated_pods: Sequence[ClusterPod] = (),
    ) -> None:
        """state: after PreFilter; not changed. nominated_pods: fits tests with and without."""
        self.status: Status = SUCCESS
        """The last status of Filter."""
        self._filters = filters
        self._pod = pod
        self._row = row
        self._variants = [HypotheticalNode(filters, state, pod, nodes, row)]
        there = {one.key for one in nodes.pods(row)} if nominated_pods else set()
        missing = [one for one in nominated_pods if one.key not in there]
        if missing:
            with_nominated = HypotheticalNode(filters, state, pod, nodes, row)
            with_nominated.add(missing)
            self._variants.insert(0, with_nominated)

    def remove(self, pods: Sequence[ClusterPod]) -> None:
        """Remove pods from the node."""
        for node in self._variants:
            node.remove(pods)

    def add(self, pods: Sequence[ClusterPod]) -> None:
        """Return removed pods to the node."""
        for node in self._variants:
            node.add(pods)

    def fits(self) -> bool:
        """Whether the pod passes Filter on the node as it is now."""
        for node in self._variants:
            self.status = self._filters.filter_row(node.state, self._pod, node.nodes, self._row)
            if not self.status.ok:
                return False
        return True
