"""A small cluster with NodeMetrics, and the plugin on it."""

from datetime import UTC, datetime
from typing import Any

from koord.cluster import kinds
from koord.cluster.facts import ClusterNode, ClusterPod
from koord.component.plugins.args import args_type_of
from koord.controlplane.testing import FakeCluster, make_node, make_pod, make_report, read
from koord.util.simulatedclock import SimulatedClock
from koord_scheduler.framework.nodes.adapters import filter_vector, score_vector
from koord_scheduler.framework.status import CycleInput, CycleState
from koord_scheduler.plugin import Handle, NodeInfo, View
from koord_scheduler.plugin.testing.harness import fake_services
from koord_scheduler_plugins.load_aware import LoadAwareScheduling
from koord_scheduler_plugins.load_aware.estimates import LoadAwareSchedulingArgs

GI = 1 << 30
RAW = "node.koordinator.sh/raw-allocatable"
THRESHOLDS = "scheduling.koordinator.sh/usage-thresholds"


def make_args(**fields: Any) -> LoadAwareSchedulingArgs:
    """Arguments as a file has them."""
    declared = args_type_of(LoadAwareScheduling)
    assert declared is not None
    args, faults = declared.read(fields, ())
    assert not faults, faults
    assert isinstance(args, LoadAwareSchedulingArgs)
    return args


def container(name: str = "main", **resources: Any) -> dict[str, Any]:
    return {"name": name, "resources": resources}


def asks(cpu: str = "", memory: str = "", limits: bool = True) -> dict[str, Any]:
    """The spec of a pod with one container that requests so much, and is limited to it."""
    amounts = {name: text for name, text in (("cpu", cpu), ("memory", memory)) if text}
    return {"containers": [container(requests=amounts, limits=amounts if limits else {})]}


def scheduled(at: float, *, initialized: float | None = None) -> dict[str, Any]:
    """The status of a pod that was scheduled at so many Unix seconds."""
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": _text(at)}]
    if initialized is not None:
        moment = _text(initialized)
        conditions.append({"type": "Initialized", "status": "True", "lastTransitionTime": moment})
    return {"conditions": conditions}


class LoadKit:
    """One plugin on a cluster; every change reaches it as from the scheduler."""

    def __init__(self, clock: SimulatedClock | None = None, **args: Any) -> None:
        self.cluster = FakeCluster(clock)
        self.clock = self.cluster.clock
        self.state = self.cluster.state
        self.services = fake_services(self.cluster)
        self.args = make_args(**args)
        self.plugin = self.another()

    @property
    def now(self) -> float:
        return self.clock.wall()

    def another(self) -> LoadAwareScheduling:
        """The same plugin of a scheduler that starts now."""
        handle = Handle(profile="p", services=self.services, filters=lambda: None)  # type: ignore[arg-type,return-value]
        plugin = LoadAwareScheduling(self.args, handle)
        plugin.name = "LoadAwareScheduling"
        return plugin

    def node(self, name: str = "n", annotations: Any = None, **facts: Any) -> ClusterNode:
        facts = {"cpu": 96, "memory": "512Gi", **facts}
        node = make_node(name, **facts)
        if annotations:
            manifest = {
                "metadata": {"name": name, "uid": node.uid, "annotations": annotations},
                "status": {"allocatable": {key: str(one) for key, one in _amounts(facts).items()}},
            }
            node = read(kinds.NODE, manifest)
        view = self.state.view()
        row = view.row(name)
        self.state.put(kinds.NODE, node)
        self.services.changes.notify(kinds.NODE, None if row is None else view.node(row), node)
        return node

    def remove_node(self, name: str = "n") -> None:
        view = self.state.view()
        row = view.row(name)
        assert row is not None
        self.state.remove(kinds.NODE, name)
        self.services.changes.notify(kinds.NODE, view.node(row), None)

    def put(self, pod: ClusterPod) -> ClusterPod:
        old = self.state.pod(pod.key)
        self.state.put(kinds.POD, pod)
        self.services.changes.notify(kinds.POD, old, pod)
        return pod

    def pod(self, name: str, node: str = "n", **facts: Any) -> ClusterPod:
        return self.put(make_pod(name, node=node, **facts))

    def remove_pod(self, pod: ClusterPod) -> None:
        self.state.remove(kinds.POD, pod.key, pod.uid)
        self.services.changes.notify(kinds.POD, pod, None)

    def report(self, node: str = "n", *, ago: float = 0.0, **facts: Any) -> None:
        facts = {"usage": {"cpu": 0, "memory": 0}, **facts}
        old = self.state.reports.get(node)
        new = make_report(node, at=self.now - ago, **facts)
        self.state.put(kinds.NODE_METRIC, new)
        self.services.changes.notify(kinds.NODE_METRIC, old, new)

    def remove_report(self, node: str = "n") -> None:
        old = self.state.reports.get(node)
        self.state.remove(kinds.NODE_METRIC, node)
        self.services.changes.notify(kinds.NODE_METRIC, old, None)

    def view(self) -> View:
        return self.state.view()

    def reason(self, pod: ClusterPod, node: str = "n", view: View | None = None) -> str:
        """Why a node is rejected, in both forms; "": it passes."""
        view = view or self.view()
        row = view.row(node)
        assert row is not None
        verdicts = filter_vector(self.plugin, CycleInput(CycleState(), pod, view))
        number = int(verdicts.numbers[row])
        found = verdicts.rejections[number - 1].message if number else ""
        plain = self.plugin.filter(CycleState(), pod, NodeInfo(view, row))
        assert (plain.message if plain else "") == found
        return found

    def score(self, pod: ClusterPod, node: str = "n", view: View | None = None) -> int:
        """The score of a node, in both forms."""
        view = view or self.view()
        row = view.row(node)
        assert row is not None
        every = view.generation >= 0
        found = int(score_vector(self.plugin, CycleInput(CycleState(), pod, view), every)[row])
        assert self.plugin.score(CycleState(), pod, NodeInfo(view, row)) == found
        return found


def _amounts(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "cpu": facts["cpu"],
        "memory": facts["memory"],
        "pods": 110,
        **facts.get("allocatable", {}),
    }


def _text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()
