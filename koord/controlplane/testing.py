"""A made-up cluster and API server for tests of control plane plugins."""

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import chain
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from koord.api.quantity import Quantity
from koord.cluster import kinds
from koord.cluster import kinds as cluster_kinds
from koord.cluster.decoder import Decoder, ObjectKind
from koord.cluster.facts import (
    ClusterNode,
    ClusterPod,
    DisruptionBudget,
    Owner,
    PodSpec,
    PriorityClass,
    Workload,
)
from koord.cluster.keptfields import KeptFields, kept_annotations
from koord.cluster.kinds import UsageReport
from koord.cluster.lenient_decoding import DecodingFaults
from koord.cluster.state import ClusterState
from koord.kube.client import Resource
from koord.kube.errors import ApiError, api_error
from koord.kube.events import Event, EventRecorder
from koord.kube.informer import Handler, SharedInformer
from koord.kube.reflector import Change, ChangeKind, MissingKind
from koord.kube.transport import Call, Transport
from koord.util.health import OK, PartHealth
from koord.util.simulatedclock import SimulatedClock
from koord.util.stop import Stop

T = TypeVar("T")
Json = dict[str, Any]
Amount = float | str
Amounts = Mapping[str, Amount]

HOSTNAME = "kubernetes.io/hostname"

# Equal pods of a test share what those of a cluster share.
_DECODER, _CONTAINERS_DECODER = Decoder(), Decoder(KeptFields(containers=True))


def read(kind: ObjectKind[T], manifest: Mapping[str, Any], *, containers: bool = False) -> T:
    """Return what a daemon keeps of an object, where plugins declare to read all annotations.

    containers: and what each container requests.

    Raises:
        InvalidObject: it is malformed.
    """
    decoder = _CONTAINERS_DECODER if containers else _DECODER
    found = decoder.object(kind, json.dumps(manifest).encode())
    annotations = manifest.get("metadata", {}).get("annotations")
    if annotations and isinstance(found, ClusterPod | ClusterNode):
        return cast(T, replace(found, annotations=tuple(sorted(annotations.items()))))
    return found


class DeclaredFields:
    """Leaves of objects what the decoder leaves of them when plugins declare so much."""

    def __init__(self, kept: KeptFields) -> None:
        self.kept = kept
        self._specs: WeakKeyDictionary[PodSpec, PodSpec] = WeakKeyDictionary()

    def pod(self, pod: ClusterPod) -> ClusterPod:
        """The pod as it would be decoded."""
        faults, spec = DecodingFaults(), self._spec(pod.spec)
        annotations = kept_annotations(dict(pod.annotations), self.kept.pod_annotations, faults)
        if faults and not set(faults) <= set(spec.unread):
            spec = replace(spec, unread=(*spec.unread, *faults), faults=(*spec.faults, *faults))
        if annotations == pod.annotations and spec is pod.spec:
            return pod
        return replace(pod, annotations=annotations, spec=spec)

    def node(self, node: ClusterNode) -> ClusterNode:
        """The node as it would be decoded."""
        bounds = self.kept.node_annotations
        annotations = kept_annotations(dict(node.annotations), bounds, DecodingFaults())
        return node if annotations == node.annotations else replace(node, annotations=annotations)

    def _spec(self, spec: PodSpec) -> PodSpec:
        """One spec for equal pods, as specs are compared by identity."""
        if self.kept.containers or spec.containers is None:
            return spec
        found = self._specs.get(spec)
        if found is None:
            found = self._specs[spec] = replace(spec, containers=None)
        return found


def make_node(
    name: str,
    *,
    cpu: Amount = 4,
    memory: Amount = "16Gi",
    pods: int = 110,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    ready: bool = True,
    unschedulable: bool = False,
    allocatable: Amounts | None = None,
    annotations: Mapping[str, str] | None = None,
    capacity: Amounts | None = None,
) -> ClusterNode:
    """A node. allocatable has further resources; taints are as in a manifest.

    capacity: None: the node does not say it.
    """
    amounts = {"cpu": cpu, "memory": memory, "pods": pods, **(allocatable or {})}
    return read(
        kinds.NODE,
        {
            "metadata": {
                "name": name,
                "uid": f"uid-{name}",
                "labels": {HOSTNAME: name, **(labels or {})},
                "annotations": dict(annotations or {}),
            },
            "spec": {"taints": list(taints), "unschedulable": unschedulable},
            "status": {
                "allocatable": _texts(amounts),
                "capacity": _texts(capacity or {}),
                "conditions": [{"type": "Ready", "status": str(ready)}],
            },
        },
    )


