"""ScaleDownBinPack: spec 06 §6.3, its worked example of §9, and deletion costs."""

import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_descheduler.plugin import Action
from koord_descheduler.plugin.testing import FakeCluster
from koord_descheduler_plugins import scale_down_bin_pack
from koord_descheduler_plugins.scale_down_bin_pack import (
    HIGHEST_COST,
    Packed,
    ScaleDownBinPack,
    ranked,
)
from tests.support.descheduler.one_cycle import Outcome, one_cycle

COST = "controller.kubernetes.io/pod-deletion-cost"
SHOP = {"app": "shop"}
CHOSEN = {"podSelectors": [{"selector": {"matchLabels": SHOP}}]}


@pytest.fixture
def cluster() -> FakeCluster:
    """The nodes of §9: pods of shop may go, the others may not."""
    found = FakeCluster()
    for name in ("n1", "n2", "n3"):
        found.node(name, cpu=10, memory="40Gi")
    found.pod("a", "n1", cpu=2, memory="4Gi", labels=SHOP)
    found.pod("other-1", "n1", cpu=4, memory="4Gi")
    found.pod("b-small", "n2", cpu=1, memory="4Gi", labels=SHOP)
    found.pod("b-large", "n2", cpu=3, memory="4Gi", labels=SHOP)
    found.pod("other-2", "n2", cpu=1, memory="2Gi")
    found.pod("c", "n3", labels=SHOP)
    found.pod("other-3", "n3", cpu=1, memory="1Gi")
    return found


def patches(found: Outcome) -> dict[str, str]:
    """Deletion costs that were written, by pod."""
    costs = {}
    for call in found.server.calls:
        assert call.method == "PATCH"
        metadata = json.loads(call.body or b"")["metadata"]
        assert metadata["uid"].endswith(call.path.rpartition("/")[2])
        pod = call.path.removeprefix("/api/v1/namespaces/").replace("/pods/", "/")
        costs[pod] = metadata["annotations"][COST]
    return costs


async def run(cluster: FakeCluster, args: Any = None, **settings: Any) -> Outcome:
    return await one_cycle(ScaleDownBinPack, cluster, args, **settings)


async def test_nodes_with_little_else_come_first(cluster: FakeCluster) -> None:
    """§9: scores 1.6667, 0.25 and infinite; on a node the larger pod first."""
    found = await run(cluster, CHOSEN)

    assert patches(found) == {
        "default/b-large": "0",
        "default/b-small": "1",
        "default/a": "2",
        "default/c": "3",
    }
    scores = {one.node: one.facts["score"] for one in found.decisions.nodes()}
    assert scores == {"n2": pytest.approx(0.25), "n1": pytest.approx(5 / 3), "n3": math.inf}
    assert [one.node for one in found.decisions.nodes()] == ["n2", "n1", "n3"]


async def test_weights(cluster: FakeCluster) -> None:
    """By memory alone, n1 has as much that stays as that goes."""
    found = await run(cluster, {**CHOSEN, "resources": ["memory"]})

    scores = {one.node: one.facts["score"] for one in found.decisions.nodes()}
    assert scores == {"n2": pytest.approx(0.25), "n1": pytest.approx(1.0), "n3": math.inf}


async def test_skipped_pods_have_the_highest_cost(cluster: FakeCluster) -> None:
    """They match, but the filter keeps them; other pods are not touched."""
    found = await run(cluster, CHOSEN, protected=["default/a"])

    assert patches(found)["default/a"] == str(HIGHEST_COST)
    assert "default/other-1" not in patches(found)
    # n1 has no pod that may go: it is not ranked.
    assert [one.node for one in found.decisions.nodes()] == ["n2", "n3"]


