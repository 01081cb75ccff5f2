"""The simulated cluster: load moves, and neither comes nor goes, whatever is evicted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from koord.cluster import kinds
from koord.cluster.facts import ClusterPod
from koord.controlplane.testing import make_node, make_pod, make_report, make_workload
from koord_descheduler.backtest.player import REPLACED_WITHIN, SimulatedCluster
from koord_descheduler.backtest.records import Change, Eviction, Tick

NODES = ("n1", "n2", "n3")
WEB = make_workload("ReplicaSet", "web")
CORES = 0.5  # of each pod


def a_pod(name: str, node: str) -> ClusterPod:
    return make_pod(name, node=node, owner=WEB, cpu="100m", created=100.0)


class Recording:
    """A record that a test makes up: pods of web on three nodes."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pods: dict[str, ClusterPod] = {}
        self.changes = [Change(kinds.NODE, one, make_node(one)) for one in NODES]
        self.changes.append(Change(kinds.REPLICA_SET, WEB.key, WEB))

    def put(self, pod: ClusterPod) -> None:
        self.pods[pod.key] = pod
        self.changes.append(Change(kinds.POD, pod.key, pod))

    def remove(self, key: str) -> None:
        del self.pods[key]
        self.changes.append(Change(kinds.POD, key, None))

    def tick(self, *, reports: bool = True) -> Tick:
        """What has changed, and a report of each node, ten seconds later."""
        self.now += 10.0
        tick = Tick(self.now, self.changes)
        self.changes = []
        for node in NODES if reports else ():
            mine = [pod.key for pod in self.pods.values() if pod.node == node]
            uses = {key: {"cpu": CORES, "memory": 1000} for key in mine}
            total = {"cpu": 1 + CORES * len(mine), "memory": 1000 * len(mine)}
            tick.reports.append(make_report(node, at=self.now, usage=total, pods=uses))
        return tick


def cores(simulated: SimulatedCluster) -> dict[str, float]:
    """What the reports say, without the core of the system."""
    reports = simulated.state.reports.values()
    return {one.node: one.usage.cores - 1 for one in reports if one.usage is not None}


def here(simulated: SimulatedCluster) -> dict[str, str]:
    """Pods and where they are."""
    keys = list(simulated.state.keys(kinds.POD))
    found = [pod for key in keys if (pod := simulated.state.pod(key)) is not None]
    return {pod.name: pod.node for pod in found}


def eviction(pod: ClusterPod, at: float) -> dict[str, Eviction]:
    return {pod.uid: Eviction(at=at, pod=pod.key, uid=pod.uid, node=pod.node)}


def test_a_pod_goes_to_the_node_with_the_lowest_load() -> None:
    """With its usage, in percentiles too; there it is a new pod of the same name."""
    record, simulated = Recording(), SimulatedCluster({}, 60.0)
    for name, node in (("a", "n1"), ("b", "n1"), ("c", "n2")):
        record.put(a_pod(name, node))
    simulated.take(record.tick())

    assert simulated.evict("default/a", record.now) == "n3"
    simulated.take(record.tick())

    assert here(simulated) == {"a": "n3", "b": "n1", "c": "n2"}
    assert cores(simulated) == {"n1": 0.5, "n2": 0.5, "n3": 0.5}
    report = simulated.state.reports["n3"]
    assert report.aggregated[0].p95 == report.usage
    assert [one.name for one in report.pods] == ["a"]
    moved = simulated.state.pod("default/a")
    assert moved is not None
    assert moved.uid != "uid-default-a"
    assert moved.created == pytest.approx(record.now - 10.0)


def test_an_eviction_of_the_record_is_followed_or_not() -> None:
    """Followed: the pod leaves with the record's. Not: it stays, with its replacement's usage."""
    record = Recording()
    pod = a_pod("a", "n1")
    for followed in (True, False):
        record = Recording()
        simulated = SimulatedCluster(eviction(pod, 1015.0), 60.0)
        record.put(pod)
        simulated.take(record.tick())
        if followed:
            assert simulated.evict(pod.key, record.now) == ""
        record.remove(pod.key)
        simulated.take(record.tick())
        record.put(a_pod("a-new", "n2"))
        simulated.take(record.tick())

        if followed:
            assert here(simulated) == {"a-new": "n2"}
            assert cores(simulated) == {"n1": 0.0, "n2": 0.5, "n3": 0.0}
        else:
            assert here(simulated) == {"a": "n1"}
            assert cores(simulated) == {"n1": 0.5, "n2": 0.0, "n3": 0.0}
            record.remove("default/a-new")
            simulated.take(record.tick())
            assert here(simulated) == {}