def make_pod(
    name: str,
    *,
    namespace: str = "default",
    node: str = "",
    cpu: Amount = 0,
    memory: Amount = 0,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    owner: Workload | None = None,
    priority: int | None = None,
    phase: str = "Running",
    qos: str = "Burstable",
    created: float | None = None,
    spec: Json | None = None,
    status: Json | None = None,
    containers: bool = False,
) -> ClusterPod:
    """A pod that requests so much. created is in Unix seconds.

    containers: also with what each container requests, for plugins that declare that they read it.
    """
    requests = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value}
    container = {"name": "main", "resources": {"requests": _texts(requests)}}
    meta: Json = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{namespace}-{name}",
        "labels": dict(labels or {}),
        "annotations": dict(annotations or {}),
    }
    if created is not None:
        meta["creationTimestamp"] = _moment(created)
    if owner is not None:
        meta["ownerReferences"] = [_reference(owner)]
    own = {"nodeName": node, "priority": priority, "containers": [container]}
    condition = {"type": "Ready", "status": str(phase == "Running")}
    seen = {"phase": phase, "qosClass": qos, "conditions": [condition]}
    return read(
        kinds.POD,
        {
            "metadata": meta,
            "spec": {**own, **(spec or {})},
            "status": {**seen, **(status or {})},
        },
        containers=containers,
    )


def make_workload(
    kind: str,
    name: str,
    *,
    namespace: str = "default",
    replicas: int = 1,
    owner: Workload | None = None,
) -> Workload:
    """A controller of pods: a ReplicaSet, StatefulSet and so on, perhaps of a Deployment."""
    controller = None
    if owner is not None:
        controller = Owner(owner.kind, owner.name, owner.uid, controller=True)
    return Workload(
        kind=kind,
        namespace=namespace,
        name=name,
        uid=f"uid-{kind}-{namespace}-{name}",
        replicas=replicas,
        controller=controller,
    )


def make_budget(
    name: str, labels: Mapping[str, str], *, namespace: str = "default", allowed: int = 1
) -> DisruptionBudget:
    """A PodDisruptionBudget for the pods with these labels, of which so many may go now."""
    return read(
        kinds.BUDGET,
        {
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"selector": {"matchLabels": dict(labels)}},
            "status": {"disruptionsAllowed": allowed},
        },
    )


def make_report(
    node: str,
    *,
    at: float,
    usage: Amounts,
    system: Amounts | None = None,
    pods: Mapping[str, Amounts] | None = None,
    p95: Amounts | None = None,
    window: str = "5m0s",
    status: Json | None = None,
) -> UsageReport:
    """The NodeMetric of a node, made at so many Unix seconds.

    Amounts are by "cpu" and "memory"; pods by namespace/name. Percentiles of the window are as
    p95 says; None: as usage.
    """
    peak = _usage(usage if p95 is None else p95)
    percentiles = {"avg": _usage(usage), "p50": peak, "p90": peak, "p95": peak, "p99": peak}
    found: Json = {
        "updateTime": _moment(at),
        "nodeMetric": {
            "nodeUsage": _usage(usage),
            "aggregatedNodeUsages": [{"duration": window, "usage": percentiles}],
        },
        "podsMetric": [_pod_usage(key, amounts) for key, amounts in (pods or {}).items()],
    }
    if system is not None:
        found["nodeMetric"]["systemUsage"] = _usage(system)
    return read(
        kinds.NODE_METRIC, {"metadata": {"name": node}, "status": {**found, **(status or {})}}
    )


def _pod_usage(key: str, amounts: Amounts) -> Json:
    namespace, _, name = key.partition("/")
    return {"namespace": namespace, "name": name, "podUsage": _usage(amounts)}


