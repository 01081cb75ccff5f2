"""Plugins that are asked again and again, while the cluster changes: nothing stale is answered.

What one instance says after any history is what a new instance says of a cluster that was made
anew as it is now, and both forms of it agree.
"""

from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from koord.api.labelselector import Requirement
from koord.cluster.columns import CHUNK
from koord.cluster.facts import (
    AffinityTerm,
    ClusterNamespace,
    ClusterNode,
    ClusterPod,
    LabelSet,
    NodeTerm,
    PodSpec,
    PreferredAffinityTerm,
    SpreadConstraint,
    Taint,
    Toleration,
)
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.pod_specs import MAX_AMOUNT
from koord.cluster.predicates.nodes import FreeResources
from koord.cluster.state import Snapshot
from koord.cluster.view import View
from koord.component.plugins.args import args_type_of
from koord_scheduler.framework.handle import Handle
from koord_scheduler.framework.interfaces import PreFilterPlugin, PreScorePlugin
from koord_scheduler.framework.nodes.adapters import filter_vector, normalized, score_vector
from koord_scheduler.framework.status import CycleInput, CycleState
from koord_scheduler.plugin.testing import disagreements
from koord_scheduler_plugins.inter_pod_affinity import InterPodAffinity
from koord_scheduler_plugins.node_constraints import (
    NodeAffinity,
    NodePorts,
    NodeUnschedulable,
    TaintToleration,
)
from koord_scheduler_plugins.node_resources import NodeResourcesBalancedAllocation, NodeResourcesFit
from koord_scheduler_plugins.pod_topology_spread import PodTopologySpread
from tests.support.scheduler.framework import Kit, named

NODES, ZONE, HOST = tuple(f"n{at}" for at in range(4)), "zone", "kubernetes.io/hostname"
HUGE = MAX_AMOUNT  # bytes: too many for floats to be exact
PLUGINS: tuple[tuple[Any, dict[str, Any]], ...] = (
    (NodeResourcesFit, {}),
    (NodeResourcesFit, {"scoringStrategy": {"type": "MostAllocated", "resources": [
        {"name": "memory", "weight": 3}, {"name": "example.com/gpu", "weight": 1}]}}),
    (NodeResourcesBalancedAllocation, {}),
    (TaintToleration, {}),
    (NodeUnschedulable, {}),
    (NodeAffinity, {}),
    (NodePorts, {}),
    (InterPodAffinity, {}),
    (PodTopologySpread, {}),
)  # fmt: skip


def wants(**labels: str) -> tuple[Requirement, ...]:
    return tuple(Requirement(key, "In", (value,)) for key, value in labels.items())


WEB = AffinityTerm(ZONE, wants(app="web"), ("default",))
RED = AffinityTerm(HOST, (), (), wants(team="red"))
LABEL_SETS = tuple(
    LabelSet(namespace, MappingProxyType(labels))
    for namespace in ("default", "shop")
    for labels in ({"app": "web"}, {})
)
ASKS = PodSpec((("cpu", 100), ("memory", 2**30)), nonzero_cpu=100, nonzero_memory=2**30)
TOLERANT = (Toleration(operator="Exists"),)
SPECS = (
    PodSpec(),
    ASKS,
    replace(ASKS, requests=(*ASKS.requests, ("example.com/gpu", 1))),
    replace(ASKS, anti_affinity=(WEB,), tolerations=TOLERANT),
    PodSpec(affinity=(WEB,), anti_affinity=(RED,)),
    PodSpec(preferred_affinity=(PreferredAffinityTerm(7, WEB),), node_selector=wants(zone="a")),
    PodSpec(
        spread=(SpreadConstraint(ZONE, 1, wants(app="web")),),
        soft_spread=tuple(SpreadConstraint(key, 1, wants(app="web")) for key in (ZONE, HOST)),
    ),
    PodSpec(
        spread=(SpreadConstraint(ZONE, 1, wants(app="web"), 1, True, True),),
        node_terms=(NodeTerm(labels=wants(zone="a")),),
    ),
)


def make_pod(name: str, node: str, labels: int, spec: int, state: str = "") -> ClusterPod:
    return ClusterPod(
        name=name,
        uid=name,
        label_set=LABEL_SETS[labels],
        spec=SPECS[spec],
        node=node,
        phase="Succeeded" if state == "finished" else "Running",
        deleting=state == "deleting",
    )


def make_node(name: str, zone: str, taint: str, cpu: int, memory: int, gpus: int) -> ClusterNode:
    amounts = (("pods", 3), ("cpu", cpu), ("memory", memory))
    return ClusterNode(
        name=name,
        labels=MappingProxyType({HOST: name, **({ZONE: zone} if zone else {})}),
        taints=(Taint("dedicated", taint),) if taint else (),
        unschedulable=taint == "NoSchedule",
        allocatable=(*amounts, ("example.com/gpu", gpus)) if gpus >= 0 else amounts,
    )


names = st.sampled_from([f"p{at}" for at in range(6)])
pods = st.builds(
    make_pod,
    names,
    st.sampled_from(NODES),
    st.integers(0, len(LABEL_SETS) - 1),
    st.integers(0, len(SPECS) - 1),
    st.sampled_from(["", "", "deleting", "finished"]),
)
nodes = st.builds(
    make_node,
    st.sampled_from(NODES),
    st.sampled_from(["a", "b", ""]),
    st.sampled_from(["", "NoSchedule", "PreferNoSchedule"]),
    st.sampled_from([0, 250, 4000]),
    st.sampled_from([2**31, 2**35, HUGE]),
    st.sampled_from([-1, 0, 2]),
)
EVENTS = st.one_of(
    st.tuples(st.just("pod"), pods),
    st.tuples(st.just("node"), nodes),
    st.tuples(st.just("no pod"), names),
    st.tuples(st.just("no node"), st.sampled_from(NODES)),
    st.tuples(st.just("namespace"), st.sampled_from(["red", "blue"])),
    st.tuples(st.just("imagine"), st.lists(pods, max_size=2)),
)


