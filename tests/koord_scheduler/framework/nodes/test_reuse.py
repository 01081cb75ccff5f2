"""Whole cycles of all shipped plugins: what equal pods reuse is what would be computed anew."""

import json
from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.cluster.facts import ClusterPod
from koord.cluster.view import View
from koord.controlplane.testing import FakeCluster
from koord_scheduler.framework.calls import ExtensionPointError
from koord_scheduler.framework.interfaces import (
    FilterPlugin,
    PreFilterPlugin,
    PreScorePlugin,
    ScorePlugin,
)
from koord_scheduler.framework.nodes.filtering import NodeScoring
from koord_scheduler.framework.nodes.search import NodeSearch, SearchResult
from koord_scheduler.framework.status import Code, CycleState, PreFilterResult, Status
from koord_scheduler.framework.types import NodeInfo
from koord_scheduler.plugin.testing import ProfileHarness, fake_cluster
from tests.support.clusters import claim, near, node, pod, term, volume
from tests.support.scheduler.framework import Kit, make_pod, numbered_view

Json = dict[str, Any]

NODES, ZONE, HOST = 8, "topology.kubernetes.io/zone", "kubernetes.io/hostname"
MORE = ["LoadAwareScheduling", "NodeResourcesFitPlus", "ScarceResourceAvoidance", "SchedulingHint"]
CONFIG: Json = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "profiles": [{"plugins": {"multiPoint": {"enabled": [{"name": name} for name in MORE]}}}],
}


def spread(when: str) -> Json:
    return {
        "topologyKey": ZONE,
        "maxSkew": 1,
        "whenUnsatisfiable": when,
        "labelSelector": {"matchLabels": {"app": "web"}},
    }


def preferred(kind: str, weight: int, wanted: Json) -> Json:
    one = {"weight": weight, "podAffinityTerm": wanted}
    return {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [one]}}


def claimed(name: str) -> Json:
    return {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]}


WEB = {"app": "web"}
KINDS: dict[str, Json] = {
    "plain": {},
    "nothing": {"requests": {}},
    "other": {"labels": {"app": "db"}},
    "port": {"ports": [{"containerPort": 80, "hostPort": 80}]},
    "zone": {"nodeSelector": {ZONE: "z1"}},
    "tolerant": {"tolerations": [{"operator": "Exists"}]},
    "spread": {"topologySpreadConstraints": [spread("DoNotSchedule")]},
    "soft": {"topologySpreadConstraints": [spread("ScheduleAnyway")]},
    "near": {"affinity": near("podAffinity", term(ZONE, WEB))},
    "apart": {"affinity": near("podAntiAffinity", term(HOST, WEB))},
    "likes": {"affinity": preferred("podAffinity", 7, term(ZONE, WEB))},
    "dislikes": {"affinity": preferred("podAntiAffinity", 9, term(ZONE, WEB))},
    "picky": {"affinity": near("podAntiAffinity", term(HOST, WEB, namespaceSelector={}))},
    "claim": claimed("data"),
    "daemon": {"ownerReferences": [{"kind": "DaemonSet", "name": "d", "uid": "u"}]},
}


def of_kind(kind: str, name: str, on: str = "", **more: Any) -> Json:
    facts: Json = {"labels": WEB, "requests": {"cpu": "1", "memory": "1Gi"}, **KINDS[kind]}
    owners = facts.pop("ownerReferences", [])
    made = pod(name, on, **facts, **more)
    made["metadata"]["ownerReferences"] = owners
    return made


def change(cluster: FakeCluster, what: str, at: int, kind: str, serial: int) -> None:
    """Change the cluster in one way."""
    name = f"n{at}"
    zone = {ZONE: f"z{at % 3}"}
    if what == "pod":
        put(cluster, "pod", of_kind(kind, f"p{serial}", name))
    elif what == "elsewhere":
        put(cluster, "pod", of_kind(kind, f"p{serial}", name, namespace="team"))
    elif what == "gone":
        for each in cluster.state.pods_of_node(name)[:1]:
            cluster.delete("pod", each.key)
    elif what == "node":
        put(cluster, "node", node(name, zone, {"cpu": str(serial % 4), "pods": "9"}))
    elif what == "moved":
        put(cluster, "node", node(name, {ZONE: f"z{serial % 3}"}))
    elif what == "taint":
        effect = ("NoSchedule", "PreferNoSchedule")[serial % 2]
        put(cluster, "node", node(name, zone, taints=[{"key": "a", "effect": effect}]))
    elif what == "closed":
        put(cluster, "node", node(name, zone, unschedulable=True))
    elif what == "fewer":
        cluster.delete("node", name)
    elif what == "claim":
        put(cluster, "persistentvolumeclaim", claim("data", "v1" if serial % 2 else ""))
    elif what == "volume":
        put(cluster, "persistentvolume", volume("v1"))
    elif what == "namespace":
        put(cluster, "namespace", {"metadata": {"name": "team", "labels": {"a": str(serial)}}})
    elif what == "report":
        if cluster.state.view().row(name) is not None:
            cluster.report(name, usage={"cpu": serial, "memory": f"{serial}Gi"})
    else:
        cluster.clock.advance(100.0)


