"""Places of the network for a gang (worked examples 48 to 57 of the specification)."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.podgroup import GangTopology, GatherRule, GatherStrategy
from koord.controlplane.testing import make_node
from koord_scheduler.framework.extension.networktopology import (
    CLUSTER_LAYER,
    NODE_LAYER,
    Layer,
    NetworkTree,
    build_tree,
)
from koord_scheduler_plugins.coscheduling.topology import Offer, TreeColumns, assign
from tests.support.clusters import pod, read_pod

SPINE, BLOCK = "SpineLayer", "BlockLayer"
Places = dict[str, dict[str, dict[str, int]]]

ONE_SPINE: Places = {"s1": {"b1": {"n1": 5, "n2": 7}, "b2": {"n3": 6, "n4": 4}}}
TWO_SPINES: Places = {
    "s1": {"b1": {"node-8": 1, "node-1": 1}, "b2": {"node-7": 1, "node-2": 1}},
    "s2": {"b3": {"node-6": 1, "node-3": 1}, "b4": {"node-5": 1, "node-4": 1}},
}


def tree_of(places: Places) -> NetworkTree:
    layers = (Layer(SPINE, ("spine",)), Layer(BLOCK, ("block",)), Layer(NODE_LAYER, ()))
    nodes = [
        make_node(name, labels={"spine": spine, "block": block})
        for spine, blocks in places.items()
        for block, names in blocks.items()
        for name in names
    ]
    return build_tree(layers, nodes)


def rules(must: str = "", **multiples: int) -> GangTopology:
    found = [GatherRule(layer, multiple=multiples.get(layer, 1)) for layer in multiples]
    if must:
        found.append(GatherRule(must, GatherStrategy.MUST))
    return GangTopology(tuple(found))


def offer(
    places: Places,
    desired: int,
    topology: GangTopology | None = None,
    existing: tuple[str, ...] = (),
    bound: tuple[str, ...] = (),
) -> Offer:
    tree = TreeColumns(tree_of(places))
    slots = {
        name: free
        for blocks in places.values()
        for names in blocks.values()
        for name, free in names.items()
    }
    free = np.array([slots[name] for name in tree.leaves])
    return Offer.of(
        tree, topology or rules(), desired, free, tree.count(existing), tree.count(bound)
    )


def chosen(found: Offer) -> tuple[str, dict[str, int]] | None:
    """The first candidate that multiples allow, with the pods of its nodes."""
    for depth, number in found.candidates():
        distribution = found.distribution(depth, number)
        if distribution is not None:
            return found.tree.places[depth][number].name, dict(distribution)
    return None


def by_layer(found: Offer, layer: str) -> dict[str, int]:
    depth = found.tree.layers.index(layer)
    names = [one.name for one in found.tree.places[depth]]
    return dict(zip(names, found.slots[depth].tolist(), strict=True))


def test_48_a_spine_is_filled_block_by_block():
    assert chosen(offer(ONE_SPINE, 15)) == ("s1", {"n2": 7, "n1": 5, "n3": 3})


def test_49_multiples_of_nodes_leave_fewer_slots():
    found = offer(ONE_SPINE, 20, rules(**{NODE_LAYER: 4}))
    assert by_layer(found, NODE_LAYER) == {"n1": 4, "n2": 4, "n3": 4, "n4": 4}
    assert by_layer(found, BLOCK) == {"b1": 8, "b2": 8}
    assert by_layer(found, SPINE) == {"s1": 16}
    assert chosen(found) is None


def test_50_multiples_of_blocks():
    found = offer(ONE_SPINE, 16, rules(**{BLOCK: 8}))
    assert chosen(found) == ("s1", {"n2": 7, "n1": 1, "n3": 6, "n4": 2})


def test_51_multiples_of_nodes_and_blocks():
    found = offer(ONE_SPINE, 16, rules(**{NODE_LAYER: 2, BLOCK: 8}))
    assert by_layer(found, NODE_LAYER) == {"n1": 4, "n2": 6, "n3": 6, "n4": 4}
    assert by_layer(found, BLOCK) == {"b1": 8, "b2": 8}
    assert chosen(found) == ("s1", {"n2": 6, "n1": 2, "n3": 6, "n4": 2})


def test_52_what_is_left_of_multiples_is_not_enough():
    places: Places = {"s1": {"b1": {"n1": 5, "n2": 5}}}
    assert chosen(offer(places, 10, rules(**{NODE_LAYER: 4}))) is None


@pytest.mark.parametrize("multiple", [0, 1])
def test_53_multiples_of_0_and_1_are_none(multiple):
    found = offer(ONE_SPINE, 15, rules(**{NODE_LAYER: multiple, BLOCK: multiple}))
    assert chosen(found) == ("s1", {"n2": 7, "n1": 5, "n3": 3})
    assert "podCountMultiple" not in found.message("")


def test_54_the_deepest_place_that_has_room_for_all():
    found = offer(TWO_SPINES, 4, GangTopology((GatherRule(BLOCK), GatherRule(SPINE))))
    place = chosen(found)
    assert place is not None
    assert place[0] == "s1"
    members = [read_pod(pod(f"pod-{number}")) for number in range(1, 5)]
    assert assign(members, place[1]) == {
        "default/pod-1": "node-1",
        "default/pod-2": "node-8",
        "default/pod-3": "node-2",
        "default/pod-4": "node-7",
    }


def test_55_no_block_has_room_for_all():
    found = offer(TWO_SPINES, 4, rules(BLOCK))
    assert chosen(found) is None
    assert found.message("0/8 nodes are available: 8 Insufficient cpu.") == (
        "no candidate topology nodes can accommodate job, desiredOfferSlot: 4, "
        "topology topologyNode BlockLayer/b1: 2;topology topologyNode BlockLayer/b2: 2;"
        "topology topologyNode BlockLayer/b3: 2;topology topologyNode BlockLayer/b4: 2, "
        "0/8 nodes are available: 8 Insufficient cpu."
    )


def test_the_message_ends_with_the_multiples():
    found = offer(TWO_SPINES, 4, rules(SPINE, **{NODE_LAYER: 2, BLOCK: 4}))
    assert found.message("no node") == (
        "no candidate topology nodes can accommodate job, desiredOfferSlot: 4, "
        "topology topologyNode SpineLayer/s1: 0;topology topologyNode SpineLayer/s2: 0, no node; "
        "podCountMultiple constraints: BlockLayer=4, NodeTopologyLayer=2"
    )


def test_the_message_is_bounded():
    places: Places = {"s": {f"b{number:03}": {f"n{number}": 1} for number in range(500)}}
    text = offer(places, 2, rules(BLOCK)).message("no node")
    assert "BlockLayer/b099: 1;and 400 more topology nodes, no node" in text
    assert "b100" not in text


def test_56_one_node_for_all():
    places: Places = {"s1": {"b1": {"n1": 2, "n2": 4}, "b2": {"n3": 3}}}
    assert chosen(offer(places, 4, rules(BLOCK))) == ("n2", {"n2": 4})


def test_57_the_tighter_parent_comes_first_then_the_name():
    places: Places = {
        "s2": {"b3": {"n5": 1, "n6": 1}, "b4": {"n7": 1, "n8": 1}},
        "s1": {"b1": {"n1": 1, "n2": 1}, "b2": {"n3": 0}},
    }
    found = offer(places, 2)
    names = [found.tree.places[depth][number].name for depth, number in found.candidates()]
    assert names[:3] == ["b1", "b3", "b4"]


def test_after_the_deepest_layer_those_above_come():
    found = offer(TWO_SPINES, 2)
    names = [found.tree.places[depth][number].name for depth, number in found.candidates()]
    assert names == ["b1", "b2", "b3", "b4", "s1", "s2", ""]
    found = offer(TWO_SPINES, 2, rules(BLOCK))
    names = [found.tree.places[depth][number].name for depth, number in found.candidates()]
    assert names == ["b1", "b2", "b3", "b4"]


def test_after_some_places_of_a_layer_those_above_come_before_the_others():
    places: Places = {"s": {f"b{at}": {f"n{at}{one}": 2 for one in range(8)} for at in range(5)}}
    found = offer(places, 2)
    depths = [depth for depth, _ in found.candidates()]
    assert depths == [3] * 32 + [2] * 5 + [1, 0] + [3] * 8
    assert len(set(found.candidates())) == len(depths)


def test_pods_that_attract_come_before_a_tight_fit():
    found = offer(TWO_SPINES, 2, existing=("node-5",))
    assert chosen(found) == ("b4", {"node-5": 1, "node-4": 1})
    found = offer(TWO_SPINES, 3, existing=("node-4",))
    assert chosen(found) == ("s2", {"node-4": 1, "node-5": 1, "node-3": 1})


def test_members_that_are_placed_already_hold_the_rest_in_their_place():
    found = offer(TWO_SPINES, 2, rules(BLOCK), bound=("node-7",))
    assert chosen(found) == ("b2", {"node-2": 1, "node-7": 1})
    assert chosen(offer(TWO_SPINES, 3, rules(BLOCK), bound=("node-7",))) is None


def test_a_layer_that_the_tree_lacks_has_no_place():
    found = offer(TWO_SPINES, 2, rules("Rack"))
    assert chosen(found) is None
    assert "no layer of the cluster network topology is Rack, no node" in found.message("no node")


@given(
    free=st.lists(st.integers(0, 6), min_size=8, max_size=8),
    desired=st.integers(1, 20),
    node=st.integers(0, 4),
    block=st.integers(0, 6),
    must=st.sampled_from(["", SPINE, BLOCK, NODE_LAYER, CLUSTER_LAYER]),
)
def test_every_distribution_keeps_the_rules(
    free: list[int], desired: int, node: int, block: int, must: str
) -> None:
    """All are placed, within the slots, in one place of the layer, in multiples."""
    left = iter(free)
    places: Places = {
        spine: {name: {one: next(left) for one in names} for name, names in blocks.items()}
        for spine, blocks in TWO_SPINES.items()
    }
    slots = {
        one: n
        for blocks in places.values()
        for names in blocks.values()
        for one, n in names.items()
    }
    found = offer(places, desired, rules(must, **{NODE_LAYER: node, BLOCK: block}))
    for depth, number in found.candidates():
        distribution = found.distribution(depth, number)
        if distribution is None:
            continue
        assert sum(distribution.values()) == desired
        assert all(count <= slots[name] for name, count in distribution.items())
        assert distribution.keys() <= set(found.tree.places[depth][number].node_names())
        assert not node or all(count % node == 0 for count in distribution.values())
        of_block: dict[Any, int] = {}
        for name, count in distribution.items():
            parent = found.tree.places[-1][found.tree.leaves[name]].parent
            of_block[parent] = of_block.get(parent, 0) + count
        assert not block or all(count % block == 0 for count in of_block.values())
