"""The network between nodes as a tree, kept current."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.cluster.facts import ClusterNode, ClusterPod
from koord.cluster.kinds import NODE
from koord.controlplane.testing import make_node, make_pod
from koord.util.errors import InvalidObject
from koord.util.simulatedclock import SimulatedClock
from koord_scheduler.cache import SchedulerCache
from koord_scheduler.config.profiles import EnabledPlugin, Point, Profile
from koord_scheduler.framework.extension.networktopology import (
    CLUSTER_LAYER,
    NODE_LAYER,
    NetworkTopology,
    build_tree,
    read_layers,
)
from koord_scheduler.framework.handle import Handle
from koord_scheduler.framework.interfaces import Changes, FilterPlugin
from koord_scheduler.framework.nodes.search import NodeSearch
from koord_scheduler.framework.profile import PluginRegistry, build_profile
from koord_scheduler.framework.status import CycleState, Status
from koord_scheduler.framework.types import NodeInfo
from tests.support.scheduler.framework import Binder, FirstCome, Kit


def topology(*layers: tuple[str, str, list[str]]) -> dict[str, Any]:
    rows = [
        {"topologyLayer": name, "parentTopologyLayer": parent, "labelKey": keys}
        for name, parent, keys in layers
    ]
    return {"metadata": {"name": "default"}, "spec": {"networkTopologySpec": rows}}


TOPOLOGY = topology(
    (NODE_LAYER, "Switch", []),
    ("Block", CLUSTER_LAYER, ["net/block", "old/block"]),
    ("Switch", "Block", ["net/switch"]),
)


def place(name: str, block: str = "", switch: str = "") -> ClusterNode:
    labels = {"net/block": block, "net/switch": switch}
    return make_node(name, labels={key: value for key, value in labels.items() if value})


def test_the_tree_has_a_place_for_each_label() -> None:
    """Switches of one name in two blocks are two; a node without a switch has one of its own."""
    nodes = [
        place("a", "b1", "s1"),
        place("b", "b1", "s1"),
        place("c", "b2", "s1"),
        place("d", "b2"),
        place("e"),
        make_node("f", labels={"old/block": "b2", "net/switch": "s2"}),
    ]
    tree = build_tree(read_layers(TOPOLOGY), nodes)
    blocks = {one.name: sorted(one.node_names()) for one in tree.at("Block")}
    assert blocks == {"b1": ["a", "b"], "b2": ["c", "d", "f"]}
    switches = sorted((one.parent.name, one.name) for one in tree.at("Switch") if one.parent)
    assert switches == [("b1", "s1"), ("b2", "d"), ("b2", "s1"), ("b2", "s2")]
    assert "e" not in tree.nodes
    assert tree.is_ancestor("Block", "Switch")
    assert not tree.is_ancestor("Switch", "Block")
    assert not tree.is_ancestor("Switch", "Rack")
    assert list(tree.at("Rack")) == []


@pytest.mark.parametrize(
    "found",
    [
        None,
        {},
        topology(),
        topology(("Block", CLUSTER_LAYER, ["k"])),
        topology((NODE_LAYER, "Switch", [])),
        topology((NODE_LAYER, "A", []), ("A", "B", ["a"]), ("B", "A", ["b"])),
        topology((NODE_LAYER, CLUSTER_LAYER, []), ("Lost", "Block", ["a"])),
        topology((NODE_LAYER, CLUSTER_LAYER, []), (NODE_LAYER, CLUSTER_LAYER, [])),
        topology((NODE_LAYER, CLUSTER_LAYER, [7])),  # type: ignore[list-item]
    ],
)
def test_layers_that_are_no_chain_are_refused(found: Any) -> None:
    with pytest.raises(InvalidObject):
        read_layers(found)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5) | st.sampled_from([NODE_LAYER, "A"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["spec", "networkTopologySpec", "topologyLayer", "labelKey"]), inner
            )
        ),
    )
)
def test_whatever_an_object_has_is_read_or_refused(found: Any) -> None:
    try:
        layers = read_layers(found)
    except InvalidObject:
        return
    assert layers[-1].name == NODE_LAYER


class Followed:
    """An informer's objects."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}


def kept(nodes: list[ClusterNode]) -> tuple[NetworkTopology, SchedulerCache, Followed]:
    state, changes, followed = (
        SchedulerCache(SimulatedClock()),
        Changes(SimulatedClock()),
        Followed(),
    )
    state.observe(changes.notify)
    made = NetworkTopology(state, changes, followed, SimulatedClock())  # type: ignore[arg-type]
    for one in nodes:
        state.put(NODE, one)
    return made, state, followed


def test_the_tree_follows_nodes_and_the_object() -> None:
    network, state, followed = kept([place("a", "b1", "s1")])
    assert network.tree() is None
    followed.objects["default"] = TOPOLOGY
    tree = network.tree()
    assert tree is not None
    assert set(tree.nodes) == {"a"}
    assert network.tree() is tree
    state.put(NODE, place("b", "b1", "s2"))
    state.put(NODE, place("a", "b9", "s1"))
    tree = network.tree()
    assert tree is not None
    assert sorted(one.name for one in tree.at("Block")) == ["b1", "b9"]
    state.remove(NODE, "b")
    tree = network.tree()
    assert tree is not None
    assert set(tree.nodes) == {"a"}
    followed.objects["default"] = topology((NODE_LAYER, CLUSTER_LAYER, []))
    tree = network.tree()
    assert tree is not None
    assert tree.layers == (CLUSTER_LAYER, NODE_LAYER)
    followed.objects["default"] = {"spec": {}}
    assert network.tree() is None
    del followed.objects["default"]
    assert network.tree() is None


class InBlock(FilterPlugin):
    """Pods run in the block that their label names, wherever nodes have it written."""

    def __init__(self, args: object, handle: Handle) -> None:
        assert handle.services.network is not None
        self._network = handle.services.network

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        tree = self._network.tree()
        place = None if tree is None else tree.nodes.get(node.name)
        while place is not None and place.layer != "Block":
            place = place.parent
        if place is not None and place.name == pod.labels.get("block"):
            return None
        return Status.unresolvable("node(s) were in another block")


async def test_a_third_partys_plugin_sees_the_network_by_its_handle() -> None:
    network, state, followed = kept([place("a", "b1", "s1"), place("b", "b2", "s1")])
    followed.objects["default"] = TOPOLOGY
    kit = Kit(state=state)
    kit.services = replace(kit.services, network=network)
    kit.registry.register("InBlock", InBlock)
    profile = await build_profile(
        Profile(
            scheduler_name="p",
            plugins={
                Point.QUEUE_SORT: (EnabledPlugin("FirstCome"),),
                Point.FILTER: (EnabledPlugin("InBlock"),),
                Point.BIND: (EnabledPlugin("Binder"),),
            },
        ),
        _with_basics(kit.registry),
        kit.services,
    )
    search = NodeSearch(profile, kit.services.nominator)
    view = state.view()
    pod = make_pod("web", labels={"block": "b2"})
    found = search.search(CycleState(), pod, view)
    assert [view.node(row).name for row in found.feasible.nonzero()[0].tolist()] == ["b"]


def _with_basics(registry: PluginRegistry) -> PluginRegistry:
    registry.register("FirstCome", lambda args, handle: FirstCome())
    registry.register("Binder", lambda args, handle: Binder())
    return registry