CHANGES = [
    "pod", "pod", "elsewhere", "gone", "node", "moved", "taint", "closed", "fewer", "claim",
    "volume", "namespace", "report", "time",
]  # fmt: skip


def put(cluster: FakeCluster, kind: str, manifest: Json) -> None:
    cluster.apply({**manifest, "kind": kind})


@settings(deadline=None, max_examples=40)
@given(
    changes=st.lists(
        st.tuples(
            st.sampled_from(CHANGES), st.integers(0, NODES - 1), st.sampled_from(sorted(KINDS))
        ),
        max_size=14,
    ),
    asked=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3, unique=True),
)
async def test_what_is_reused_is_what_would_be_computed(
    changes: list[tuple[str, int, str]], asked: list[str]
) -> None:
    """Feasible nodes, rejections, scores and message, whatever changes between two cycles.

    decide fails where a cycle in which nothing is kept differs.
    """
    cluster = fake_cluster()
    for at in range(NODES):
        put(cluster, "node", node(f"n{at}", {ZONE: f"z{at % 3}"}, {"cpu": "4", "pods": "9"}))
    async with ProfileHarness(json.dumps(CONFIG), cluster, installed=True) as harness:
        serial = 0
        for one in [*changes, ("pod", 0, "plain")]:
            for kind in asked:
                serial += 1
                put(cluster, "pod", of_kind(kind, f"w{serial}"))
                found = cluster.state.pod(f"default/w{serial}")
                assert found is not None
                harness.decide(found)
            serial += 1
            change(cluster, one[0], one[1], one[2], serial)


@pytest.mark.parametrize("kinds", [("plain", "daemon"), ("daemon", "plain")])
async def test_pods_of_a_daemon_set_share_nothing_with_others(kinds: tuple[str, str]) -> None:
    """Its pods may have the same spec and no controller, and go to hot nodes all the same."""
    cluster = fake_cluster()
    put(cluster, "node", node("hot", None, {"cpu": "4", "memory": "8Gi", "pods": "9"}))
    cluster.report("hot", usage={"cpu": 4, "memory": "8Gi"})
    feasible = {}
    async with ProfileHarness(json.dumps(CONFIG), cluster, installed=True) as harness:
        for kind in kinds:
            put(cluster, "pod", of_kind(kind, kind))
            found = cluster.state.pod(f"default/{kind}")
            assert found is not None
            feasible[kind] = harness.decide(found).feasible
    assert feasible == {"plain": (), "daemon": ("hot",)}


class Written:
    """A value in the state."""

    def __init__(self, version: int) -> None:
        self.version = version

    def clone(self) -> "Written":
        return self


