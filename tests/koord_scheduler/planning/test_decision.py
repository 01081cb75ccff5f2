"""Where a pod would go, why, and what would help."""

from typing import Any

import pytest

from koord.cluster.facts import ClusterPod
from koord.component.terminal import plain
from koord.controlplane.testing import make_pod
from koord_scheduler.framework.interfaces import ScorePlugin
from koord_scheduler.framework.status import CycleState
from koord_scheduler.framework.types import NodeInfo
from koord_scheduler.planning.report import Json, decision_report
from koord_scheduler.planning.simulation import UnknownScheduler
from koord_scheduler.planning.views import placement_view
from tests.support.scheduler.framework import FreeCpu
from tests.support.scheduler.planning import EvenOnly, planned, small_cluster


def pending(name: str = "web", cpu: Any = 1) -> ClusterPod:
    spec = {"schedulerName": "koord-scheduler"}
    return make_pod(name, cpu=cpu, phase="Pending", spec=spec)


async def report_of(pod: ClusterPod, cpus: dict[str, Any], **points: Any) -> Json:
    cluster = small_cluster(**cpus)
    profiles, services = await planned(cluster, **points)
    decider, view = profiles.of(pod).decider, services.cluster.view()
    decision = decider.decide(pod, view)
    return decision_report(decision, decider.blockers(decision))


async def test_the_best_node_and_the_score_of_each() -> None:
    report = await report_of(pending(), {"small": 2, "large": 8, "tiny": "500m"})
    assert report["node"] == "large"
    assert report["feasible"] == 2
    assert report["scores"] == [
        {"node": "large", "total": 100, "plugins": {"FreeCpu": 100}},
        {"node": "small", "total": 100, "plugins": {"FreeCpu": 100}},
    ]
    assert report["equallyGood"] == 1
    assert report["excluded"] == [
        {"node": "tiny", "plugin": "FreeCpu", "reason": "Insufficient cpu"}
    ]


async def test_the_only_feasible_node_has_no_scores() -> None:
    report = await report_of(pending(cpu=4), {"small": 2, "large": 8})
    assert (report["node"], report["scores"]) == (
        "large",
        [{"node": "large", "total": None, "plugins": {}}],
    )


async def test_a_pod_that_stays_pending_has_the_cause_first_and_what_would_help() -> None:
    cluster = small_cluster(n0=1, n1=9, n2=3, n3=1)
    filters = {"FreeCpu": FreeCpu(), "EvenOnly": EvenOnly()}
    profiles, services = await planned(cluster, filter=filters)
    pod, view = pending(cpu=4), services.cluster.view()
    decider = profiles.of(pod).decider
    decision = decider.decide(pod, view)
    report = decision_report(decision, decider.blockers(decision))
    assert report["node"] is None
    assert report["message"] == ("0/4 nodes are available: 1 node(s) were odd, 3 Insufficient cpu.")
    assert report["blockers"] == [
        {"plugin": "FreeCpu", "nodes": 3, "alone": 2, "reasons": {"Insufficient cpu": 3}},
        {"plugin": "EvenOnly", "nodes": 2, "alone": 1, "reasons": {"node(s) were odd": 2}},
    ]
    assert report["advice"] == [
        "2 of 4 nodes are rejected by FreeCpu alone",
        "cpu: 4 is requested, the most that such a node has free is 3 on n2",
        "1 of 4 nodes are rejected by EvenOnly alone",
    ]
    assert plain(placement_view(report, most=10)) == (
        "default/web stays pending: 0 of 4 nodes are feasible\n"
        "0/4 nodes are available: 1 node(s) were odd, 3 Insufficient cpu.\n"
        "\n"
        "REJECTED BY  NODES  ALONE  WHY\n"
        "FreeCpu          3      2  3 Insufficient cpu\n"
        "EvenOnly         2      1  2 node(s) were odd\n"
        "\n"
        "what would help\n"
        "- 2 of 4 nodes are rejected by FreeCpu alone\n"
        "- cpu: 4 is requested, the most that such a node has free is 3 on n2\n"
        "- 1 of 4 nodes are rejected by EvenOnly alone\n"
        "\n"
        "EXCLUDED  BY        WHY\n"
        "n0        FreeCpu   Insufficient cpu\n"
        "n1        EvenOnly  node(s) were odd\n"
        "n2        FreeCpu   Insufficient cpu\n"
        "n3        FreeCpu   Insufficient cpu\n"
    )


async def test_where_no_plugin_is_alone_the_fewest_together_are_named() -> None:
    cluster = small_cluster(n1=1, n3=3)
    filters = {"FreeCpu": FreeCpu(), "EvenOnly": EvenOnly()}
    profiles, services = await planned(cluster, filter=filters)
    pod = pending(cpu=4)
    decider = profiles.of(pod).decider
    found = decider.blockers(decider.decide(pod, services.cluster.view()))
    assert found.advice == (
        "2 of 2 nodes are rejected by FreeCpu and EvenOnly together",
        "cpu: 4 is requested, the most that such a node has free is 3 on n3",
    )


class Breaks(ScorePlugin):
    def score(self, state: CycleState, pod: ClusterPod, node: NodeInfo) -> int:
        raise ValueError("no idea")


async def test_a_plugin_that_fails_is_named() -> None:
    report = await report_of(pending(), {"a": 4, "b": 4}, score={"Breaks": Breaks()})
    assert (report["node"], report["status"]) == (None, "Error")
    assert report["message"] == "running Score plugin \"Breaks\": ValueError('no idea')"


async def test_of_many_nodes_so_many_are_shown() -> None:
    report = await report_of(pending(), {f"n{at}": 4 for at in range(30)})
    lines = plain(placement_view(report, most=3)).splitlines()
    assert lines[0].startswith("default/web would go to n0, or to one of 29 others")
    assert lines[-1] == "and 27 more feasible nodes"


async def test_a_scheduler_without_a_profile_is_named() -> None:
    profiles, _ = await planned(small_cluster(a=4))
    with pytest.raises(UnknownScheduler, match=r"wanted .*\(koord-scheduler\), found \"other\""):
        profiles.of(make_pod("web", spec={"schedulerName": "other"}))
