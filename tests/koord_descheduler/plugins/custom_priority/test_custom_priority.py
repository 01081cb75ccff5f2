"""CustomPriority: spec 06 §6.1 and its worked examples of §9, with capacity that is reserved."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.labelselector import LabelSelector
from koord.component.config.field_errors import InvalidConfig
from koord_descheduler.plugin import Action
from koord_descheduler.plugin.testing import FakeCluster, PluginHarness, make_node
from koord_descheduler_plugins.custom_priority import CustomPriority, PriorityLevel, levels_of
from tests.support.descheduler.one_cycle import Outcome, one_cycle


def level(name: str) -> dict[str, Any]:
    return {"name": name, "nodeSelector": {"matchLabels": {"price": name}}}


ORDER = {"evictionOrder": [level("expensive"), level("cheap")]}
DRAIN = {**ORDER, "mode": "DrainNode"}


@pytest.fixture
def cluster() -> FakeCluster:
    """§9: pods of 500m, 100m and 2000m on the expensive node, 600m free on the cheap one."""
    return make_cluster()


def make_cluster(free: str = "600m") -> FakeCluster:
    found = FakeCluster()
    found.node("dear", cpu=8, labels={"price": "expensive"})
    found.node("low", cpu=free, labels={"price": "cheap"})
    for name, cpu in (("p500", "500m"), ("p100", "100m"), ("p2000", "2000m")):
        found.pod(name, "dear", cpu=cpu)
    return found


async def run(cluster: FakeCluster, args: Any, **settings: Any) -> Outcome:
    return await one_cycle(CustomPriority, cluster, args, **settings)


def cordons(found: Outcome) -> list[tuple[str, bool]]:
    return [
        (call.path, json.loads(call.body or b"")["spec"]["unschedulable"])
        for call in found.server.calls
    ]


async def test_best_effort_moves_what_fits_small_pods_first(cluster: FakeCluster) -> None:
    found = await run(cluster, ORDER)

    assert found.names == ["p100", "p500"]
    assert {one.options.reason for one in found.evicted} == {
        "evicting from expensive priority resource to lower priority resource"
    }
    assert found.reasons["p2000"] == "it fits none of the 1 cheaper nodes"


async def test_best_effort_reserves_what_it_moves() -> None:
    """§9: with 500m free upstream evicts both, though only one of them has room."""
    found = await run(make_cluster("500m"), ORDER)

    assert found.names == ["p100"]


async def test_best_effort_without_node_fit_moves_everything(cluster: FakeCluster) -> None:
    found = await run(cluster, {**ORDER, "nodeFit": False})

    assert found.names == ["p100", "p500", "p2000"]


async def test_a_refused_pod_reserves_nothing() -> None:
    found = await run(make_cluster("500m"), ORDER, refused=["default/p100"])

    assert found.names == ["p500"]


async def test_after_five_misses_in_a_row_a_node_is_left() -> None:
    """The last one would fit, having a request of memory only that sorts it behind the others."""
    cluster = FakeCluster()
    cluster.node("dear", cpu=100, labels={"price": "expensive"})
    cluster.node("low", cpu=1, labels={"price": "cheap"})
    for at in range(7):
        cluster.pod(f"p{at}", "dear", cpu=2 + at)
    found = await run(cluster, ORDER)

    assert not found.names
    assert found.reasons["p4"] == "it fits none of the 1 cheaper nodes"
    assert found.reasons["p5"].startswith("not looked at")
    assert found.reasons["p6"].startswith("not looked at")


async def test_drain_leaves_a_node_whose_pods_do_not_all_fit(cluster: FakeCluster) -> None:
    """§9: 500m are left after the first, 0 after the second, and 2000m do not fit."""
    found = await run(cluster, {**DRAIN, "autoCordon": True})

    assert not found.names
    assert not found.server.calls
    text = "the node is not drained: default/p2000 has no place on cheaper nodes"
    assert set(found.reasons.values()) == {text}


async def test_drain_empties_a_node() -> None:
    """It stays cordoned: it is empty so that it can be taken away."""
    found = await run(make_cluster("2600m"), {**DRAIN, "autoCordon": True})

    assert found.names == ["p100", "p500", "p2000"]
    assert found.evicted[0].options.reason == "drain node dear (sourcePriority=expensive)"
    assert cordons(found) == [("/api/v1/nodes/dear", True)]


async def test_a_drain_that_fails_is_taken_back() -> None:
    """The first failed eviction ends it, and the node takes pods again."""
    args = {**DRAIN, "autoCordon": True}
    found = await run(make_cluster("2600m"), args, refused=["default/p500"])

    assert found.names == ["p100"]
    assert cordons(found) == [("/api/v1/nodes/dear", True), ("/api/v1/nodes/dear", False)]
    assert found.reasons["p2000"] == "the drain of the node ended: default/p500 was not evicted"


async def test_a_node_that_is_cordoned_already_stays_so() -> None:
    cluster = make_cluster("2600m")
    cluster.node("dear", cpu=8, labels={"price": "expensive"}, unschedulable=True)
    found = await run(cluster, {**DRAIN, "autoCordon": True}, refused=["default/p100"])

    assert not found.server.calls


@pytest.mark.parametrize("settings", [{"dryRun": True}, {}])
async def test_no_node_is_cordoned_in_dry_run(settings: Any) -> None:
    """Neither in the framework's nor in the plugin's own."""
    own = {} if settings else {"dryRun": True}
    args = {**DRAIN, "autoCordon": True, **own}
    found = await run(make_cluster("2600m"), args, **settings)

    assert not found.server.calls
    assert not found.names
    assert {one.action for one in found.decisions.pods()} == {Action.EVICT}


async def test_drain_without_node_fit_looks_at_room_only() -> None:
    """A taint does not matter then."""
    cluster = make_cluster("2600m")
    taint = {"key": "x", "value": "y", "effect": "NoSchedule"}
    cluster.node("low", cpu="2600m", labels={"price": "cheap"}, taints=[taint])

    assert not (await run(cluster, DRAIN)).names


async def test_drain_without_node_fit_ignores_taints() -> None:
    cluster = make_cluster("2600m")
    taint = {"key": "x", "value": "y", "effect": "NoSchedule"}
    cluster.node("low", cpu="2600m", labels={"price": "cheap"}, taints=[taint])

    assert len((await run(cluster, {**DRAIN, "nodeFit": False})).names) == 3


async def test_two_source_nodes_share_the_room() -> None:
    """What the first one moves, the second one cannot use."""
    cluster = make_cluster("600m")
    cluster.node("dear2", cpu=8, labels={"price": "expensive"})
    cluster.pod("late", "dear2", cpu="100m")
    found = await run(cluster, ORDER)

    assert found.names == ["p100", "p500"]
    assert found.reasons["late"] == "it fits none of the 1 cheaper nodes"


async def test_the_dearest_of_the_cheaper_levels_comes_first() -> None:
    cluster = make_cluster("600m")
    cluster.node("middle", cpu=8, labels={"price": "middle"})
    args = {"evictionOrder": [level("expensive"), level("middle"), level("cheap")]}
    found = await run(cluster, args)

    assert found.pods["p100"].candidates == ("middle", "low")
    assert found.names == ["p100", "p500", "p2000"]


async def test_a_level_alone_has_nowhere_to_move_to() -> None:
    cluster = FakeCluster()
    cluster.node("dear", labels={"price": "expensive"})
    cluster.node("other")
    cluster.pod("a", "dear")

    assert not (await run(cluster, ORDER)).decisions.pods()


async def test_finished_and_protected_pods_stay(cluster: FakeCluster) -> None:
    cluster.pod("done", "dear", phase="Succeeded")
    found = await run(cluster, ORDER, protected=["default/p100"])

    assert found.names == ["p500"]
    assert found.reasons["p100"] == "RecordingEvictor does not let it be evicted"
    assert "done" not in found.reasons


async def test_paused_does_nothing(cluster: FakeCluster) -> None:
    assert not (await run(cluster, {**ORDER, "paused": True})).decisions.pods()


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ({"evictionOrder": [level("a")]}, "at least 2 resource priority levels"),
        ({"evictionOrder": [level("a"), level("a")]}, "Duplicate value"),
        ({"evictionOrder": [level("a"), {"name": "b"}]}, "nodeSelector"),
        ({**ORDER, "mode": "Sometimes"}, "mode"),
        (
            {"evictionOrder": [level("a"), {**level("b"), "keepThreshold": 101}]},
            "wanted 0 to 100 percent",
        ),
    ],
)
def test_arguments_are_checked(cluster: FakeCluster, args: Any, wanted: str) -> None:
    """Upstream has a strict validator and never calls it."""
    with pytest.raises(InvalidConfig, match=wanted):
        PluginHarness(CustomPriority, cluster, args=args)


@given(st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=8))
def test_each_node_is_of_the_first_level_that_matches(prices: list[str]) -> None:
    """Two levels match "b"; levels without nodes are left out."""
    nodes = [make_node(f"n{at}", labels={"price": one}) for at, one in enumerate(prices)]
    order = [
        PriorityLevel(name=name, node_selector=LabelSelector({"price": price}))
        for name, price in (("one", "b"), ("two", "a"), ("three", "b"), ("four", "c"))
    ]
    found = {one.name: one.nodes for one in levels_of(order, nodes)}

    for name, price in (("one", "b"), ("two", "a"), ("four", "c")):
        wanted = tuple(f"n{at}" for at, one in enumerate(prices) if one == price)
        assert found.get(name, ()) == wanted
    assert "three" not in found