def happen(snapshot: Snapshot, event: Any) -> None:
    match event:
        case "pod", pod:
            snapshot.put_pod(pod)
        case "node", node:
            snapshot.put_node(node)
        case "no pod", name:
            for namespace in ("default", "shop"):
                snapshot.remove_pod(f"{namespace}/{name}", name)
        case "no node", name:
            snapshot.remove_node(name)
        case "namespace", team:
            snapshot.put_namespace(ClusterNamespace("shop", {"team": team}))


def imagine(view: View, added: list[ClusterPod]) -> View:
    what_if = HypotheticalCluster(view)
    for pod in added:
        row = view.row(pod.node)
        if row is not None and pod.key not in {one.key for one in what_if.view().pods(row)}:
            what_if.add(pod, pod.node)
    return what_if.view()


def anew(view: View) -> View:
    """The same nodes and pods in a snapshot that has seen nothing else."""
    snapshot = Snapshot()
    team = view.namespace_labels("shop").get("team")
    if team:
        happen(snapshot, ("namespace", team))
    for row in range(len(view)):
        snapshot.put_node(view.node(row))
        for pod in view.pods(row):
            snapshot.put_pod(pod)
    return snapshot.view()


def answers(plugin: Any, pod: ClusterPod, view: View) -> list[Any]:
    """Statuses and normalized scores of the nodes, in the order of rows."""
    state, every, found = CycleState(), np.ones(len(view), np.bool_), list[Any]()
    if hasattr(plugin, "filter_all") and not (
        isinstance(plugin, PreFilterPlugin) and plugin.pre_filter(state, pod, view)
    ):
        verdicts = filter_vector(plugin, CycleInput(state, pod, view))
        found += [n and verdicts.rejections[n - 1] for n in verdicts.numbers.tolist()]
    if hasattr(plugin, "score_all") and not (
        isinstance(plugin, PreScorePlugin) and plugin.pre_score(state, pod, view, every)
    ):
        scores = score_vector(plugin, CycleInput(state, pod, view), every)
        rows = np.arange(len(view))
        found += normalized(plugin, CycleInput(state, pod, view), rows, scores).tolist()
    return found


def _no_filters() -> Any:
    raise AssertionError("no plugin has asked for Filter before")


def make(plugin: Any, value: dict[str, Any], kit: Kit) -> Any:
    found = args_type_of(plugin)
    args = found.read(value, ())[0] if found is not None else None
    handle = Handle(profile="p", services=kit.services, filters=_no_filters)
    return named(plugin(args, handle), plugin.__name__)


@pytest.mark.parametrize(("kind", "value"), PLUGINS)
@given(history=st.lists(EVENTS, min_size=2, max_size=14), asked=st.lists(pods, min_size=1))
def test_what_was_asked_before_does_not_matter(
    kind: Any, value: Any, history: list[Any], asked: list[ClusterPod]
) -> None:
    kit, snapshot = Kit(), Snapshot()
    plugin = make(kind, value, kit)
    for at, event in enumerate(history):
        happen(snapshot, event)
        view = imagine(snapshot.view(), event[1]) if event[0] == "imagine" else snapshot.view()
        if len(view):
            pod = asked[at % len(asked)]
            assert disagreements(plugin, pod, view) == []
            assert answers(plugin, pod, view) == answers(make(kind, value, kit), pod, anew(view))


def check(table: FreeResources, view: View) -> None:
    for name, column in view.resources.items():
        found = table.of(view, column)
        there, taken = view.allocatable[:, column], view.requested[:, column]
        assert (found is None) == (there.max() >= 2**46)
        if found is not None:
            columns = there, taken, there - taken
            assert [one.tolist() for one in found] == [one.tolist() for one in columns], name
    cpu, nonzero = view.resources["cpu"], view.nonzero_requested[:, 0]
    found = table.of(view, cpu, 0)
    assert found is not None
    assert found.taken.tolist() == nonzero.tolist()
    assert found.free.tolist() == (view.allocatable[:, cpu] - nonzero).tolist()


@given(st.lists(EVENTS, min_size=2, max_size=14))
def test_free_amounts_follow_views_back_and_forth(history: list[Any]) -> None:
    """What is imagined is there in the what-if, and gone in the next view of the cluster."""
    table, snapshot = FreeResources(), Snapshot()
    snapshot.put_node(make_node("first", "a", "", 4000, 2**35, 1))
    for event in history:
        happen(snapshot, event)
        if event[0] == "imagine":
            check(table, imagine(snapshot.view(), event[1]))
        check(table, snapshot.view())


@pytest.mark.parametrize("changed", [1, CHUNK, CHUNK + 9])
def test_free_amounts_of_many_rows(changed: int) -> None:
    """Few rows are written one by one, many at once."""
    table, snapshot = FreeResources(), Snapshot()
    for at in range(CHUNK + 10):
        snapshot.put_node(make_node(f"m{at}", "a", "", 4000, 2**35, 0))
    check(table, snapshot.view())
    for at in range(changed):
        snapshot.put_pod(make_pod(f"q{at}", f"m{at}", 0, 1))
    check(table, snapshot.view())
    for at in range(changed):
        snapshot.remove_pod(f"default/q{at}", f"q{at}")
    snapshot.remove_node("m0")
    check(table, snapshot.view())
