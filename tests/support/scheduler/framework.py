"""Small clusters and small plugins of both forms."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.state import ClusterState
from koord.cluster.view import View
from koord.controlplane.testing import FakeCluster, ScriptedServer
from koord.util.simulatedclock import SimulatedClock
from koord_scheduler.config.profiles import EnabledPlugin, Point, Profile
from koord_scheduler.framework.calls import TimeLimits
from koord_scheduler.framework.interfaces import (
    BindPlugin,
    FilterPlugin,
    Plugin,
    PreFilterExtensions,
    PreFilterPlugin,
    QueueSortPlugin,
    ScorePlugin,
    VectorFilterPlugin,
    VectorScorePlugin,
)
from koord_scheduler.framework.nodes.search import NodeSearch
from koord_scheduler.framework.profile import PluginRegistry, ProfilePlugins, build_profile
from koord_scheduler.framework.status import CycleState, Scores, Status, Verdicts
from koord_scheduler.framework.types import NodeInfo, QueuedPod
from koord_scheduler.plugin.testing.harness import fake_services
from tests.support.clusters import Cluster, node, pod, read_pod

Answer = Callable[..., Any]


def make_pod(name: str = "web", **spec: Any) -> ClusterPod:
    """A pod of a test, on no node unless spec says so."""
    return read_pod({**pod(name, **spec), "status": {"phase": "Pending"}})


def make_view(**cpus: str) -> View:
    """Nodes by name, in this order, each with so much cpu."""
    nodes = [node(name, None, {"cpu": cpu, "pods": "10"}) for name, cpu in cpus.items()]
    return Cluster(nodes=nodes).snapshot().view()


def numbered_view(count: int) -> View:
    """Nodes n0, n1, ... with 4 cores each."""
    return make_view(**{f"n{at}": "4" for at in range(count)})


def named(plugin: Plugin, name: str) -> Any:
    """The plugin under a name, as the framework gives it one."""
    plugin.name = name
    return plugin


class PlainFilter(FilterPlugin):
    """Answers for each node by its name; without a response the node passes."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        self.asked.append(node.name)
        answer: Status | None = self.answers.get(node.name)
        return answer


class VectorFilter(VectorFilterPlugin):
    """Returns what it was given."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask | Verdicts:
        answer: Mask | Verdicts = self.answer
        return answer


class PlainScore(ScorePlugin):
    """Scores each node by its name; 0 without one."""

    def __init__(self, scores: Mapping[str, Any]) -> None:
        self.scores = scores

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        score: int = self.scores.get(node.name, 0)
        return score


class VectorScore(VectorScorePlugin):
    """Returns what it was given."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        answer: Scores = self.answer
        return answer


class FreeCpu(FilterPlugin, VectorFilterPlugin, ScorePlugin, VectorScorePlugin):
    """Needs free cpu, and prefers much of it: both forms of both."""

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        if node.free("cpu") >= dict(pod.spec.requests).get("cpu", 0):
            return None
        return Status.unschedulable("Insufficient cpu")

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask | Verdicts:
        wanted = dict(pod.spec.requests).get("cpu", 0)
        return Verdicts.of(free_cpu(nodes) >= wanted, Status.unschedulable("Insufficient cpu"))

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        whole = node.allocatable("cpu")
        return max(100 * node.free("cpu") // whole, 0) if whole else 0

    def score_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Scores:
        whole = nodes.allocatable[:, nodes.resources["cpu"]]
        share = 100 * free_cpu(nodes) // np.maximum(whole, 1)
        return np.where(whole == 0, 0, np.maximum(share, 0))


class CountsPods(PreFilterPlugin, PreFilterExtensions, FilterPlugin):
    """Lets a node pass as long as its pods, as AddPod and RemovePod count them, are at most two."""

    def pre_filter(self, state: CycleState, pod: ClusterPod, nodes: View) -> Status | None:
        state.write("pods", Tally({row: len(nodes.pods(row)) for row in range(len(nodes))}))
        return None

    def add_pod(
        self, state: CycleState, pod: ClusterPod, added: ClusterPod, node: NodeInfo
    ) -> Status | None:
        assert added in node.pods
        state.read("pods", Tally).counts[node.row] += 1
        return None

    def remove_pod(
        self, state: CycleState, pod: ClusterPod, removed: ClusterPod, node: NodeInfo
    ) -> Status | None:
        state.read("pods", Tally).counts[node.row] -= 1
        return None

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        full = state.read("pods", Tally).counts[node.row] > 1
        return Status.unschedulable("full") if full else None


class Tally:
    def __init__(self, counts: dict[int, int]) -> None:
        self.counts = counts

    def clone(self) -> "Tally":
        return Tally(dict(self.counts))


def free_cpu(nodes: View) -> Scores:
    """Milli-cores that are allocatable and not requested; shape (nodes,)."""
    column = nodes.resources["cpu"]
    free: Scores = nodes.allocatable[:, column] - nodes.requested[:, column]
    return free


class FirstCome(QueueSortPlugin):
    """The oldest first."""

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        return first.timestamp < second.timestamp


class Binder(BindPlugin):
    """Writes down what it binds."""

    def __init__(self) -> None:
        self.bound: list[tuple[str, str]] = []

    async def bind(self, state: CycleState, pod: ClusterPod, node_name: str) -> Status | None:
        self.bound.append((pod.name, node_name))
        return None


class Kit:
    """Builds profiles from finished plugins, in one process on simulated time."""

    def __init__(
        self, clock: SimulatedClock | None = None, state: ClusterState | None = None
    ) -> None:
        """state: what keeps the objects; None: one that knows nothing of assumed pods."""
        self.clock = clock or SimulatedClock()
        self.exposition = CollectorRegistry()
        self.cluster = FakeCluster(self.clock, state)
        self.server = ScriptedServer(self.cluster)
        self.activated: list[str] = []
        self.services = fake_services(
            self.cluster,
            server=self.server,
            activate=self.activated.extend,
            exposition=self.exposition,
        )
        self.registry = PluginRegistry()

    async def profile(
        self,
        *,
        limits: TimeLimits | None = None,
        percentage: int | None = None,
        weights: Mapping[str, int] | None = None,
        **points: Mapping[str, Plugin],
    ) -> ProfilePlugins:
        """Plugins by name, by extension point: filter={"A": ...}; QueueSort and Bind are added."""
        points = {"queueSort": {"FirstCome": FirstCome()}, "bind": {"Binder": Binder()}, **points}
        enabled = {}
        for point, plugins in points.items():
            for name, plugin in plugins.items():
                if self.registry.get(name) is None:
                    self.registry.register(name, lambda args, handle, plugin=plugin: plugin)
            enabled[Point(point)] = tuple(
                EnabledPlugin(name, (weights or {}).get(name, 1)) for name in plugins
            )
        wanted = Profile(
            scheduler_name="p", plugins=enabled, percentage_of_nodes_to_score=percentage
        )
        return await build_profile(wanted, self.registry, self.services, limits or TimeLimits())

    async def search(self, **settings: Any) -> NodeSearch:
        """A search of a profile that scores, so that it is for all nodes."""
        settings = {"score": {"Scores": FreeCpu()}, **settings}
        return NodeSearch(await self.profile(**settings), self.services.nominator)

    def sample(self, name: str, **labels: str) -> float | None:
        return self.exposition.get_sample_value(name, labels)
