"""Plans for groups, against brute force on small clusters."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.cluster.facts import ClusterPod
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.kinds import NODE, POD
from koord.cluster.view import View
from koord_scheduler.framework.cyclestate import CycleState
from koord_scheduler.framework.groupplan import FeasibleNodes, GroupPlan, NodeOrder, NoGroupPlan
from koord_scheduler.framework.handle import Handle
from koord_scheduler.framework.interfaces import PreEnqueuePlugin
from koord_scheduler.framework.nodes import groupsearch
from koord_scheduler.plugin.testing.harness import ProfileHarness, fake_cluster
from tests.support.clusters import Json, near, node, pod, read_node, read_pod


class Planner(PreEnqueuePlugin):
    """Gives the test its handle."""

    def __init__(self, args: object, handle: Handle) -> None:
        self.handle = handle

    def pre_enqueue(self, pod: ClusterPod) -> None:
        """Every pod may be tried."""


CONFIG = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "profiles": [
        {
            "schedulerName": "default-scheduler",
            "plugins": {
                "multiPoint": {
                    "enabled": [
                        {"name": name}
                        for name in (
                            "PrioritySort",
                            "DefaultBinder",
                            "NodeResourcesFit",
                            "InterPodAffinity",
                            "PodTopologySpread",
                            "NodeAffinity",
                            "NodePorts",
                            "Planner",
                        )
                    ]
                }
            },
        }
    ],
}


def member(name: str, cpu: int, app: str = "", **spec: Any) -> Json:
    found = pod(name, "", {"app": app} if app else {}, {"cpu": str(cpu)}, **spec)
    return {**found, "status": {"phase": "Pending"}}


def together(app: str, key: str) -> Json:
    return near("podAffinity", {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key})


def apart(app: str, key: str) -> Json:
    return near(
        "podAntiAffinity", {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}
    )


class World:
    """A profile with the default plugins, for one small cluster after the other."""

    def __init__(self, kit: ProfileHarness) -> None:
        self.state = kit.cluster.state
        self.handle: Handle = kit.plugin("Planner").handle

    def become(self, nodes: Sequence[Json], running: Sequence[Json] = ()) -> None:
        """Have these nodes and pods and no others."""
        for key in tuple(self.state.keys(POD)):
            self.state.remove(POD, key)
        for key in tuple(self.state.keys(NODE)):
            self.state.remove(NODE, key)
        for one in nodes:
            self.state.put(NODE, read_node(one))
        for one in running:
            self.state.put(POD, read_pod(one))

    def plan(
        self, members: Sequence[ClusterPod], order: NodeOrder | None = None
    ) -> GroupPlan | NoGroupPlan:
        return self.handle.groups().plan(members, self.state.view(), order)

    def exists(self, members: Sequence[ClusterPod]) -> bool:
        """Whether there is some way, by trying all."""
        return _try_all(self.handle.filters(), self.state.view(), list(members))

    def holds(self, members: Sequence[ClusterPod], plan: GroupPlan) -> bool:
        """Whether the pods can be placed one after the other as planned."""
        what_if, by_key = HypotheticalCluster(self.state.view()), {one.key: one for one in members}
        assert plan.nodes.keys() == by_key.keys()
        for key, name in plan.nodes.items():
            if name not in _feasible(self.handle.filters(), what_if.view(), by_key[key]):
                return False
            what_if.add(by_key[key], name)
        return True


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    yield from _running(CONFIG)


@pytest.fixture
def sampling() -> Iterator[World]:
    """A profile in which few nodes are enough for a pod."""
    yield from _running({**CONFIG, "percentageOfNodesToScore": 1})


def _running(config: Json) -> Iterator[World]:
    kit = ProfileHarness(config, fake_cluster(), {"Planner": Planner}, installed=True)
    with asyncio.Runner() as runner:
        runner.run(kit.__aenter__())
        yield World(kit)
        runner.run(kit.__aexit__(None, None, None))


def _try_all(filters: Any, view: View, left: list[ClusterPod]) -> bool:
    if not left:
        return True
    for one in left:
        for name in _feasible(filters, view, one):
            what_if = HypotheticalCluster(view)
            what_if.add(one, name)
            if _try_all(filters, what_if.view(), [each for each in left if each is not one]):
                return True
    return False


def _feasible(filters: Any, view: View, one: ClusterPod) -> list[str]:
    state = CycleState()
    if not filters.pre_filter(state, one, view).status.ok:
        return []
    rows = range(len(view))
    return [view.node(row).name for row in rows if filters.filter_row(state, one, view, row).ok]


def small(name: str, cpu: int, zone: str) -> Json:
    return node(name, {"zone": zone}, {"cpu": str(cpu), "pods": "4"})


members = st.builds(
    lambda name, cpu, app, rule, about, key, skew: member(
        name,
        cpu,
        app,
        **(
            {"affinity": {**together(about, key)}}
            if rule == "together"
            else {"affinity": {**apart(about, key)}}
            if rule == "apart"
            else {
                "topologySpreadConstraints": [
                    {
                        "topologyKey": key,
                        "maxSkew": skew,
                        "whenUnsatisfiable": "DoNotSchedule",
                        "labelSelector": {"matchLabels": {"app": about}},
                    }
                ]
            }
            if rule == "spread"
            else {}
        ),
    ),
    st.just(""),
    st.integers(1, 3),
    st.sampled_from("xy"),
    st.sampled_from(["", "", "together", "apart", "spread"]),
    st.sampled_from("xy"),
    st.sampled_from(["zone", "kubernetes.io/hostname"]),
    st.integers(1, 2),
)


def numbered(templates: Sequence[Json]) -> list[ClusterPod]:
    """Pods p0, p1, ... made by these templates."""
    made = []
    for at, template in enumerate(templates):
        meta = {**template["metadata"], "name": f"p{at}", "uid": f"uid-p{at}"}
        made.append(read_pod({**template, "metadata": meta}))
    return made


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from("ab")), min_size=1, max_size=3),
    st.lists(members, min_size=1, max_size=4),
    st.lists(members, max_size=2),
)
def test_a_plan_is_found_whenever_there_is_one(world, rooms, templates, running):
    """With affinity, spread and requests, whatever the order in which the pods must be placed."""
    nodes = [small(f"n{at}", cpu, zone) for at, (cpu, zone) in enumerate(rooms)]
    there = [pod(f"r{at}", "n0", one["metadata"]["labels"]) for at, one in enumerate(running)]
    world.become(nodes, there)
    pods = numbered(templates)

    found = world.plan(pods)

    if isinstance(found, GroupPlan):
        assert world.holds(pods, found)
    else:
        assert not found.cut
        assert not world.exists(pods)


def test_a_plan_looks_at_all_nodes_where_a_sample_is_enough_for_a_pod(sampling):
    """The only node for both is the last one of all."""
    sampling.become([small(f"n{at:03}", 4 if at == 299 else 2, "a") for at in range(300)])
    pods = numbered(
        [member("", 1, "x"), member("", 3, affinity=together("x", "kubernetes.io/hostname"))]
    )

    found = sampling.plan(pods)

    assert isinstance(found, GroupPlan)
    assert set(found.nodes.values()) == {"n299"}


def test_many_equal_pods_that_do_not_fit_end_the_search_soon(world):
    """Without room for all, no choice of nodes would have made more."""
    world.become([small(f"n{at}", 4, "a") for at in range(20)])
    pods = numbered([member("", 1)] * 81)

    found = world.plan(pods)

    assert isinstance(found, NoGroupPlan)
    assert (found.placed, found.cut) == (80, False)
    assert "20 Insufficient cpu" in found.status.message


@pytest.mark.parametrize("given", [None, 5])
def test_a_search_that_takes_too_long_is_cut_and_says_so(world, monkeypatch, given):
    monkeypatch.setattr(groupsearch, "MAX_DEAD_ENDS", 5 if given is None else 10**9)
    world.become([small(f"n{at}", 5, "a") for at in range(4)])
    pods = numbered([member("", cpu) for cpu in (2, 2, 2, 3, 3, 3, 4, 4)])

    found = world.handle.groups().plan(pods, world.state.view(), dead_ends=given)

    assert isinstance(found, NoGroupPlan)
    assert found.cut


def test_pods_need_not_be_placed_in_their_order(world):
    """The first one wants to be near the second."""
    world.become([small("a", 1, "x"), small("b", 2, "x")])
    pods = numbered(
        [member("", 1, "m", affinity=together("n", "kubernetes.io/hostname")), member("", 1, "n")]
    )

    found = world.plan(pods)

    assert isinstance(found, GroupPlan)
    assert list(found.nodes) == ["default/p1", "default/p0"]
    assert set(found.nodes.values()) == {"b"}


def _by_name_backwards(pod: ClusterPod, feasible: FeasibleNodes) -> Sequence[str]:
    return sorted(feasible.best_first(), reverse=True)


def test_the_order_of_nodes_can_be_given(world):
    world.become([small(name, 2, "x") for name in "abc"])

    found = world.plan(numbered([member("", 1)] * 3), _by_name_backwards)

    assert isinstance(found, GroupPlan)
    assert found.nodes == {"default/p0": "c", "default/p1": "c", "default/p2": "b"}


def test_nodes_that_the_order_leaves_out_are_not_taken(world):
    world.become([small("a", 1, "x"), small("b", 2, "x"), small("c", 2, "x")])

    def only_b(pod: ClusterPod, feasible: FeasibleNodes) -> Sequence[str]:
        return ["b"] if feasible.mask[feasible.nodes.row("b")] else []

    assert isinstance(world.plan(numbered([member("", 1)] * 2), only_b), GroupPlan)
    found = world.plan(numbered([member("", 1)] * 3), only_b)

    assert isinstance(found, NoGroupPlan)
    assert (found.pod.name, found.placed) == ("p2", 2)
    assert found.status.message == (
        "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were not chosen for the group."
    )


def test_a_pod_that_prefilter_rejects_is_named(world):
    world.become([small("a", 2, "x")])
    pods = numbered([member("", 1), member("", 1, affinity=together("nobody", "zone"))])

    found = world.plan(pods)

    assert isinstance(found, NoGroupPlan)
    assert (found.pod.name, found.placed) == ("p1", 1)
