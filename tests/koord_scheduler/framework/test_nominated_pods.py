"""Searching beside nominated pods, against the plain way: each of their nodes imagined alone."""

import asyncio
from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.view import View
from koord_scheduler.framework.interfaces import FilterPlugin, VectorFilterPlugin
from koord_scheduler.framework.nodes.search import FEW_NOMINATED, NodeSearch
from koord_scheduler.framework.nominator import MAX_PRIORITIES, NominatedPods, Nominator
from koord_scheduler.framework.status import FEASIBLE, CycleState, Status
from koord_scheduler.framework.types import NodeInfo
from tests.support.scheduler.framework import CountsPods, FreeCpu, Kit, make_pod

NODES = 24  # more than are asked about one by one


class OnlyRow(FreeCpu):
    """Free cpu, kept for equal pods; counts how often its vector form sees nominated pods."""

    calls = 0

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Any:
        self.calls += bool(nodes.altered)
        return super().filter_all(state, pod, nodes)


class FewInPair(FilterPlugin, VectorFilterPlugin):
    """At most three pods of one label on a node and its neighbour: depends on other rows."""

    rejection = Status.unschedulable("too many of them in the pair")

    def __init__(self, *, keyed: bool) -> None:
        self.keyed = keyed

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return tuple(self._counts(nodes)) if self.keyed else None

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        counts = self._counts(node.view)
        return self.rejection if counts[node.row] + counts[node.row ^ 1] > 2 else None

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask:
        counts = self._counts(nodes)
        return np.array([counts[row] + counts[row ^ 1] <= 2 for row in range(len(nodes))], np.bool_)

    def _counts(self, nodes: View) -> list[int]:
        return [
            sum(one.labels.get("group") == "x" for one in nodes.pods(row))
            for row in range(len(nodes))
        ]


class NearOne(FilterPlugin, VectorFilterPlugin):
    """Needs a pod of one label on the node, as an affinity does; a nominated one will do."""

    rejection = Status.unschedulable("none of them is there")

    def filter_reuse_key(self, state: CycleState, pod: ClusterPod, nodes: View) -> Hashable | None:
        return ()

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        near = any(one.labels.get("group") == "x" for one in node.pods)
        return None if near else self.rejection

    def filter_all(self, state: CycleState, pod: ClusterPod, nodes: View) -> Mask:
        rows = (NodeInfo(nodes, row) for row in range(len(nodes)))
        return np.array([self.filter(state, pod, row) is None for row in rows], np.bool_)


SETS: dict[str, Any] = {
    "rows": lambda: {"Cpu": OnlyRow()},
    "state": lambda: {"Cpu": OnlyRow(), "Count": CountsPods()},
    "rows beyond": lambda: {"Pair": FewInPair(keyed=True), "Cpu": OnlyRow()},
    "near": lambda: {"Near": NearOne(), "Cpu": OnlyRow()},
    "unknown": lambda: {"Cpu": OnlyRow(), "Pair": FewInPair(keyed=False), "Free": FreeCpu()},
}


async def build(kind: str) -> tuple[Kit, NodeSearch]:
    kit = Kit()
    for at in range(NODES):
        kit.cluster.node(f"n{at}", cpu=4)
    filters = SETS[kind]()
    pre = {name: one for name, one in filters.items() if isinstance(one, CountsPods)}
    return kit, await kit.search(filter=filters, preFilter=pre)


def plainly(search: NodeSearch, kit: Kit, pod: ClusterPod) -> list[Status | None]:
    """The status of each node: with the pods nominated to it, and then without them.

    With the gate SkipFilterWithNominatedPods only once.
    """
    state, view = CycleState(), kit.cluster.state.view()
    assert search.pre_filter(state, pod, view).status.ok
    nominated_pods = kit.services.nominator.nominated_pods(pod)
    found: list[Status | None] = []
    for row in range(len(view)):
        what_if, imagined, name = HypotheticalCluster(view), state.clone(), view.node(row).name
        there = {one.key for one in view.pods(row)}
        for nominated_pod in nominated_pods.get(name, ()):
            if nominated_pod.key not in there:
                what_if.add(nominated_pod, name)
                search.add_pod(imagined, pod, nominated_pod, what_if.view(), row)
        status = search.filter_row(imagined, pod, what_if.view(), row)
        if status.ok and not (kit.services.nominator.suffices and nominated_pods.get(name)):
            status = search.filter_row(state, pod, view, row)
        found.append(None if status.ok else status)
    return found