class Prepares(PreFilterPlugin, FilterPlugin, PreScorePlugin, ScorePlugin):
    """Reads in Filter and Score what it prepared; counts its calls."""

    def __init__(self, key: Hashable | None = ()) -> None:
        self.key = key
        self.version = 1
        self.calls: list[str] = []
        self.answer: PreFilterResult | Status | None = None
        self.fails = False

    def pre_filter_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        if self.fails:
            raise RuntimeError("broken")
        return self.key

    def pre_score_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
        return self.key

    def pre_filter(
        self, state: CycleState, pod: ClusterPod, nodes: View
    ) -> PreFilterResult | Status | None:
        self.calls.append("PreFilter")
        state.write("Prepares/filter", Written(self.version))
        return self.answer

    def filter(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> Status | None:
        version = state.read("Prepares/filter", Written).version
        return Status.unschedulable(f"version {version}") if node.row < version else None

    def pre_score(
        self, state: CycleState, pod: ClusterPod, nodes: View, feasible: Any
    ) -> Status | None:
        self.calls.append("PreScore")
        state.write("Prepares/score", Written(self.version))
        return Status.skip() if self.version == 3 else None

    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        return state.read("Prepares/score", Written).version


class Cycles:
    """Cycles of some plugins, over the same nodes."""

    def __init__(self, **plugins: Any) -> None:
        self._plugins = plugins
        self.nodes = numbered_view(20)

    async def build(self) -> "Cycles":
        every = self._plugins
        self._profile = await Kit().profile(
            preFilter=every, filter=every, preScore=every, score=every
        )
        self._search = NodeSearch(self._profile, self._profile.services.nominator)
        self._scoring = NodeScoring(self._profile)
        return self

    def search(self, pod: ClusterPod) -> SearchResult:
        self.state = CycleState()
        self._search.cached(pod)
        return self._search.search(self.state, pod, self.nodes)

    def totals(self, pod: ClusterPod) -> list[int]:
        found = self.search(pod)
        table = self._scoring.scores(found.cycle, found.feasible, found.cached)
        return table.totals.tolist()


@pytest.mark.parametrize(("key", "calls"), [((), 1), (None, 3)])
async def test_a_key_that_stays_means_one_call_for_equal_pods(key: Any, calls: int) -> None:
    """With the values that the first call wrote; without a key each pod has its call."""
    plugin = Prepares(key)
    cycles = await Cycles(A=plugin).build()
    for name in ("a", "b", "c"):
        assert cycles.totals(make_pod(name)) == [1] * 19
    assert plugin.calls.count("PreFilter") == plugin.calls.count("PreScore") == calls


async def test_another_key_means_another_call_of_that_plugin_alone() -> None:
    """The others' answers are still good."""
    first, second = Prepares(), Prepares()
    cycles = await Cycles(A=first, B=second).build()
    cycles.totals(make_pod())
    second.key, second.version = "new", 2
    assert cycles.totals(make_pod()) == [2 + 2] * 18  # both read what B wrote last
    assert (first.calls, second.calls) == (["PreFilter", "PreScore"], second.calls)
    assert second.calls == ["PreFilter", "PreScore"] * 2
    assert cycles.totals(make_pod()) == [2 + 2] * 18
    assert len(second.calls) == 4


async def test_pods_that_differ_share_no_answer() -> None:
    """Another request is another kind."""
    plugin = Prepares()
    cycles = await Cycles(A=plugin).build()
    cycles.search(make_pod())
    cycles.search(make_pod(requests={"cpu": "1"}))
    assert plugin.calls == ["PreFilter"] * 2


async def test_skipped_and_named_nodes_are_reused_as_well() -> None:
    """Skip of PreFilter and PreScore, and the nodes that PreFilter names."""
    skips, names = Prepares(), Prepares()
    skips.answer, names.version = Status.skip(), 3
    names.answer = PreFilterResult(frozenset(("n5", "n6")))
    cycles = await Cycles(A=skips, B=names).build()
    for _ in range(2):
        found = cycles.search(make_pod())
        assert found.feasible.nonzero()[0].tolist() == [5, 6]
        assert cycles.state.skipped_filters == {"A"}
        cycles.totals(make_pod())
        assert cycles.state.skipped_scores == {"B"}
    assert skips.calls.count("PreFilter") == 1


async def test_rejections_are_reused_and_errors_are_not() -> None:
    """A pod that is rejected for good stays so while the key does; a failure may have passed."""
    plugin = Prepares()
    cycles = await Cycles(A=plugin).build()
    plugin.answer = Status.unresolvable("no")
    for _ in range(2):
        assert cycles.search(make_pod()).status.message == "no"
    assert len(plugin.calls) == 1
    plugin.key = 2
    plugin.answer = Status.failed("broken")
    assert cycles.search(make_pod()).status.code is Code.ERROR
    plugin.answer = None
    assert cycles.search(make_pod()).status.ok


async def test_a_key_that_raises_fails_the_cycle_of_that_plugin() -> None:
    """The error names it; the next cycle works."""
    good, bad = Prepares(), Prepares()
    cycles = await Cycles(A=good, B=bad).build()
    bad.fails = True
    status = cycles.search(make_pod()).status
    assert (status.code, status.plugin) == (Code.ERROR, "B")
    assert "broken" in status.message
    bad.fails = False
    assert cycles.search(make_pod()).status.ok


async def test_a_failing_score_key_ends_the_cycle() -> None:
    """As a failing PreScore does."""

    class Bad(Prepares):
        def pre_score_reuse_key(self, pod: ClusterPod, nodes: View) -> Hashable | None:
            raise SystemExit(3)

    cycles = await Cycles(A=Prepares(), B=Bad()).build()
    with pytest.raises(ExtensionPointError, match=r'"B".*sys.exit'):
        cycles.totals(make_pod())
