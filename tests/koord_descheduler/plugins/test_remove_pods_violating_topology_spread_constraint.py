"""RemovePodsViolatingTopologySpreadConstraint. Source: the Kubernetes descheduler's guide."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.util.errors import KoordError
from koord_descheduler.plugin import Action
from koord_descheduler.plugin.testing import FakeCluster, PluginHarness, make_pod
from koord_descheduler_plugins.remove_pods_violating_topology_spread_constraint import (
    RemovePodsViolatingTopologySpreadConstraint,
    even_out,
)

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
WEB = {"app": "web"}


def constraint(**change: Any) -> dict[str, Any]:
    return {
        "topologyKey": ZONE,
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": WEB},
        **change,
    }


def spread(**change: Any) -> dict[str, Any]:
    return {"topologySpreadConstraints": [constraint(**change)]}


def zones(*counts: int, spec: dict[str, Any] | None = None, **facts: Any) -> FakeCluster:
    """A node n0, n1 ... in each zone z0, z1 ..., with so many pods that spread over zones."""
    cluster = FakeCluster()
    for number, count in enumerate(counts):
        cluster.node(f"n{number}", labels={ZONE: f"z{number}"})
        for each in range(count):
            found = {"labels": WEB, "spec": spec or spread(), **facts}
            cluster.pod(f"p{number}-{each}", f"n{number}", **found)
    return cluster


async def run(round_of, cluster, args=None, **more):
    return await round_of(RemovePodsViolatingTopologySpreadConstraint, cluster, args, **more)


async def evicted(round_of, cluster, args=None, **more) -> int:
    return len((await run(round_of, cluster, args, **more))[0])


@pytest.mark.parametrize(
    ("counts", "skew", "wanted"),
    [
        ((2, 1), 1, 0),
        ((3, 1), 1, 1),
        ((4, 0), 1, 2),
        ((2, 3, 5, 5, 7, 8), 1, 5),
        ((0, 100), 1, 50),
        ((5, 1), 2, 1),
        ((3, 1, 3, 1), 1, 2),
        ((8, 7, 0), 1, 5),
    ],
)
async def test_the_fewest_pods_leave(round_of, counts, skew, wanted):
    cluster = zones(*counts, spec=spread(maxSkew=skew))
    for number in range(len(counts)):
        cluster.node(f"n{number}", labels={ZONE: f"z{number}"}, pods=500)

    assert await evicted(round_of, cluster) == wanted


async def test_the_reason_names_the_domains(round_of):
    _, found = await run(round_of, zones(3, 1))

    assert found == {
        "p0-0": (
            Action.EVICT,
            f"its {ZONE} z0 has 3 pods of its topology spread, another has 1; maxSkew is 1",
        )
    }


@pytest.mark.parametrize(
    ("kinds", "wanted"),
    [(None, 0), (["DoNotSchedule"], 0), (["ScheduleAnyway"], 1),
     (["DoNotSchedule", "ScheduleAnyway"], 1)],
)  # fmt: skip
async def test_soft_constraints_only_when_asked_for(round_of, kinds, wanted):
    cluster = zones(3, 1, spec=spread(whenUnsatisfiable="ScheduleAnyway"))

    assert await evicted(round_of, cluster, kinds and {"constraints": kinds}) == wanted


@pytest.mark.parametrize(
    "facts",
    [
        {"labels": {"app": "db"}},
        {"spec": spread(labelSelector=None)},
        {"phase": "Succeeded"},
    ],
)
async def test_pods_that_do_not_count(round_of, facts):
    cluster = zones(3, 1, **facts)

    assert await evicted(round_of, cluster) == 0


async def test_pods_without_the_constraint_count_and_leave(round_of):
    """What its selector means counts, as for the scheduler."""
    cluster = zones(2, 1, priority=10)
    cluster.pod("plain", "n0", labels=WEB, priority=1)

    assert (await run(round_of, cluster))[0] == ["plain"]


async def test_other_namespaces_are_counted_apart(round_of):
    cluster = zones(2, 1)
    cluster.pod("other", "n0", labels=WEB, namespace="shop")

    assert await evicted(round_of, cluster) == 0


async def test_match_label_keys(round_of):
    """Each revision is spread by itself."""
    cluster = zones(0, 0)
    spec = spread(matchLabelKeys=["rev"])
    for name, node, rev in (("a", "n0", "1"), ("b", "n0", "1"), ("c", "n0", "2"), ("d", "n1", "2")):
        cluster.pod(name, node, labels={**WEB, "rev": rev}, spec=spec)

    assert (await run(round_of, cluster))[0] == ["a"]


async def test_nodes_that_the_affinity_forbids_are_no_domain(round_of):
    cluster = zones(0, 0, 0)
    cluster.node("n0", labels={ZONE: "z0", "disk": "ssd"})
    cluster.node("n1", labels={ZONE: "z1", "disk": "ssd"})
    spec = {**spread(), "nodeSelector": {"disk": "ssd"}}
    for name, node in (("a", "n0"), ("b", "n0"), ("c", "n1")):
        cluster.pod(name, node, labels=WEB, spec=spec)
    assert await evicted(round_of, cluster) == 0

    ignored = {**spread(nodeAffinityPolicy="Ignore"), "nodeSelector": {"disk": "ssd"}}
    for name, node in (("a", "n0"), ("b", "n0"), ("c", "n1")):
        cluster.pod(name, node, labels=WEB, spec=ignored)
    _, found = await run(round_of, cluster)
    assert {action for action, _ in found.values()} == {Action.STAY}


async def test_node_fit(round_of):
    """No pod leaves for a domain that has no room; asked not to look, one does."""
    cluster = zones(3, 1)
    cluster.node("n1", labels={ZONE: "z1"}, pods=1)
    gone, found = await run(round_of, cluster)

    assert gone == []
    assert found["p0-0"][0] is Action.STAY
    assert found["p0-0"][1].endswith("but it fits no node of a domain that has fewer")
    assert await evicted(round_of, cluster, {"topologyBalanceNodeFit": False}) == 1


@pytest.mark.parametrize(("kind", "wanted"), [("ScheduleAnyway", 1), ("DoNotSchedule", 0)])
async def test_when_the_emptiest_domain_has_no_room_the_next_one_may(round_of, kind, wanted):
    """Unless the scheduler would refuse it there, as the emptiest domain counts for it."""
    cluster = zones(4, 1, 0, spec=spread(whenUnsatisfiable=kind))
    cluster.node("n2", labels={ZONE: "z2"}, unschedulable=True)

    assert await evicted(round_of, cluster, {"constraints": [kind]}) == wanted


async def test_protected_pods_stay_and_others_leave_for_them(round_of):
    cluster = zones(3, 1)

    assert (await run(round_of, cluster, protected=["default/p0-0"]))[0] == ["p0-1"]


async def test_pods_bound_to_nodes_and_important_ones_leave_last(round_of):
    cluster = zones(0, 0)
    for name, priority, bound in (("a", 5, False), ("b", 1, False), ("c", None, True)):
        spec = {**spread(nodeAffinityPolicy="Ignore")}
        spec |= {"nodeSelector": {"kubernetes.io/os": "linux"}} if bound else {}
        cluster.pod(name, "n0", labels=WEB, priority=priority, spec=spec)
    for number in range(2):
        labels = {ZONE: f"z{number}", "kubernetes.io/os": "linux"}
        cluster.node(f"n{number}", labels=labels)

    assert (await run(round_of, cluster))[0] == ["b"]


async def test_chosen_namespaces_and_labels(round_of):
    for args in (
        {"namespaces": {"exclude": ["default"]}},
        {"labelSelector": {"matchLabels": {"app": "db"}}},
    ):
        assert await evicted(round_of, zones(3, 1), args) == 0


async def test_two_constraints_see_the_moves_of_each_other(round_of):
    """Zones 4 to 0 on one host: two pods leave for the zones, which is enough for the hosts."""
    both = [constraint(), constraint(topologyKey=HOST, maxSkew=2)]
    cluster = zones(4, 0, spec={"topologySpreadConstraints": both})

    assert await evicted(round_of, cluster) == 2


async def test_an_empty_cluster(round_of):
    assert await evicted(round_of, zones(0, 0)) == 0


COUNTS = st.lists(st.integers(0, 9), min_size=1, max_size=6)


def fewest(counts: list[int], skew: int) -> int:
    """The fewest moves after which no two differ by more: over all ranges that they could be in."""
    best = sum(counts)
    for low in range(max(counts) + 1):
        high = low + skew
        if low * len(counts) <= sum(counts) <= high * len(counts):
            over = sum(max(one - high, 0) for one in counts)
            under = sum(max(low - one, 0) for one in counts)
            best = min(best, max(over, under))
    return best


@given(COUNTS, st.integers(1, 4))
def test_afterwards_the_skew_is_within_bounds_by_the_fewest_moves(counts, skew):
    """Where any pod fits anywhere."""
    pods = {
        domain: [make_pod(f"p{domain}-{each}") for each in range(count)]
        for domain, count in enumerate(counts)
    }
    after = dict(enumerate(counts))
    steps = list(even_out(after, pods, skew, lambda pod, domains: domains[0]))

    assert max(after.values()) - min(after.values()) <= skew
    assert len(steps) == fewest(counts, skew)
    assert sum(after.values()) == sum(counts)


@given(COUNTS, st.integers(1, 4), st.data())
def test_with_pods_that_fit_not_everywhere_nothing_gets_worse(counts, skew, data):
    """And it ends, with each pod tried once at most."""
    pods = {
        domain: [make_pod(f"p{domain}-{each}") for each in range(count)]
        for domain, count in enumerate(counts)
    }
    after = dict(enumerate(counts))

    def place(pod: object, domains: list[int]) -> int | None:
        return data.draw(st.sampled_from([None, *domains]))

    tried = [pod.name for pod, _, _ in even_out(after, pods, skew, place)]

    assert len(tried) == len(set(tried))
    assert max(after.values()) <= max(counts)
    assert min(after.values()) >= min(counts)


@pytest.mark.parametrize(
    "args",
    [
        {"constraints": ["Sometimes"]},
        {"namespaces": {"include": ["a"], "exclude": ["b"]}},
        {"topologyBalanceNodeFit": "yes"},
    ],
)
def test_bad_arguments(args):
    with pytest.raises(KoordError):
        PluginHarness(RemovePodsViolatingTopologySpreadConstraint, zones(1), args=args)
