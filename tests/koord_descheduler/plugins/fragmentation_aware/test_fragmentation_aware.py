"""FragmentationAware: spec 06 §6.2, its worked examples of §9; decisions see each other."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.machine import parse_cpulist
from koord.api.nodetopology import CPU_TOPOLOGY
from koord_descheduler.framework.handle import DEVICES, NODE_TOPOLOGIES
from koord_descheduler.plugin import Action
from koord_descheduler.plugin.testing import FakeCluster, PluginHarness
from koord_descheduler_plugins.fragmentation_aware import (
    FragmentationAware,
    FragmentationAwareArgs,
    Shares,
)
from tests.support.descheduler.one_cycle import Outcome, one_cycle


@pytest.fixture
def cluster() -> FakeCluster:
    """The node of §9, and an empty one as a target."""
    found = FakeCluster()
    found.node("n1", cpu=10, memory="40Gi")
    found.node("n2", cpu=10, memory="40Gi")
    found.pod("a", "n1", cpu=6, memory="4Gi")
    found.pod("b", "n1", cpu=2, memory="4Gi")
    return found


async def run(cluster: FakeCluster, args: Any = None, **settings: Any) -> Outcome:
    return await one_cycle(FragmentationAware, cluster, args, **settings)


async def test_the_pod_with_the_largest_gain_leaves(cluster: FakeCluster) -> None:
    """§9: 0.8 and 0.2 deviate by 0.3; without A it is 0.05, without B 0.25."""
    found = await run(cluster)

    [evicted] = found.evicted
    assert evicted.key == "default/a"
    assert evicted.options.reason == (
        "fragmentation reduction: stdBefore=0.3000 stdAfter=0.0500 gain=0.2500"
    )
    assert evicted.options.plugin_name == "FragmentationAware"
    assert found.pods["a"].candidates == ("n2",)
    assert found.pods["b"].reason.startswith("default/a leaves it in this cycle")
    verdicts = {one.node: (one.verdict, one.hint) for one in found.decisions.nodes()}
    assert verdicts["n1"] == ("uneven", "imbalanceThreshold of 0.3000 or more")
    # n2 is looked at after the move: 0.6 and 0.1 are there already.
    assert verdicts["n2"][0] == "uneven"


@pytest.mark.parametrize(
    ("pods", "args", "reason"),
    [
        # 0.5 and 0.4 deviate by 0.05
        ([("5", "16Gi")], {}, None),
        # 0.9 and 0.5 deviate by 0.2; the best pod gives a gain of 0.02: it must be more
        ([("8.6", "20Gi"), ("0.4", "0")], {}, None),
        ([("8.6", "20Gi"), ("0.4", "0")], {"minImprovementThreshold": 0.019}, "default/p1"),
        ([("8.6", "20Gi"), ("0.4", "0")], {"imbalanceThreshold": 0.2}, None),
        ([("5", "16Gi")], {"imbalanceThreshold": 0.01}, "default/p0"),
        ([("5", "16Gi")], {"imbalanceThreshold": 0.01, "paused": True}, None),
    ],
)
async def test_thresholds(pods: list[tuple[str, str]], args: Any, reason: str | None) -> None:
    """Equal is not more, in spite of binary fractions."""
    cluster = FakeCluster()
    cluster.node("n1", cpu=10, memory="40Gi")
    cluster.node("n2", cpu=10, memory="40Gi")
    for at, (cpu, memory) in enumerate(pods):
        held = {"protected": "yes"} if at == 0 and len(pods) > 1 else {}
        cluster.pod(f"p{at}", "n1", cpu=cpu, memory=memory, labels=held)
    selectors = [
        {"selector": {"matchExpressions": [{"key": "protected", "operator": "DoesNotExist"}]}}
    ]
    found = await run(cluster, {"podSelectors": selectors, **args})

    assert [one.key for one in found.evicted] == ([reason] if reason else [])


async def test_a_pod_is_one_of_the_pods(cluster: FakeCluster) -> None:
    """0.8 of cpu and 2 of 110 pods deviate by 0.3909; without a, 0.2 and 1 of 110 by 0.0955."""
    found = await run(cluster, {"resources": ["cpu", "pods"]})

    assert [one.options.reason for one in found.evicted] == [
        "fragmentation reduction: stdBefore=0.3909 stdAfter=0.0955 gain=0.2955"
    ]
    assert found.decisions.nodes()[1].facts["deviation"] == pytest.approx((0.6 - 1 / 110) / 2)


async def test_a_pod_that_fits_nowhere_stays_and_the_next_best_goes(cluster: FakeCluster) -> None:
    """With nodeFit; without, the best one goes."""
    cluster.node("n2", cpu=3, memory="40Gi")

    fit = await run(cluster)
    assert [one.key for one in fit.evicted] == ["default/b"]
    assert fit.pods["a"].reason == "it fits none of the other 1 nodes"


async def test_without_node_fit_the_best_one_goes(cluster: FakeCluster) -> None:
    cluster.node("n2", cpu=3, memory="40Gi")

    assert [one.key for one in (await run(cluster, {"nodeFit": False})).evicted] == ["default/a"]


async def test_decisions_of_a_cycle_see_each_other() -> None:
    """There is room for one of two equal pods; upstream evicts both."""
    cluster = FakeCluster()
    for name in ("n1", "n2"):
        cluster.node(name, cpu=10, memory="40Gi", unschedulable=True)
        cluster.pod(f"big-{name}", name, cpu=6, memory="1Gi")
    cluster.node("n3", cpu=7, memory="40Gi")

    found = await run(cluster)

    assert [one.key for one in found.evicted] == ["default/big-n1"]
    stays = found.pods["big-n2"]
    assert (stays.action, stays.reason) == (Action.STAY, "it fits none of the other 2 nodes")


async def test_a_refused_eviction_moves_nothing() -> None:
    cluster = FakeCluster()
    for name in ("n1", "n2"):
        cluster.node(name, cpu=10, memory="40Gi", unschedulable=True)
        cluster.pod(f"big-{name}", name, cpu=6, memory="1Gi")
    cluster.node("n3", cpu=7, memory="40Gi")

    found = await run(cluster, refused=["default/big-n1"])

    assert [one.key for one in found.evicted] == ["default/big-n2"]
    assert found.pods["big-n1"].action is Action.REFUSED


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({"evictableNamespaces": {"exclude": ["default"]}}, "its namespace default is not among"),
        ({"podSelectors": [{"selector": {"matchLabels": {"x": "y"}}}]}, "no podSelector matches"),
    ],
)
async def test_pods_that_are_left_out_have_their_reason(
    cluster: FakeCluster, args: Any, reason: str
) -> None:
    found = await run(cluster, args)

    assert not found.evicted
    assert all(one.reason.startswith(reason) for one in found.decisions.pods())
    assert len(found.decisions.pods()) == 2


async def test_protected_pods_stay_with_the_filter_s_reason(cluster: FakeCluster) -> None:
    found = await run(cluster, protected=["default/a"])

    assert [one.key for one in found.evicted] == ["default/b"]
    reason = "RecordingEvictor does not let it be evicted"
    assert found.pods["a"].reason == reason


async def test_dry_run_of_the_plugin_decides_and_evicts_nothing(cluster: FakeCluster) -> None:
    found = await run(cluster, {"dryRun": True})

    assert not found.evicted
    assert found.pods["a"].action is Action.EVICT


async def test_only_selected_nodes_are_sources_and_targets(cluster: FakeCluster) -> None:
    found = await run(cluster, {"nodeSelector": {"matchLabels": {"pool": "a"}}})

    assert not found.evicted
    assert not found.decisions.nodes()


@given(
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 16)), min_size=1, max_size=6),
    st.integers(1, 8),
    st.integers(0, 32),
)
def test_shares_agree_with_the_plain_form(
    pods: list[tuple[int, int]], cpu: int, memory: int
) -> None:
    """Before, without each pod, and after it went to another node."""
    cluster = FakeCluster()
    cluster.node("n1", cpu=cpu, memory=f"{memory}Gi")
    cluster.node("n2", cpu=4, memory="8Gi")
    made = [
        cluster.pod(f"p{at}", "n1", cpu=f"{one}m", memory=f"{other}Gi")
        for at, (one, other) in enumerate(pods)
    ]
    view = cluster.state.view()
    row, to = view.row("n1"), view.row("n2")
    assert row is not None
    shares = Shares(view, np.array([row, to]), ["cpu", "memory", "example.com/none"])

    def plain(taken: list[tuple[int, int]]) -> float:
        parts = [sum(one for one, _ in taken) / (cpu * 1000)]
        if memory:
            parts.append(sum(other for _, other in taken) / memory)
        return float(np.std(parts))

    assert shares.deviation(row) == pytest.approx(plain(pods), abs=1e-9)
    for at, pod in enumerate(made):
        rest = pods[:at] + pods[at + 1 :]
        assert shares.without(row, pod) == pytest.approx(plain(rest), abs=1e-9)
    shares.move(made[0], row, to)
    assert shares.deviation(row) == pytest.approx(plain(pods[1:]), abs=1e-9)


# Whole GPUs and NUMA nodes.

CORE, RATIO, MEMORY = (f"koordinator.sh/gpu-{name}" for name in ("core", "memory-ratio", "memory"))
ONLY_PARTS = {"imbalanceThreshold": 9.0}


def device(name: str, count: int = 2, **more: Any) -> dict[str, Any]:
    """A Device with healthy GPUs."""
    resources = {CORE: "100", RATIO: "100", MEMORY: "80Gi"}
    cards = [
        {"type": "gpu", "minor": minor, "health": True, "resources": resources, **more}
        for minor in range(count)
    ]
    return {"metadata": {"name": name}, "spec": {"devices": cards}}


def share(cluster: FakeCluster, name: str, node: str, percent: int, *minors: int) -> None:
    """A pod with so much of each of some cards."""
    amounts = {CORE: str(percent), RATIO: str(percent), MEMORY: f"{percent * 80 // 100}Gi"}
    given = {"gpu": [{"minor": minor, "resources": amounts} for minor in minors]}
    requests = {key: str(percent * len(minors)) for key in (CORE, RATIO)}
    if len(minors) > 1:
        requests["koordinator.sh/gpu.shared"] = str(len(minors))
    annotations = {"scheduling.koordinator.sh/device-allocated": json.dumps(given)}
    containers = [{"name": "main", "resources": {"requests": requests}}]
    cluster.pod(name, node, annotations=annotations, spec={"containers": containers})


@pytest.fixture
def cards() -> FakeCluster:
    """Two nodes with two cards each."""
    found = FakeCluster()
    amounts = {CORE: 200, RATIO: 200, "koordinator.sh/gpu.shared": 200}
    for name in ("n1", "n2"):
        found.node(name, cpu=10, memory="40Gi", allocatable=amounts)
    return found


async def free(cluster: FakeCluster, kind: str, *objects: Any, **args: Any) -> Outcome:
    resource = DEVICES if kind == "gpu" else NODE_TOPOLOGIES
    async with PluginHarness(
        FragmentationAware, cluster, args={**ONLY_PARTS, "freeWhole": [kind], **args}
    ) as harness:
        for one in objects:
            harness.informers.apply(resource, one)
        result = await harness.cycle()
        assert result.errors == []
        return Outcome(harness.evicted, harness.decisions, harness.server)


async def test_a_share_leaves_for_a_card_that_is_in_use_elsewhere(cards: FakeCluster) -> None:
    """Then its card is whole; the pod on the other node has no reason to come here."""
    share(cards, "a", "n1", 30, 0)
    share(cards, "b", "n2", 60, 1)
    found = await free(cards, "gpu", device("n1"), device("n2"))
    assert found.names == ["a"]
    assert found.evicted[0].options.reason == "fragmentation reduction: frees GPU 0 of n1"
    assert found.pods["a"].candidates == ("n2",)
    assert found.pods["a"].facts == {"whole": 1.0}
    assert found.decisions.nodes()[-2].verdict == "fragmented"
    assert "b" not in found.reasons


async def test_without_room_in_a_card_in_use_it_stays(cards: FakeCluster) -> None:
    share(cards, "a", "n1", 30, 0)
    share(cards, "b", "n2", 80, 1)
    found = await free(cards, "gpu", device("n1"), device("n2"))
    assert found.reasons["a"] == (
        "without it GPU 0 of n1 would be free, but no other node has room for it in a GPU that is "
        "in use already"
    )


@pytest.mark.parametrize(
    ("shares", "names"),
    [
        pytest.param([("a", "n1", 30, 0)], [], id="its move would break another card"),
        pytest.param([("a", "n1", 30, 0), ("b", "n2", 80, 0)], [], id="too little room"),
        pytest.param(
            [("a", "n1", 30, 0), ("c", "n1", 10, 0), ("b", "n2", 60, 1)],
            ["b"],
            id="two have parts of the card, and the third one fits beside them",
        ),
        pytest.param([("a", "n1", 100, 0), ("b", "n2", 60, 1)], [], id="a whole card"),
        pytest.param(
            [("a", "n1", 20, 0, 1), ("b", "n2", 50, 0), ("c", "n2", 40, 1), ("d", "n2", 5, 0)],
            ["a"],
            id="two cards at once",
        ),
        pytest.param(
            [("a", "n1", 40, 0), ("c", "n1", 40, 1), ("b", "n2", 50, 1)],
            ["a"],
            id="one move of a node, and no room twice",
        ),
    ],
)
async def test_which_shares_leave(
    cards: FakeCluster, shares: list[tuple[Any, ...]], names: list[str]
) -> None:
    for one in shares:
        share(cards, *one)
    found = await free(cards, "gpu", device("n1"), device("n2"))
    assert found.names == names


async def test_pods_that_are_protected_keep_their_part(cards: FakeCluster) -> None:
    share(cards, "a", "n1", 30, 0)
    share(cards, "b", "n2", 60, 1)
    found = await free(
        cards, "gpu", device("n1"), device("n2"), evictableNamespaces={"exclude": ["default"]}
    )
    assert found.names == []
    assert not found.reasons["a"].startswith("fragmentation")


async def test_broken_cards_are_no_place(cards: FakeCluster) -> None:
    share(cards, "a", "n1", 30, 0)
    share(cards, "b", "n2", 60, 1)
    found = await free(cards, "gpu", device("n1"), device("n2", health=False))
    assert found.names == []


async def test_it_is_off_by_default(cards: FakeCluster) -> None:
    share(cards, "a", "n1", 30, 0)
    share(cards, "b", "n2", 60, 1)
    async with PluginHarness(FragmentationAware, cards, args=ONLY_PARTS) as harness:
        harness.informers.apply(DEVICES, device("n1"))
        harness.informers.apply(DEVICES, device("n2"))
        assert (await harness.cycle()).errors == []
        assert harness.evicted == []


def bound(cluster: FakeCluster, name: str, node: str, cpus: str) -> None:
    """A pod with CPUs of its own."""
    count = len(parse_cpulist(cpus))
    annotations = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": cpus})}
    cluster.pod(name, node, cpu=count, annotations=annotations)


@pytest.mark.parametrize(
    ("pods", "names"),
    [
        pytest.param([("a", "n1", "0-1"), ("b", "n2", "4-5")], ["a"], id="there is room"),
        pytest.param(
            [("a", "n1", "0"), ("c", "n1", "1"), ("b", "n2", "4-5")], ["b"], id="beside two"
        ),
        pytest.param([("a", "n1", "0-2"), ("b", "n2", "4-6")], [], id="there is none"),
        pytest.param([("a", "n1", "0-3"), ("b", "n2", "4")], [], id="a whole NUMA node stays"),
        pytest.param([("a", "n1", "3-4"), ("b", "n2", "4")], ["a"], id="of both NUMA nodes"),
    ],
)
async def test_which_pods_leave_numa_nodes(
    pods: list[tuple[str, str, str]], names: list[str]
) -> None:
    """Two nodes of two NUMA nodes with 4 CPUs each."""
    cluster = FakeCluster()
    for name in ("n1", "n2"):
        cluster.node(name, cpu=8, memory="40Gi")
    for one in pods:
        bound(cluster, *one)
    detail = [{"id": cpu, "core": cpu, "socket": 0, "node": cpu // 4} for cpu in range(8)]
    text = json.dumps({"detail": detail})
    found = await free(
        cluster,
        "numaNode",
        *(
            {"metadata": {"name": name, "annotations": {CPU_TOPOLOGY: text}}}
            for name in ("n1", "n2")
        ),
    )
    assert found.names == names


@pytest.mark.parametrize("kinds", [["cpu"], ["gpu", "gpu"], ["numanode"]])
def test_what_can_be_freed_is_checked(kinds: list[str]) -> None:
    args = FragmentationAwareArgs(free_whole=tuple(kinds))
    assert [one.path[0] for one in args.validate()] == ["freeWhole"]
