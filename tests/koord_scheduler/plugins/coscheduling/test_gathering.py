"""Gangs that the network gathers: in the scheduler, and against brute force on small clusters."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.podgroup import (
    MATCH_POLICY,
    NETWORK_TOPOLOGY_SELECTOR,
    NETWORK_TOPOLOGY_SPEC,
    TOPOLOGY_INDEX,
    GangTopology,
    GatherRule,
    GatherStrategy,
)
from koord.cluster.facts import ClusterPod
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.kinds import NODE, POD
from koord_scheduler.framework.extension.networktopology import (
    CLUSTER_LAYER,
    NODE_LAYER,
    TOPOLOGIES,
    NetworkTopology,
)
from koord_scheduler.framework.groupplan import GroupPlan
from koord_scheduler.framework.handle import Handle
from koord_scheduler.framework.interfaces import PreEnqueuePlugin
from koord_scheduler.framework.nodes.search import NodeSearch
from koord_scheduler.framework.status import CycleState, Status
from koord_scheduler.plugin.testing.harness import ProfileHarness, fake_cluster
from koord_scheduler_plugins.coscheduling.topology import Gathering, without_index
from tests.support.clusters import Json, near, node, pod, read_node, read_pod
from tests.support.scheduler.gangs import World

SPINE, BLOCK = "SpineLayer", "BlockLayer"
NETWORK = {
    "metadata": {"name": "default"},
    "spec": {
        "networkTopologySpec": [
            {"topologyLayer": SPINE, "parentTopologyLayer": CLUSTER_LAYER, "labelKey": ["spine"]},
            {"topologyLayer": BLOCK, "parentTopologyLayer": SPINE, "labelKey": ["block"]},
            {"topologyLayer": NODE_LAYER, "parentTopologyLayer": BLOCK},
        ]
    },
}


def place(name: str, spine: str, block: str, cpu: int = 1) -> Json:
    return node(name, {"spine": spine, "block": block}, {"cpu": str(cpu), "pods": "10"})


EIGHT = [
    place("node-8", "s1", "b1"),
    place("node-1", "s1", "b1"),
    place("node-7", "s1", "b2"),
    place("node-2", "s1", "b2"),
    place("node-6", "s2", "b3"),
    place("node-3", "s2", "b3"),
    place("node-5", "s2", "b4"),
    place("node-4", "s2", "b4"),
]


def spec(must: str = "", **multiples: int) -> str:
    rules: list[Json] = [{"layer": layer, "podCountMultiple": n} for layer, n in multiples.items()]
    if must:
        rules.append({"layer": must, "strategy": "MustGather"})
    return json.dumps({"gatherStrategy": rules})


class Network(World):
    """Nodes in a network."""

    async def begin_in(self, nodes: Sequence[Json], *, known: bool = True, **args: Any) -> None:
        args = {"aware_network_topology": True, **args}
        for one in nodes:
            self.put(one)
        if known:
            self.services.informers.apply(TOPOLOGIES, NETWORK)
        await self.begin(network=True, **args)

    def put(self, one: Json) -> None:
        self.state.put(NODE, read_node(one))

    def members(self, *names: str, cpu: str = "1", **annotations: str) -> None:
        for name in names:
            key = self.add_of_group(name, cpu=cpu)
            self.api.change(key, metadata={"annotations": annotations})

    def gang(self, minimum: int, topology: str, **annotations: str) -> None:
        self.pod_group("g", minimum, **{NETWORK_TOPOLOGY_SPEC: topology, **annotations})

    @property
    def nodes(self) -> dict[str, str]:
        return {key.partition("/")[2]: name for key, name in self.api.bindings}


async def test_a_gang_is_placed_close_together_in_the_order_of_its_index():
    """Worked example 54, with an index in place of names."""
    world = Network()
    await world.begin_in(EIGHT)
    world.gang(4, spec(SPINE))
    for index, name in enumerate(["d", "c", "b", "a"]):
        world.members(name, **{TOPOLOGY_INDEX: str(index)})
    await world.settle()
    assert world.nodes == {"d": "node-1", "c": "node-8", "b": "node-2", "a": "node-7"}
    await world.end()


async def test_a_gang_without_a_place_waits_and_says_so():
    """Worked example 55; then a block becomes large enough."""
    world = Network()
    await world.begin_in(EIGHT)
    world.gang(3, spec(BLOCK))
    world.members("a", "b", "c")
    await world.settle()
    assert world.bound == []
    assert (
        "no candidate topology nodes can accommodate job, desiredOfferSlot: 3, "
        "topology topologyNode BlockLayer/b1: 2;topology topologyNode BlockLayer/b2: 2;"
        "topology topologyNode BlockLayer/b3: 2;topology topologyNode BlockLayer/b4: 2, "
        "0/8 nodes are available: 2 Insufficient cpu, 6 node(s) were not chosen for the group."
    ) in world.message("c")
    world.put(place("node-9", "s2", "b4"))
    await world.advance(15.0)
    assert set(world.nodes.values()) == {"node-4", "node-5", "node-9"}
    await world.end()


async def test_a_pod_that_leaves_makes_room_in_a_block():
    world = Network()
    await world.begin_in(EIGHT[:3])
    other = world.api.add_pod("other", bound="node-1")
    world.gang(2, spec(BLOCK))
    world.members("a", "b")
    await world.settle()
    assert world.bound == []
    world.api.delete_pod(other)
    await world.advance(15.0)
    assert set(world.nodes.values()) == {"node-1", "node-8"}
    await world.end()


@pytest.mark.parametrize("followed", [True, False])
async def test_without_a_network_a_gang_with_a_topology_waits_for_it(followed):
    world = Network()
    if followed:
        await world.begin_in(EIGHT, known=False)
    else:
        world.put(EIGHT[0])
        await world.begin(aware_network_topology=True)
    world.gang(2, spec(BLOCK))
    world.members("a", "b")
    await world.settle()
    assert world.bound == []
    assert any("no cluster network topology" in text for _, _, text in world.events)
    if followed:
        world.services.informers.apply(TOPOLOGIES, NETWORK)
        await world.advance(15.0)
        assert world.bound == ["a", "b"]
    await world.end()


async def test_a_topology_is_nothing_to_a_plugin_that_is_not_aware():
    world = Network()
    await world.begin_in(EIGHT, aware_network_topology=False)
    world.gang(3, spec(BLOCK))
    world.members("a", "b", "c")
    await world.settle()
    assert world.bound == ["a", "b", "c"]
    await world.end()


async def test_more_members_than_needed_are_gathered_as_far_as_there_is_room():
    world = Network()
    await world.begin_in(EIGHT)
    world.gang(2, spec(BLOCK))
    world.members("a", "b", "c")
    await world.settle()
    assert [world.nodes.get(name) for name in "ab"] == ["node-1", "node-8"]
    await world.end()


async def test_members_of_a_block_are_a_multiple():
    world = Network()
    await world.begin_in(
        [place("n1", "s1", "b1", 3), place("n2", "s1", "b2", 3), place("n3", "s1", "b2", 1)]
    )
    world.gang(6, spec(BlockLayer=2))
    world.members(*"abcdef")
    await world.settle()
    assert sorted(world.nodes.values()) == ["n1", "n1", "n2", "n2", "n2", "n3"]
    await world.end()


async def test_pods_of_one_selector_attract_one_another():
    world = Network()
    await world.begin_in(EIGHT)
    key = world.api.add_pod("other", cpu="0", bound="node-5")
    world.api.change(key, metadata={"annotations": {NETWORK_TOPOLOGY_SELECTOR: "x"}})
    await world.settle()
    world.gang(2, spec())
    world.members("a", "b", **{NETWORK_TOPOLOGY_SELECTOR: "x"})
    await world.settle()
    assert set(world.nodes.values()) == {"node-5", "node-4"}
    await world.end()


@pytest.mark.parametrize("policy", ["waiting-and-running", "once-satisfied"])
async def test_a_replacement_comes_to_the_block_of_the_others(policy):
    world = Network()
    await world.begin_in([*EIGHT[2:], place("node-0", "s0", "b0", 8), EIGHT[0], EIGHT[1]])
    world.api.add_pod("other", cpu="7", bound="node-0")
    world.gang(2, spec(BLOCK), **{MATCH_POLICY: policy})
    world.members("a", "b")
    await world.settle()
    assert set(world.nodes.values()) == {"node-1", "node-8"}
    world.members("late")
    await world.settle()
    assert "late" not in world.nodes
    world.api.delete_pod("default/late")
    left = world.nodes["a"]
    world.api.delete_pod("default/a")
    world.members("c")
    await world.settle()
    assert world.nodes["c"] == left
    await world.end()


async def test_a_single_pod_comes_near_pods_of_its_selector():
    """Node, then block, then spine; what the network does not have comes last."""
    world = Network()
    await world.begin_in([*EIGHT, node("outside", None, {"cpu": "9", "pods": "10"})])
    annotations = {NETWORK_TOPOLOGY_SELECTOR: "x"}
    for index, name in enumerate("abcd"):
        key = world.api.add_pod(name)
        world.api.change(key, metadata={"annotations": annotations})
        await world.settle()
        assert world.nodes[name] == ["node-1", "node-8", "node-2", "node-7"][index]
    await world.end()


async def test_a_selector_is_nothing_without_a_network():
    world = Network()
    await world.begin_in(EIGHT[:1], known=False)
    world.put(EIGHT[1])
    key = world.api.add_pod("a")
    world.api.change(key, metadata={"annotations": {NETWORK_TOPOLOGY_SELECTOR: "x"}})
    await world.settle()
    assert world.bound == ["a"]
    await world.end()


class Planner(PreEnqueuePlugin):
    """Gives the test its handle."""

    def __init__(self, args: object, handle: Handle) -> None:
        services = handle.services
        informer = services.informers.informer(TOPOLOGIES)
        network = NetworkTopology(services.cluster, services.changes, informer, services.clock)
        self.handle = replace(handle, services=replace(services, network=network))
        self.gathering = Gathering(self.handle)

    def pre_enqueue(self, pod: ClusterPod) -> None:
        """Every pod may be tried."""


PLUGINS = (
    "PrioritySort",
    "DefaultBinder",
    "NodeResourcesFit",
    "InterPodAffinity",
    "NodePorts",
    "Planner",
)
CONFIG = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "profiles": [
        {
            "schedulerName": "default-scheduler",
            "plugins": {"multiPoint": {"enabled": [{"name": name} for name in PLUGINS]}},
        }
    ],
}


class Plans:
    """A profile with plugins of Kubernetes, for one small cluster after the other."""

    def __init__(self, kit: ProfileHarness) -> None:
        self.state = kit.cluster.state
        self.planner: Planner = kit.plugin("Planner")
        self.planner.handle.services.informers.apply(TOPOLOGIES, NETWORK)

    def become(self, nodes: Sequence[Json]) -> None:
        for kind in (POD, NODE):
            for key in tuple(self.state.keys(kind)):
                self.state.remove(kind, key)
        for one in nodes:
            self.state.put(NODE, read_node(one))

    def plan(
        self, members: Sequence[ClusterPod], topology: GangTopology, *bound: str
    ) -> GroupPlan | Status:
        alike = [without_index(one) for one in members]
        return self.planner.gathering.plan(alike, self.state.view(), topology, bound)

    def holds(self, members: Sequence[ClusterPod], nodes: Sequence[str]) -> bool:
        """Whether the pods can be placed on these nodes, one after the other in some order."""
        left = list(zip(members, nodes, strict=True))
        what_if, filters = HypotheticalCluster(self.state.view()), self.planner.handle.filters()
        while left:
            for one, name in left:
                state, view = CycleState(), what_if.view()
                row = view.row(name)
                begun = row is not None and filters.pre_filter(state, one, view).status.ok
                if begun and filters.filter_row(state, one, view, row).ok:
                    what_if.add(one, name)
                    left.remove((one, name))
                    break
            else:
                return False
        return True


@pytest.fixture(scope="module")
def plans() -> Iterator[Plans]:
    kit = ProfileHarness(CONFIG, fake_cluster(), {"Planner": Planner}, installed=True)
    with asyncio.Runner() as runner:
        runner.run(kit.__aenter__())
        yield Plans(kit)
        runner.run(kit.__aexit__(None, None, None))


def apart(key: str) -> Json:
    selector = {"labelSelector": {"matchLabels": {"app": "m"}}, "topologyKey": key}
    return {"affinity": near("podAntiAffinity", selector)}


def member(name: str, cpu: int, **more: Any) -> ClusterPod:
    found = pod(name, "", {"app": "m"}, {"cpu": str(cpu)}, **more)
    return read_pod({**found, "status": {"phase": "Pending"}})


BLOCKS = GangTopology((GatherRule(BLOCK, GatherStrategy.MUST),))


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({}, {"n0"}),
        (apart("kubernetes.io/hostname"), {"n1", "n2"}),
        ({"ports": [{"containerPort": 80, "hostPort": 80}]}, {"n1", "n2"}),
    ],
)
def test_members_that_keep_apart_are_counted_so(plans, more, found):
    plans.become([place("n0", "s", "a", 9), place("n1", "s", "b", 2), place("n2", "s", "b", 2)])
    members = [member("p0", 1, **more), member("p1", 1, **more)]

    plan = plans.plan(members, BLOCKS)

    assert isinstance(plan, GroupPlan)
    assert set(plan.nodes.values()) == found


def test_what_only_plugins_know_is_found_by_trying_the_next_place(plans):
    """Members of one gang that must be on different spines: no block and no spine holds them."""
    plans.become(EIGHT)
    members = [member(f"p{at}", 1, **apart("spine")) for at in range(2)]

    plan = plans.plan(members, GangTopology())

    assert isinstance(plan, GroupPlan)
    assert len(set(plan.nodes.values())) == 2
    failure = plans.plan(members, BLOCKS)
    assert isinstance(failure, Status)
    assert "BlockLayer/b1: 2;" in failure.message
    assert "InterPodAffinity" in failure.also_rejected_by


def test_places_that_are_all_in_vain_are_not_searched_thoroughly_first(plans, monkeypatch):
    """No node and no block can hold both: the cluster can, and is reached soon."""
    plans.become(
        [
            place(f"n{spine}-{block}-{at:02}", f"s{spine}", f"b{spine}-{block}", 2)
            for spine in range(2)
            for block in range(5)
            for at in range(40)
        ]
    )
    searches = 0
    search = NodeSearch.search

    def counting(self: NodeSearch, *args: Any, **more: Any) -> Any:
        nonlocal searches
        searches += 1
        return search(self, *args, **more)

    monkeypatch.setattr(NodeSearch, "search", counting)
    members = [member(f"p{at}", 1, **apart("spine")) for at in range(2)]

    plan = plans.plan(members, GangTopology())

    assert isinstance(plan, GroupPlan)
    assert searches < 100


requests = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from(["", "", "kubernetes.io/hostname", "block"])),
    min_size=1,
    max_size=4,
)


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from("ab")), min_size=1, max_size=4),
    requests,
    st.sampled_from(["", BLOCK]),
)
def test_a_plan_is_found_whenever_there_is_one(plans, rooms, asked, must):
    """In one block, or anywhere; with affinity and requests that are not alike."""
    nodes = [place(f"n{at}", "s", block, cpu) for at, (cpu, block) in enumerate(rooms)]
    plans.become(nodes)
    members = [
        member(f"p{at}", cpu, **(apart(key) if key else {})) for at, (cpu, key) in enumerate(asked)
    ]
    blocks = {f"n{at}": block for at, (_, block) in enumerate(rooms)}

    plan = plans.plan(members, BLOCKS if must else GangTopology())

    if isinstance(plan, GroupPlan):
        chosen = [plan.nodes[one.key] for one in members]
        assert plans.holds(members, chosen)
        assert not must or len({blocks[name] for name in chosen}) == 1
    else:
        for chosen in product(blocks, repeat=len(members)):
            if not must or len({blocks[name] for name in chosen}) == 1:
                assert not plans.holds(members, chosen)
