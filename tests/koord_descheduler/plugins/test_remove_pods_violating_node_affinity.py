"""RemovePodsViolatingNodeAffinity. Source: the Kubernetes descheduler's guide."""

from typing import Any

import pytest

from koord.util.errors import KoordError
from koord_descheduler.plugin import Action
from koord_descheduler.plugin.testing import FakeCluster, PluginHarness
from koord_descheduler_plugins.node_constraints import RemovePodsViolatingNodeAffinity

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
SSD = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
FAST = {"matchExpressions": [{"key": "net", "operator": "Exists"}]}


def required(*terms: Any) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}


def preferred(**weights: int) -> dict[str, Any]:
    terms = {"ssd": SSD, "fast": FAST}
    wanted = [{"weight": weight, "preference": terms[name]} for name, weight in weights.items()]
    return {"affinity": {"nodeAffinity": {PREFERRED: wanted}}}


def cluster_of(**labels: dict[str, str]) -> FakeCluster:
    cluster = FakeCluster()
    for name, found in labels.items():
        cluster.node(name, labels=found)
    return cluster


async def run(round_of, cluster, *kinds, **more):
    args = {"nodeAffinityType": list(kinds or [REQUIRED]), **more.pop("args", {})}
    return await round_of(RemovePodsViolatingNodeAffinity, cluster, args, **more)


async def test_a_pod_leaves_a_node_that_its_affinity_forbids(round_of):
    cluster = cluster_of(n1={}, n2={"disk": "ssd"})
    cluster.pod("wrong", "n1", spec=required(SSD))
    cluster.pod("right", "n2", spec=required(SSD))
    cluster.pod("any", "n1")
    gone, found = await run(round_of, cluster)

    assert gone == ["wrong"]
    assert found == {"wrong": (Action.EVICT, "its required node affinity forbids its node")}


async def test_it_stays_where_no_other_node_fits(round_of):
    """All rules count, here the room on the only node that the affinity allows."""
    cluster = cluster_of(n1={}, n2={"disk": "ssd"}, n3={})
    cluster.pod("wrong", "n1", cpu=3, spec=required(SSD))
    cluster.pod("other", "n2", cpu=2)
    gone, found = await run(round_of, cluster)

    assert gone == []
    assert found["wrong"] == (
        Action.STAY,
        "its required node affinity forbids its node, but none of 2 nodes fits: "
        "1 its node selector or affinity, 1 too little room",
    )


async def test_a_node_selector_alone_is_no_affinity(round_of):
    cluster = cluster_of(n1={}, n2={"disk": "ssd"})
    cluster.pod("p", "n1", spec={"nodeSelector": {"disk": "ssd"}})

    assert (await run(round_of, cluster))[0] == []


async def test_beside_an_affinity_the_node_selector_counts(round_of):
    cluster = cluster_of(n1={"net": "x"}, n2={"disk": "ssd", "net": "x"})
    cluster.pod("p", "n1", spec={**required(FAST), "nodeSelector": {"disk": "ssd"}})

    assert (await run(round_of, cluster))[0] == ["p"]


@pytest.mark.parametrize(
    ("weights", "goes"),
    [({"ssd": 10}, True), ({"fast": 10}, False), ({"ssd": 10, "fast": 10}, False),
     ({"ssd": 11, "fast": 10}, True), ({"ssd": 9, "fast": 10}, False)],
)  # fmt: skip
async def test_a_pod_leaves_for_a_node_that_it_prefers(round_of, weights, goes):
    cluster = cluster_of(n1={"net": "x"}, n2={"disk": "ssd"})
    cluster.pod("p", "n1", spec=preferred(**weights))

    assert bool((await run(round_of, cluster, PREFERRED))[0]) is goes


async def test_preferences_count_only_when_asked_for(round_of):
    cluster = cluster_of(n1={}, n2={"disk": "ssd"})
    cluster.pod("p", "n1", spec=preferred(ssd=10))

    assert (await run(round_of, cluster, REQUIRED))[0] == []
    assert (await run(round_of, cluster, REQUIRED, PREFERRED))[0] == ["p"]


async def test_a_preferred_node_must_fit(round_of):
    """In Kubernetes another node that fits is enough: the pod comes back and is evicted again."""
    cluster = cluster_of(n1={}, n2={"disk": "ssd"}, n3={})
    cluster.pod("p", "n1", cpu=3, spec=preferred(ssd=10))
    cluster.pod("q", "n2", cpu=2)
    gone, found = await run(round_of, cluster, PREFERRED)

    assert gone == []
    assert found["p"] == (
        Action.STAY,
        "its preferred node affinity gives its node 0 and others up to 10, "
        "but none of 1 nodes fits: 1 too little room",
    )


async def test_only_ready_nodes_of_the_cycle_are_looked_at(round_of):
    cluster = cluster_of(n1={}, n2={})
    cluster.node("n3", labels={"disk": "ssd"}, ready=False)
    cluster.pod("p", "n1", spec=required(SSD))

    assert (await run(round_of, cluster))[0] == []


async def test_other_namespaces_stay(round_of):
    cluster = cluster_of(n1={}, n2={"disk": "ssd"})
    cluster.pod("p", "n1", spec=required(SSD), namespace="shop")

    assert (await run(round_of, cluster, args={"namespaces": {"exclude": ["shop"]}}))[0] == []


@pytest.mark.parametrize("args", [{}, {"nodeAffinityType": ["sometimes"]}])
def test_bad_arguments(args):
    with pytest.raises(KoordError):
        PluginHarness(RemovePodsViolatingNodeAffinity, cluster_of(n1={}), args=args)