def _usage(amounts: Amounts) -> Json:
    return {"resources": _texts(amounts)}


def _texts(amounts: Amounts) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def _reference(owner: Workload) -> Json:
    return {"kind": owner.kind, "name": owner.name, "uid": owner.uid, "controller": True}


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


_NOTHING: Amounts = {"cpu": 0, "memory": 0}


class FakeCluster:
    """The state that plugins read, and the scripted NodeMetrics in it.

    The arguments of node, pod, workload and budget are those of make_node and so on. Pods that are
    evicted leave with settle, as in a cluster they leave some time after.
    """

    def __init__(
        self, clock: SimulatedClock | None = None, state: ClusterState | None = None
    ) -> None:
        """state: what keeps the objects; None: one of its own."""
        self.clock = clock or SimulatedClock()
        self.state = ClusterState() if state is None else state
        self._declared: DeclaredFields | None = None  # None: all fields are kept
        self._made: dict[tuple[ObjectKind[Any], str], tuple[Any, Any]] = {}
        self._uses: dict[str, Amounts] = {}  # by key of the pod
        self._system: dict[str, Amounts] = {}  # by node, without its pods
        self._leaving: dict[str, str] = {}  # key and uid of pods that were evicted

    def node(self, name: str, *, system: Amounts | None = None, **facts: Any) -> ClusterNode:
        """Add a node, or change it. system: its usage outside of pods."""
        node = self._put(cluster_kinds.NODE, lambda _: make_node(name, **facts))
        self._system[name] = {**_NOTHING, **(system or {})}
        return node

    def pod(
        self, name: str, node: str = "", *, uses: Amounts | None = None, **facts: Any
    ) -> ClusterPod:
        """Add a pod on a node, or change it. uses is what it really uses: by "cpu" and "memory"."""
        pod = self._put(
            cluster_kinds.POD,
            lambda containers: make_pod(name, node=node, **{"containers": containers, **facts}),
        )
        self._uses[pod.key] = {**_NOTHING, **(uses or {})}
        return pod

    def workload(self, kind: str, name: str, **facts: Any) -> Workload:
        """Add a ReplicaSet, Deployment, StatefulSet, ReplicationController or CloneSet."""
        workload = make_workload(kind, name, **facts)
        kinds = {one.name: one for one in cluster_kinds.WORKLOADS}
        self.state.put(kinds[kind], workload)
        return workload

    def budget(self, name: str, labels: Mapping[str, str], **facts: Any) -> DisruptionBudget:
        """Add a PodDisruptionBudget, or change it."""
        budget = make_budget(name, labels, **facts)
        self.state.put(cluster_kinds.BUDGET, budget)
        return budget

    def priority_class(self, name: str, value: int) -> PriorityClass:
        """Add a priority class."""
        found = PriorityClass(name, value)
        self.state.put(cluster_kinds.PRIORITY_CLASS, found)
        return found

    def apply(self, manifest: Mapping[str, Any]) -> None:
        """Add an object of any kind that the state has, or change it; as kubectl apply.

        Raises:
            InvalidObject: it is malformed.
        """
        kinds = {kind.name.lower(): kind for kind in self.state.kinds}
        kind = kinds[manifest["kind"].lower()]
        found = dict(manifest)
        self._put(kind, lambda containers: read(kind, found, containers=containers))

    def keep(self, kept: KeptFields) -> None:
        """Keep from now on what the plugins under test declare, and no other fields.

        The kit's harnesses call this; before, all annotations are kept.
        """
        self._declared = DeclaredFields(kept)
        for (kind, key), (make, put) in tuple(self._made.items()):
            if self.state.get(kind, key) is not put:
                continue  # it is gone, or another one
            if self._as_declared(make(kept.containers)) != put:
                self._put(kind, make)

    def declared(self, pod: ClusterPod) -> ClusterPod:
        """Return a pod with the fields that are kept."""
        return pod if self._declared is None else self._declared.pod(pod)

    def _put(self, kind: ObjectKind[T], make: Callable[[bool], T]) -> T:
        """Make an object, with the requests of containers or without; put and return it."""
        made = make(self._declared is not None and self._declared.kept.containers)
        put, key = self._as_declared(made), getattr(made, "key", "")
        if isinstance(made, ClusterPod | ClusterNode):
            self._made[kind, key] = make, put
        self.state.put(kind, put)
        return put

    def _as_declared(self, item: T) -> T:
        declared = self._declared
        if declared is None:
            return item
        if isinstance(item, ClusterPod):
            return cast(T, declared.pod(item))
        return cast(T, declared.node(item)) if isinstance(item, ClusterNode) else item

    def delete(self, kind: str, key: str) -> None:
        """Remove an object by its key: namespace/name, or name where there are no namespaces."""
        kinds = {one.name.lower(): one for one in self.state.kinds}
        self.state.remove(kinds[kind.lower()], key)

    def report(self, *names: str, **facts: Any) -> list[UsageReport]:
        """Make koordlet report these nodes now; without names, all nodes.

        The usage of a node is the usage of its pods and its system. Other arguments go to
        make_report and win: usage for a figure that does not fit the pods, at for an old report.
        """
        return [self._report(name, facts) for name in names or self._system]

    def usage(self, node: str) -> dict[str, float]:
        """Return the current usage of a node: cores and bytes."""
        amounts = [self._uses.get(pod.key, _NOTHING) for pod in self._running(node)]
        used = chain(amounts, [self._system.get(node, _NOTHING)])
        total = {"cpu": 0.0, "memory": 0.0}
        for each in used:
            for name in total:
                total[name] += _number(each[name])
        return total

    def evict(self, pod: ClusterPod) -> None:
        """Evict a pod: it is gone after the next settle."""
        self._leaving[pod.key] = pod.uid

    def settle(self) -> None:
        """Let all pods that were evicted be gone. Nothing takes their places."""
        while self._leaving:
            self.state.remove(cluster_kinds.POD, *self._leaving.popitem())

    def _report(self, name: str, facts: Mapping[str, Any]) -> UsageReport:
        own: dict[str, Any] = {
            "at": self.clock.wall(),
            "usage": _whole(self.usage(name)),
            "system": self._system.get(name),
            "pods": {pod.key: self._uses.get(pod.key, _NOTHING) for pod in self._running(name)},
        }
        report = make_report(name, **{**own, **facts})
        self.state.put(cluster_kinds.NODE_METRIC, report)
        return report

    def _running(self, node: str) -> list[ClusterPod]:
        return [pod for pod in self.state.pods_of_node(node) if not pod.finished]