async def test_without_selectors_daemon_sets_and_system_pods_are_not_marked() -> None:
    """Nor what is outside of evictableNamespaces. Upstream marks all of them."""
    cluster = FakeCluster()
    cluster.node("n1")
    cluster.node("n2")
    owners = [{"kind": "DaemonSet", "name": "agent", "uid": "u", "controller": True}]
    cluster.apply(
        {
            "kind": "Pod",
            "metadata": {"name": "agent", "namespace": "default", "ownerReferences": owners},
            "spec": {"nodeName": "n1", "containers": []},
        }
    )
    cluster.pod("critical", "n1", priority=2_000_000_000)
    cluster.pod("dns", "n1", namespace="kube-system")
    cluster.pod("held", "n1")
    cluster.pod("web", "n1")
    protected = ["default/agent", "default/critical", "default/held"]
    args = {"evictableNamespaces": {"exclude": ["kube-system"]}}

    found = await run(cluster, args, protected=protected)

    assert patches(found) == {"default/web": "0", "default/held": str(HIGHEST_COST)}


async def test_only_costs_that_differ_are_written(cluster: FakeCluster) -> None:
    cluster.pod("a", "n1", cpu=2, memory="4Gi", labels=SHOP, annotations={COST: "2"})
    cluster.pod("c", "n3", labels=SHOP, annotations={COST: "7"})

    assert sorted(patches(await run(cluster, CHOSEN))) == [
        "default/b-large",
        "default/b-small",
        "default/c",
    ]


async def test_writes_of_a_cycle_are_bounded(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lowest ranks first."""
    monkeypatch.setattr(scale_down_bin_pack, "MAX_PATCHES", 2)

    assert list(patches(await run(cluster, CHOSEN))) == ["default/b-large", "default/b-small"]


async def test_a_pod_that_cannot_be_written_does_not_end_it(cluster: FakeCluster) -> None:
    """The server takes only that of the last one."""
    found = await run(cluster, CHOSEN, patched="/c")

    assert len(patches(found)) == 4


async def test_dry_run_ranks_and_writes_nothing(cluster: FakeCluster) -> None:
    found = await run(cluster, CHOSEN, dryRun=True)

    assert not found.server.calls
    assert found.reasons["b-large"] == "its deletion cost is 0, its rank"
    assert found.reasons["other-1"] == "no podSelector matches its labels"


async def test_evicts_in_the_order_of_ranks(cluster: FakeCluster) -> None:
    """Until so many were evicted; one that is refused does not count."""
    args = {**CHOSEN, "strategy": "EvictDirectly", "maxPodsToEvict": 2}
    found = await run(cluster, args, refused=["default/b-large"])

    assert found.names == ["b-small", "a"]
    assert {one.options.reason for one in found.evicted} == {"scale-down binpack"}
    assert not found.server.calls
    assert found.pods["b-large"].action is Action.REFUSED
    assert found.pods["c"].action is Action.STAY


async def test_paused_does_nothing(cluster: FakeCluster) -> None:
    found = await run(cluster, {**CHOSEN, "paused": True})

    assert not found.server.calls
    assert not found.decisions.nodes()


async def test_equal_pods_go_newest_first_then_by_name() -> None:
    cluster = FakeCluster()
    cluster.node("n1")
    cluster.node("n2")
    for name, created in (("old", 1000.0), ("new", 2000.0), ("b", 1500.0), ("a", 1500.0)):
        cluster.pod(name, "n1", created=created)
    cluster.pod("unknown", "n1")

    assert sorted(patches(await run(cluster)).items(), key=lambda one: int(one[1])) == [
        ("default/new", "0"),
        ("default/a", "1"),
        ("default/b", "2"),
        ("default/old", "3"),
        ("default/unknown", "4"),
    ]


_NODES = st.lists(st.tuples(st.floats(0, 2), st.floats(0, 2)), max_size=5, unique=True)


@given(_NODES)
def test_the_order_of_nodes_does_not_depend_on_that_of_the_input(
    weights: list[tuple[float, float]],
) -> None:
    nodes = [Packed(f"n{at}", (), stays, goes) for at, (stays, goes) in enumerate(weights)]
    order = ranked(nodes)

    assert [one.score for one in order] == sorted(one.score for one in nodes)
    for some in itertools.islice(itertools.permutations(nodes), 6):
        assert ranked(some) == order
