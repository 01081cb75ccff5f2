"""A cluster that a test makes up: its objects, what its pods really use, and the time."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

from koord.api.quantity import Quantity
from koord.cluster import decoding
from koord.cluster.decoding import UsageReport
from koord.cluster.facts import (
    ClusterNode,
    ClusterPod,
    DisruptionBudget,
    PriorityClass,
    Workload,
)
from koord.cluster.state import ClusterState
from koord.controlplane.testing.objects import (
    Amount,
    Amounts,
    make_budget,
    make_node,
    make_pod,
    make_report,
    make_workload,
    read,
)
from koord.util.simulatedclock import SimulatedClock

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
        self._uses: dict[str, Amounts] = {}  # by key of the pod
        self._system: dict[str, Amounts] = {}  # by node, beside its pods
        self._leaving: dict[str, str] = {}  # key and uid of pods that were evicted

    def node(self, name: str, *, system: Amounts | None = None, **facts: Any) -> ClusterNode:
        """Add a node, or change it. system is what it uses beside its pods."""
        node = make_node(name, **facts)
        self.state.put(decoding.NODE, node)
        self._system[name] = {**_NOTHING, **(system or {})}
        return node

    def pod(
        self, name: str, node: str = "", *, uses: Amounts | None = None, **facts: Any
    ) -> ClusterPod:
        """Add a pod on a node, or change it. uses is what it really uses: by "cpu" and "memory"."""
        pod = make_pod(name, node=node, **facts)
        self.state.put(decoding.POD, pod)
        self._uses[pod.key] = {**_NOTHING, **(uses or {})}
        return pod

    def workload(self, kind: str, name: str, **facts: Any) -> Workload:
        """Add a ReplicaSet, Deployment, StatefulSet, ReplicationController or CloneSet."""
        workload = make_workload(kind, name, **facts)
        kinds = {one.name: one for one in decoding.WORKLOADS}
        self.state.put(kinds[kind], workload)
        return workload

    def budget(self, name: str, labels: Mapping[str, str], **facts: Any) -> DisruptionBudget:
        """Add a PodDisruptionBudget, or change it."""
        budget = make_budget(name, labels, **facts)
        self.state.put(decoding.BUDGET, budget)
        return budget

    def priority_class(self, name: str, value: int) -> PriorityClass:
        """Add a priority class."""
        found = PriorityClass(name, value)
        self.state.put(decoding.PRIORITY_CLASS, found)
        return found

    def apply(self, manifest: Mapping[str, Any]) -> None:
        """Add an object of any kind that the state has, or change it; as kubectl apply.

        Raises:
            InvalidObject: it is malformed.
        """
        kinds = {kind.name.lower(): kind for kind in self.state.kinds}
        kind = kinds[manifest["kind"].lower()]
        self.state.put(kind, read(kind, manifest))

    def delete(self, kind: str, key: str) -> None:
        """Remove an object by its key: namespace/name, or name where there are no namespaces."""
        kinds = {one.name.lower(): one for one in self.state.kinds}
        self.state.remove(kinds[kind.lower()], key)

    def report(self, *names: str, **facts: Any) -> list[UsageReport]:
        """Have koordlet report these nodes now; without names all.

        What a node uses is what its pods and its system use. Other arguments are those of
        make_report and win: usage for a figure that does not fit the pods, at for an old report.
        """
        return [self._report(name, facts) for name in names or self._system]

    def usage(self, node: str) -> dict[str, float]:
        """What a node uses now: cores and bytes."""
        amounts = [self._uses.get(pod.key, _NOTHING) for pod in self._running(node)]
        used = chain(amounts, [self._system.get(node, _NOTHING)])
        total = {"cpu": 0.0, "memory": 0.0}
        for each in used:
            for name in total:
                total[name] += _number(each[name])
        return total

    def evict(self, pod: ClusterPod) -> None:
        """Have a pod leave with the next settle."""
        self._leaving[pod.key] = pod.uid

    def settle(self) -> None:
        """Let all pods that were evicted be gone. Nothing takes their places."""
        while self._leaving:
            self.state.remove(decoding.POD, *self._leaving.popitem())

    def _report(self, name: str, facts: Mapping[str, Any]) -> UsageReport:
        own: dict[str, Any] = {
            "at": self.clock.wall(),
            "usage": _whole(self.usage(name)),
            "system": self._system.get(name),
            "pods": {pod.key: self._uses.get(pod.key, _NOTHING) for pod in self._running(name)},
        }
        report = make_report(name, **{**own, **facts})
        self.state.put(decoding.NODE_METRIC, report)
        return report

    def _running(self, node: str) -> list[ClusterPod]:
        return [pod for pod in self.state.pods_of_node(node) if not pod.finished]


def _number(amount: Amount) -> float:
    return Quantity.parse(str(amount)).milli / 1000


def _whole(amounts: Mapping[str, float]) -> Amounts:
    """As quantities: milli-cores and bytes."""
    return {"cpu": f"{round(amounts['cpu'] * 1000)}m", "memory": str(round(amounts["memory"]))}