def _number(amount: Amount) -> float:
    return Quantity.parse(str(amount)).milli / 1000


def _whole(amounts: Mapping[str, float]) -> Amounts:
    """Return amounts as quantities: milli-cores and bytes."""
    return {"cpu": f"{round(amounts['cpu'] * 1000)}m", "memory": str(round(amounts["memory"]))}


Responder = Callable[[Call], Json | None]
"""Returns the response to a request; None: the request is not for it. May raise ApiError."""

_DONE: Json = {"kind": "Status", "apiVersion": "v1", "status": "Success"}


class ScriptedServer(Transport):
    """Answers requests without a network. Evictions are decided by the cluster's budgets.

    All other requests are for the responses that a test has added, and else not found.
    """

    def __init__(self, cluster: FakeCluster) -> None:
        self.calls: list[Call] = []
        self.evicted: list[ClusterPod] = []
        self._cluster = cluster
        self._answers: list[Responder] = [self._evict]

    def answer(self, response: Responder) -> None:
        """Ask this first from now on."""
        self._answers.insert(0, response)

    async def exchange(self, call: Call) -> bytes:
        self.calls.append(call)
        for response in self._answers:
            found = response(call)
            if found is not None:
                return json.dumps(found).encode()
        raise api_error_response(
            call, 404, "NotFound", "the server could not find the requested resource"
        )

    @asynccontextmanager
    async def stream(
        self, call: Call, silence: Callable[[], float]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        raise api_error_response(call, 404, "NotFound", "there is nothing to watch")
        yield  # makes it a generator

    async def close(self) -> None:
        """There are no connections."""

    def _evict(self, call: Call) -> Json | None:
        pod = self._pod_of(call)
        if pod is None:
            return None
        wanted = json.loads(call.body or b"{}").get("deleteOptions", {}).get("preconditions", {})
        if wanted.get("uid", pod.uid) != pod.uid:
            raise api_error_response(
                call, 409, "Conflict", "the UID in the precondition does not match"
            )
        state = self._cluster.state
        budgets = [each for each in state.budgets.values() if each.covers(pod)]
        if any(each.allowed < 1 for each in budgets):
            raise api_error_response(
                call, 429, "TooManyRequests", "it would violate the disruption budget"
            )
        for each in budgets:
            state.put(kinds.BUDGET, replace(each, allowed=each.allowed - 1))
        self.evicted.append(pod)
        self._cluster.evict(pod)
        return _DONE

    def _pod_of(self, call: Call) -> ClusterPod | None:
        """The pod whose eviction a request asks for."""
        match call.path.strip("/").split("/"):
            case ["api", "v1", "namespaces", namespace, "pods", name, "eviction"]:
                return self._cluster.state.pod(f"{namespace}/{name}")
        return None


def api_error_response(call: Call, status: int, reason: str, message: str) -> ApiError:
    """Return the error of a request that the server rejects."""
    body = {"kind": "Status", "reason": reason, "message": message}
    if status == 429:
        body["details"] = {"causes": [{"reason": "DisruptionBudget"}]}  # type: ignore[assignment]
    return api_error(status, body, where=call.where)


JsonObject = Mapping[str, Any]


class CapturedEvents(EventRecorder):
    """Events that plugins have reported, the latest one last."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)


class FakeInformer(SharedInformer[Any]):
    """A collection that is known; it has what a test puts into it."""

    def __init__(self) -> None:
        self._found: dict[str, JsonObject] = {}
        self._followers: list[Handler[Any]] = []

    @property
    def objects(self) -> Mapping[str, Any]:
        return self._found

    @property
    def synced(self) -> bool:
        return True

    answered = synced

    def indexed(self, index: str, name: str) -> Mapping[str, Any]:
        return {}

    def add_handler(self, handler: Handler[Any]) -> Callable[[], None]:
        for key, value in self._found.items():
            handler(Change(ChangeKind.ADDED, key, None, value))
        handler(Change(ChangeKind.SYNCED, "", None, None))
        self._followers.append(handler)
        return lambda: self._followers.remove(handler)

    async def wait_synced(self) -> None:
        """It is."""

    async def wait_answered(self) -> None:
        """It is."""

    def health(self) -> PartHealth:
        return OK

    async def run(self, stop: Stop) -> None:
        """Nothing but the test changes anything."""
        await stop.wait()

    def take(self, key: str, new: JsonObject | None) -> None:
        """Add, change or (None) delete an object."""
        old = self._found.pop(key, None)
        if new is not None:
            self._found[key] = new
        if old is None and new is None:
            return
        kind = ChangeKind.ADDED if old is None else ChangeKind.MODIFIED
        change = Change(ChangeKind.DELETED if new is None else kind, key, old, new)
        for handler in tuple(self._followers):
            handler(change)


class FakeInformers:
    """Collections outside of the cluster's state, empty until a test puts objects into them."""

    def __init__(self) -> None:
        self._informers: dict[Resource, FakeInformer] = {}

    def informer(
        self, resource: Resource, *, absent: MissingKind | None = None, without: str = ""
    ) -> FakeInformer:
        """Return the informer of a kind."""
        return self._informers.setdefault(resource, FakeInformer())

    def apply(self, resource: Resource, manifest: JsonObject) -> None:
        """Add an object as it is in JSON, or change it; plugins that follow the kind learn of it.

        Raises:
            KeyError: it has no metadata.name.
        """
        self.informer(resource).take(_key(manifest), manifest)

    def delete(self, resource: Resource, key: str) -> None:
        """Remove an object by its key: namespace/name, or name where there are no namespaces."""
        self.informer(resource).take(key, None)


def _key(manifest: JsonObject) -> str:
    meta = manifest["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])