def test_a_pod_that_stays_without_replacement_goes_after_a_while() -> None:
    """Its workload has shrunk."""
    pod = a_pod("a", "n1")
    record, simulated = Recording(), SimulatedCluster(eviction(pod, 1015.0), 60.0)
    record.put(pod)
    simulated.take(record.tick())
    record.remove(pod.key)
    simulated.take(record.tick())
    assert here(simulated) == {"a": "n1"}
    record.now += REPLACED_WITHIN
    simulated.take(record.tick())
    simulated.take(record.tick())

    assert here(simulated) == {}
    assert sum(cores(simulated).values()) == 0.0


def test_a_stateful_pod_comes_back_under_its_name() -> None:
    """The one in the record is another one: here it stays the same."""
    pod = a_pod("a", "n1")
    again = make_pod("a", node="n2", owner=WEB, cpu="100m", created=2000.0)
    again = replace(again, uid="another")
    record, simulated = Recording(), SimulatedCluster(eviction(pod, 1015.0), 60.0)
    record.put(pod)
    simulated.take(record.tick())
    record.put(again)
    simulated.take(record.tick())

    assert here(simulated) == {"a": "n1"}
    assert cores(simulated) == {"n1": 0.5, "n2": 0.0, "n3": 0.0}


def test_what_fits_nowhere_waits_for_room() -> None:
    """Meanwhile its load is nowhere."""
    record, simulated = Recording(), SimulatedCluster({}, 60.0)
    record.put(a_pod("a", "n1"))
    for name in NODES:
        record.changes.append(Change(kinds.NODE, name, make_node(name, unschedulable=True)))
    simulated.take(record.tick())
    assert simulated.evict("default/a", record.now) == ""
    simulated.take(record.tick())
    assert simulated.unplaced() == ["default/a"]
    assert sum(cores(simulated).values()) == 0.0
    record.changes.append(Change(kinds.NODE, "n3", make_node("n3")))
    simulated.take(record.tick())
    simulated.take(record.tick())

    assert simulated.unplaced() == []
    assert sum(cores(simulated).values()) == 0.5


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["evict", "recorded", "ends", "new", "rollout", "report"]),
        st.integers(0, 5),
        st.sampled_from(NODES),
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(_STEPS, st.booleans())
def test_load_neither_comes_nor_goes(steps: list[tuple[str, int, str]], graceful: bool) -> None:
    """Evictions here and in the record, rollouts and new pods in any order: as many pods as there.

    But for those that the record has evicted and not replaced yet, which stay here meanwhile.
    """
    planned: dict[str, Eviction] = {}
    record, simulated = Recording(), SimulatedCluster(planned, 0.0)
    ending: list[str] = []
    for number in range(3):
        record.put(a_pod(f"p{number}", NODES[number]))
    simulated.take(record.tick())
    replaced = 0
    for number, (step, which, node) in enumerate(steps):
        known = [key for key in record.pods if key not in ending]
        chosen = known[which % len(known)] if known else ""
        if step == "evict":
            mine = sorted(simulated.state.keys(kinds.POD))
            if mine:
                simulated.evict(mine[which % len(mine)], record.now)
        elif step == "recorded" and chosen:
            pod = record.pods[chosen]
            planned.update(eviction(pod, record.now))
            if graceful:
                record.put(replace(pod, deleting=True))
                ending.append(chosen)
            else:
                record.remove(chosen)
            simulated.take(record.tick(reports=False))
            replaced += 1
            record.put(a_pod(f"r{replaced}", node))
        elif step == "ends" and ending:
            record.remove(ending.pop())
        elif step == "new":
            record.put(a_pod(f"new{number}", node))
        elif step == "rollout" and chosen:
            record.remove(chosen)
        simulated.take(record.tick())
    while ending:
        record.remove(ending.pop())
    simulated.take(record.tick())
    simulated.take(record.tick())

    assert len(here(simulated)) + len(simulated.unplaced()) == len(record.pods)
    there = CORES * (len(record.pods) - len(simulated.unplaced()))
    assert sum(cores(simulated).values()) == pytest.approx(there)