def found_by(search: NodeSearch, kit: Kit, pod: ClusterPod) -> list[Status | None]:
    found = search.search(CycleState(), pod, kit.cluster.state.view())
    assert found.statuses is not None
    return [found.statuses.status(row) for row in range(NODES)]


EVENTS = st.one_of(
    st.tuples(
        st.just("nominate"),
        st.integers(0, NODES),
        st.integers(0, NODES - 1),
        st.sampled_from((0, 5, 9)),
        st.integers(0, 3),
    ),
    st.tuples(st.just("forget"), st.integers(0, NODES)),
    st.tuples(st.just("place"), st.integers(0, 9), st.integers(0, NODES - 1), st.integers(0, 2)),
    st.tuples(st.just("arrive"), st.integers(0, NODES), st.integers(0, NODES - 1)),
    st.tuples(st.just("search"), st.sampled_from((0, 5)), st.integers(1, 3)),
)


@settings(max_examples=40)
@given(st.sampled_from(sorted(SETS)), st.booleans(), st.lists(EVENTS, min_size=8, max_size=25))
def test_each_node_is_judged_as_if_it_were_imagined_alone(
    kind: str, once: bool, events: list[tuple[Any, ...]]
) -> None:
    """By plugins of all kinds, from cycle to cycle, while pods and nominations come and go."""
    asyncio.run(_follow(kind, [*events, ("search", 5, 2)], once=once))


@pytest.mark.parametrize("nodes", [1, NODES - 1])
async def test_with_the_gate_a_node_need_not_pass_without_nominated_pods(nodes: int) -> None:
    """One by one, and all at once; of other nodes nothing changes."""
    kit, search = await build("near")
    for at in range(nodes):
        kit.services.nominator.nominate(nominated_pod(f"r{at}", 5, 1), f"n{at}")
    pod = make_pod("web", priority=0)
    without = found_by(search, kit, pod)
    kit.services.nominator.suffices = True
    found = found_by(search, kit, pod)
    assert [status is None for status in without] == [False] * NODES
    assert [status is None for status in found] == [at < nodes for at in range(NODES)]


async def _follow(kind: str, events: list[tuple[Any, ...]], *, once: bool) -> None:
    kit, search = await build(kind)
    kit.services.nominator.suffices = once
    nominator = kit.services.nominator
    for at in range(NODES - 2):
        nominator.nominate(nominated_pod(f"r{at}", 5, 1 + at % 2), f"n{at}")
    for what, *facts in events:
        if what == "nominate":
            number, node, priority, cpu = facts
            nominator.nominate(nominated_pod(f"r{number}", priority, cpu), f"n{node}")
        elif what == "forget":
            nominator.forget(f"default/r{facts[0]}")
        elif what == "place":
            number, node, cpu = facts
            kit.cluster.pod(f"p{number}", f"n{node}", cpu=cpu, labels={"group": "x"})
        elif what == "arrive":  # a nominated pod is on a node, but its nomination is not over
            number, node = facts
            kit.cluster.pod(f"r{number}", f"n{node}", cpu=1, labels={"group": "x"})
        else:
            priority, cpu = facts
            pod = make_pod("web", priority=priority, requests={"cpu": str(cpu)})
            assert found_by(search, kit, pod) == plainly(search, kit, pod)


def nominated_pod(name: str, priority: int, cpu: int) -> ClusterPod:
    return make_pod(
        name, labels={"group": "x"}, priority=priority, requests={"cpu": str(cpu)} if cpu else {}
    )


