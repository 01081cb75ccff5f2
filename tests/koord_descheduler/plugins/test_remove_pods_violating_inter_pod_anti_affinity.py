"""RemovePodsViolatingInterPodAntiAffinity. Source: the Kubernetes descheduler's guide."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util.errors import KoordError
from koord_descheduler.plugin import Action
from koord_descheduler.plugin.testing import FakeCluster, PluginHarness
from koord_descheduler_plugins.remove_pods_violating_inter_pod_anti_affinity import (
    Exclusions,
    RemovePodsViolatingInterPodAntiAffinity,
)

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def excludes(app: str, key: str = HOST, **more: Any) -> dict[str, Any]:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}, **more}
    return {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}


@pytest.fixture
def cluster() -> FakeCluster:
    """Nodes a and b in one zone, c in another, d in none."""
    cluster = FakeCluster()
    for name, zone in (("a", "z1"), ("b", "z1"), ("c", "z2")):
        cluster.node(name, labels={ZONE: zone})
    cluster.node("d")
    return cluster


def put(cluster: FakeCluster, name: str, node: str, app: str = "", **facts: Any) -> None:
    cluster.pod(name, node, labels={"app": app or name}, **facts)


async def run(round_of, cluster, args=None, **more):
    return await round_of(RemovePodsViolatingInterPodAntiAffinity, cluster, args, **more)


async def test_a_pod_leaves_what_it_excludes(round_of, cluster):
    put(cluster, "web", "a", spec=excludes("db"))
    put(cluster, "db", "a")
    gone, found = await run(round_of, cluster)

    assert gone == ["web"]
    assert found["web"] == (Action.EVICT, f"its anti-affinity excludes another pod in its {HOST}")


@pytest.mark.parametrize(
    ("other", "key", "goes"),
    [("a", HOST, True), ("b", HOST, False), ("b", ZONE, True), ("c", ZONE, False),
     ("d", ZONE, False)],
)  # fmt: skip
async def test_in_the_same_domain(round_of, cluster, other, key, goes):
    put(cluster, "web", "a", spec=excludes("db", key))
    put(cluster, "db", other)

    assert (await run(round_of, cluster))[0] == (["web"] if goes else [])


async def test_a_node_without_the_label_is_in_no_domain(round_of, cluster):
    put(cluster, "web", "d", spec=excludes("db", ZONE))
    put(cluster, "db", "d")

    assert (await run(round_of, cluster))[0] == []


async def test_of_pods_that_exclude_each_other_one_stays(round_of, cluster):
    """The most important one; the others leave, beginning with the least important."""
    for name, priority in (("first", 10), ("second", 5), ("third", 1)):
        put(cluster, name, "a", "web", priority=priority, spec=excludes("web"))

    assert (await run(round_of, cluster))[0] == ["third", "second"]


async def test_when_one_cannot_leave_the_other_does(round_of, cluster):
    for name, priority in (("first", 10), ("second", 5)):
        put(cluster, name, "a", "web", priority=priority, spec=excludes("web"))
    gone, found = await run(round_of, cluster, protected=["default/second"])

    assert gone == ["first"]
    assert found["second"][0] is Action.REFUSED


@pytest.mark.parametrize(
    ("facts", "goes"),
    [({"namespace": "shop"}, False), ({"phase": "Succeeded"}, False), ({}, True)],
)
async def test_other_pods_that_do_not_count(round_of, cluster, facts, goes):
    put(cluster, "web", "a", spec=excludes("db"))
    put(cluster, "db", "a", **facts)

    assert bool((await run(round_of, cluster))[0]) is goes


async def test_a_pod_that_leaves_already_excludes_none(round_of, cluster):
    put(cluster, "web", "a", spec=excludes("db"))
    meta = {"name": "db", "namespace": "default", "uid": "u", "labels": {"app": "db"},
            "deletionTimestamp": "2026-07-24T06:52:45Z"}  # fmt: skip
    cluster.apply({"kind": "Pod", "metadata": meta, "spec": {"nodeName": "a"}})

    assert (await run(round_of, cluster))[0] == []


async def test_namespaces_of_a_term(round_of, cluster):
    put(cluster, "web", "a", spec=excludes("db", namespaces=["shop"]))
    put(cluster, "db", "a", namespace="shop")

    assert (await run(round_of, cluster))[0] == ["web"]


async def test_only_chosen_pods_leave_but_all_count(round_of, cluster):
    """In Kubernetes pods that are not chosen are not seen at all."""
    put(cluster, "web", "a", spec=excludes("db"))
    put(cluster, "db", "a")
    choose = {"labelSelector": {"matchLabels": {"app": "web"}}}
    others = {"labelSelector": {"matchLabels": {"app": "db"}}}

    assert (await run(round_of, cluster, others))[0] == []
    assert (await run(round_of, cluster, choose))[0] == ["web"]


APPS = st.sampled_from(["a", "b"])
PODS = st.lists(
    st.tuples(APPS, st.sampled_from(["n1", "n2", "n3"]), st.sampled_from(["", "a", "b"]),
              st.sampled_from([HOST, ZONE])),
    max_size=8,
)  # fmt: skip


@given(PODS)
def test_after_the_evictions_no_anti_affinity_is_violated(pods):
    """And no pod leaves without need: where nothing is violated none does."""
    cluster = FakeCluster()
    for name, zone in (("n1", "z1"), ("n2", "z1"), ("n3", "z2")):
        cluster.node(name, labels={ZONE: zone})
    for number, (app, node, other, key) in enumerate(pods):
        spec = excludes(other, key) if other else {}
        put(cluster, f"p{number}", node, app, spec=spec)
    view = cluster.state.view()
    zones = {"n1": "z1", "n2": "z1", "n3": "z2"}

    def violated(left: list[int]) -> set[int]:
        found = set()
        for one in left:
            _, node, other, key = pods[one]
            for near in left:
                app, where, _, _ = pods[near]
                same = node == where if key == HOST else zones[node] == zones[where]
                if one != near and app == other and same:
                    found.add(one)
        return found

    every = list(range(len(pods)))
    exclusions = Exclusions(view, [view.traits.rows[name] for name in zones])
    assert {pod.name for pod in exclusions.pods} == {f"p{number}" for number in violated(every)}
    left = list(every)
    for pod in exclusions.pods:
        number = int(pod.name[1:])
        assert bool(exclusions.violated(pod)) == (number in violated(left))
        if exclusions.violated(pod):
            left.remove(number)
            exclusions.leaves(pod)
    assert violated(left) == set()


def test_bad_arguments(cluster):
    both = {"namespaces": {"include": ["a"], "exclude": ["b"]}}
    with pytest.raises(KoordError):
        PluginHarness(RemovePodsViolatingInterPodAntiAffinity, cluster, args=both)
