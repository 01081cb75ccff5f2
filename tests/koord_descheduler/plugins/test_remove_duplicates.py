"""RemoveDuplicates. Source: the Kubernetes descheduler's guide, section RemoveDuplicates."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util.errors import KoordError
from koord_descheduler.plugin import Action
from koord_descheduler.plugin.testing import FakeCluster, PluginHarness, make_workload
from koord_descheduler_plugins.remove_duplicates import RemoveDuplicates

WEB, DB = make_workload("ReplicaSet", "web"), make_workload("ReplicaSet", "db")
WHY = "its node has {} pods like it, {} are an even share"


def cluster_of(nodes: int = 3) -> FakeCluster:
    cluster = FakeCluster()
    for number in range(nodes):
        cluster.node(f"n{number}")
    return cluster


def put(cluster: FakeCluster, node: str, *names: str, image: str = "app:1", **facts: Any) -> None:
    spec = {"containers": [{"name": "main", "image": image}], **facts.pop("spec", {})}
    for name in names:
        cluster.pod(name, node, **{"owner": WEB, "spec": spec, **facts})


async def run(round_of, cluster, args=None, **more):
    return await round_of(RemoveDuplicates, cluster, args, **more)


async def test_one_of_each_owner_and_node_stays(round_of):
    cluster = cluster_of()
    put(cluster, "n0", "a", "b", "c")
    gone, found = await run(round_of, cluster)

    assert gone == ["a", "b"]
    assert found["a"] == (Action.EVICT, WHY.format(3, 1))


async def test_as_many_stay_as_an_even_share(round_of):
    """Five pods on two nodes: three and two."""
    cluster = cluster_of(2)
    put(cluster, "n0", "a", "b", "c", "d")
    put(cluster, "n1", "e")

    assert (await run(round_of, cluster))[0] == ["a"]


@pytest.mark.parametrize(
    "facts",
    [
        {"owner": DB},
        {"image": "app:2"},
        {"namespace": "shop"},
        {"phase": "Succeeded"},
        {"owner": None},
    ],
)
async def test_what_is_no_duplicate(round_of, facts):
    """Another owner, image or namespace, a finished pod, and a bare one."""
    cluster = cluster_of()
    put(cluster, "n0", "a")
    put(cluster, "n0", "b", **facts)

    assert (await run(round_of, cluster))[0] == []


async def test_images_count_in_any_order(round_of):
    cluster = cluster_of()
    one = [{"name": "x", "image": "a:1"}, {"name": "y", "image": "b:1"}]
    put(cluster, "n0", "a", spec={"containers": one})
    put(cluster, "n0", "b", spec={"containers": one[::-1]})

    assert (await run(round_of, cluster))[0] == ["a"]


@pytest.mark.parametrize(
    "args",
    [{"excludeOwnerKinds": ["ReplicaSet"]}, {"namespaces": {"exclude": ["default"]}}],
)
async def test_excluded_pods_stay(round_of, args):
    cluster = cluster_of()
    put(cluster, "n0", "a", "b")

    assert (await run(round_of, cluster, args))[0] == []


@pytest.mark.parametrize(
    "change",
    [
        {"taints": [{"key": "k", "effect": "NoSchedule"}]},
        {"unschedulable": True},
        {"ready": False},
    ],
)
async def test_only_nodes_that_can_take_them_count(round_of, change):
    """Four pods on two such nodes may be two and two."""
    cluster = cluster_of(3)
    cluster.node("n2", **change)
    put(cluster, "n0", "a", "b")
    put(cluster, "n1", "c", "d")

    assert (await run(round_of, cluster))[0] == []


async def test_pods_for_one_node_alone_stay(round_of):
    cluster = cluster_of()
    cluster.node("n0", labels={"disk": "ssd"})
    put(cluster, "n0", "a", "b", spec={"nodeSelector": {"disk": "ssd"}})

    assert (await run(round_of, cluster))[0] == []


async def test_a_pod_stays_where_no_other_node_fits_it(round_of):
    """Kubernetes' plugin does not ask for room there, so the pod comes back."""
    cluster = cluster_of(2)
    cluster.pod("big", "n1", cpu=4)
    requests = {"resources": {"requests": {"cpu": "1"}}}
    put(cluster, "n0", "a", "b", spec={"containers": [{"name": "main", **requests}]})
    gone, found = await run(round_of, cluster)

    assert gone == []
    assert found["a"] == (
        Action.STAY, f"{WHY.format(2, 1)}, but no node with fewer of them fits it",
    )  # fmt: skip


async def test_a_protected_pod_is_the_one_that_stays(round_of):
    cluster = cluster_of()
    put(cluster, "n0", "a", "b")

    assert (await run(round_of, cluster, protected=["default/a"]))[0] == ["b"]


async def test_the_youngest_of_equal_pods_leaves(round_of):
    cluster = cluster_of()
    put(cluster, "n0", "old", created=100.0)
    put(cluster, "n0", "young", created=200.0)

    assert (await run(round_of, cluster))[0] == ["young"]


@given(st.lists(st.integers(0, 6), min_size=2, max_size=5))
async def test_afterwards_they_are_spread_evenly_by_the_fewest_evictions(counts):
    """Each pod that leaves is taken to the node that was named for it."""
    cluster = cluster_of(len(counts))
    for number, count in enumerate(counts):
        put(cluster, f"n{number}", *(f"p{number}-{each}" for each in range(count)))
    async with PluginHarness(RemoveDuplicates, cluster) as harness:
        await harness.cycle()
        after = Counter({f"n{number}": count for number, count in enumerate(counts)})
        evicted = {one.pod.key for one in harness.evicted}
        for one in harness.decisions.pods():
            assert one.pod in evicted
            after[one.node] -= 1
            after[one.candidates[0]] += 1

    share = -(-sum(counts) // len(counts))
    assert max(after.values()) <= max(share, 1)
    assert len(evicted) == sum(max(count - max(share, 1), 0) for count in counts)


def test_bad_arguments():
    both = {"namespaces": {"include": ["a"], "exclude": ["b"]}}
    with pytest.raises(KoordError):
        PluginHarness(RemoveDuplicates, cluster_of(), args=both)