async def many_nominated(
    kind: str = "rows", *, nodes: int = NODES
) -> tuple[Kit, NodeSearch, OnlyRow]:
    """Each node has a nominated pod of three cores."""
    kit, search = await build(kind)
    for at in range(nodes):
        kit.services.nominator.nominate(nominated_pod(f"r{at}", 5, 3), f"n{at}")
    plugin = search._filters._filters[0].plugin
    assert isinstance(plugin, OnlyRow)
    return kit, search, plugin


async def test_equal_pods_look_only_at_rows_that_have_changed() -> None:
    """With the nominated pods, too: the next pod costs no look at all nodes."""
    kit, search, plugin = await many_nominated()
    pod = make_pod("web", requests={"cpu": "2"})
    search.cached(pod)
    assert all(status is not None for status in found_by(search, kit, pod))
    assert plugin.calls == 1
    kit.services.nominator.forget("default/r3")
    feasible = [at for at, one in enumerate(found_by(search, kit, pod)) if one is None]
    assert feasible == [3]
    kit.cluster.pod("p", "n3", cpu=3)
    assert all(status is not None for status in found_by(search, kit, pod))
    assert plugin.calls == 1


async def test_few_nodes_are_imagined_one_by_one() -> None:
    """The vector form is only for the search without nominated pods."""
    kit, search, plugin = await many_nominated(nodes=FEW_NOMINATED)
    found = found_by(search, kit, make_pod("web", requests={"cpu": "2"}))
    assert [one is None for one in found] == [False] * 4 + [True] * (NODES - 4)
    assert plugin.calls == 0


async def test_with_a_percentage_each_block_minds_the_nominated_pods() -> None:
    """As without one."""
    kit = Kit()
    for at in range(300):
        kit.cluster.node(f"n{at}", cpu=4)
        if at % 3:
            kit.services.nominator.nominate(nominated_pod(f"r{at}", 5, 3), f"n{at}")
    search = await kit.search(filter={"Cpu": OnlyRow()}, percentage=20)
    view = kit.cluster.state.view()
    found = search.search(CycleState(), make_pod("web", requests={"cpu": "2"}), view)
    assert np.count_nonzero(found.feasible) == 100
    names = [view.node(row).name for row in np.flatnonzero(found.feasible).tolist()]
    assert all(int(name[1:]) % 3 == 0 for name in names)


async def test_a_nominated_pod_is_not_its_own_rival_elsewhere() -> None:
    """When its own node does not do any more, all are searched."""
    kit, search, _ = await many_nominated()
    mine = make_pod("r2", labels={"group": "x"}, priority=5, requests={"cpu": "3"})
    kit.cluster.pod("p", "n2", cpu=2)
    found = search.search(CycleState(), mine, kit.cluster.state.view())
    assert not found.status.ok
    kit.services.nominator.forget("default/r6")
    found = search.search(CycleState(), mine, kit.cluster.state.view())
    assert found.feasible[6]
    assert np.count_nonzero(found.statuses.numbers == FEASIBLE) == 1 if found.statuses else False


async def test_clusters_with_nominated_pods_are_cached_for_a_few_priorities() -> None:
    """They follow the nominations."""
    nominator = Nominator()
    nominated_pods = NominatedPods(nominator)
    kit, _ = await build("rows")
    view = kit.cluster.state.view()
    assert nominated_pods.of(make_pod(), view) is None
    nominator.nominate(nominated_pod("r", 50, 1), "n0")
    found = [
        nominated_pods.of(make_pod(priority=priority), view)
        for priority in range(MAX_PRIORITIES + 3)
    ]
    assert all(one is not None and one.rows.tolist() == [0] for one in found)
    assert len(nominated_pods._by_priority) == MAX_PRIORITIES
    nominator.nominate(nominated_pod("s", 50, 1), "n1")
    assert nominated_pods.of(make_pod(priority=10), view) is found[10]
    assert found[10] is not None
    assert sorted(found[10].rows.tolist()) == [0, 1]


@pytest.mark.parametrize("kind", sorted(SETS.keys() - {"near"}))
async def test_with_no_nominated_pods_nothing_is_imagined(kind: str) -> None:
    kit, search = await build(kind)
    pod = make_pod("web", requests={"cpu": "2"})
    assert found_by(search, kit, pod) == plainly(search, kit, pod) == [None] * NODES
