"""States: synced or not, snapshots, and callbacks."""

import asyncio
import dataclasses
import json

import pytest

from koord.api.kubelet import PodCpus
from koord.api.node import Node
from koord.api.nodemetric import NodeMetricSpec
from koord.api.nodeslo import NodeSLO
from koord.api.pod import Container, Pod
from koord.api.qos import KubeQoS, QoSClass
from koord.util.health import HealthStatus
from koord.util.stop import Stop
from koordlet.plugin.testing import make_pod
from koordlet.plugin.testing.scripted import SimulatedClock
from koordlet.rules.node_topology import KubeletFacts, TopologyInputs, node_topology
from koordlet.statesinformer.informer import StatesInformer
from koordlet.statesinformer.podmeta import PodMeta
from tests.support.machines import machine, topology


def pod(uid: str, name: str = "p") -> PodMeta:
    return PodMeta(
        Pod("default", name, uid), f"kubepods/pod{uid}", (), QoSClass.LS, KubeQoS.BURSTABLE
    )


@pytest.fixture
async def informer() -> StatesInformer:
    return StatesInformer(SimulatedClock())


async def test_nothing_is_known_at_first(informer) -> None:
    """Absent is not empty: health names what is missing."""
    assert informer.node() is None
    assert informer.node_slo() is None
    assert informer.pods() == ()
    assert informer.node_metric_spec() == NodeMetricSpec()
    assert not informer.has_synced()
    assert informer.health().status is HealthStatus.UNHEALTHY
    assert informer.health().reason == "not known yet: node and pods"


async def test_synced_once_node_and_pods_are_known(informer) -> None:
    """A node without pods counts; a NodeSLO does not matter."""
    informer.set_pods(())
    assert not informer.has_synced()
    assert informer.health().reason == "not known yet: node"

    informer.set_node(Node("n"))

    assert informer.has_synced()
    await informer.wait_synced()
    assert informer.health().status is HealthStatus.OK


async def test_pods_are_found_by_uid_and_the_first_of_two_counts(informer) -> None:
    """Two pods with one UID would be measured twice."""
    informer.set_pods((pod("1", "a"), pod("2"), pod("1", "b")))

    assert [meta.uid for meta in informer.pods()] == ["1", "2"]
    found = informer.pod("1")
    assert found is not None
    assert found.pod.name == "a"
    assert informer.pod("3") is None


async def test_callbacks_run_for_changes_only(informer) -> None:
    """Setting the same again is no event; of the node only labels and annotations are watched."""
    clock = SimulatedClock()
    informer = StatesInformer(clock)
    counts = dict.fromkeys(("AllPods", "NodeMetadata", "NodeSLOSpec"), 0)

    def count(state_type: object, *_: object) -> None:
        counts[state_type.value] += 1  # type: ignore[attr-defined]

    for state_type in counts:
        informer.register_callbacks(state_type, "count", "", count)
    stop = Stop(clock)
    running = asyncio.create_task(informer.run(stop))

    async def publish(node: Node, slo: NodeSLO, *pods: PodMeta) -> dict[str, int]:
        informer.set_node(node)
        informer.set_node_slo(slo)
        informer.set_pods(pods)
        await clock.settle()
        return dict(counts)

    node, slo = Node("n", capacity={"cpu": "4"}), NodeSLO({"a": 1})
    first = await publish(node, slo, pod("1"))
    assert first == {"AllPods": 1, "NodeMetadata": 1, "NodeSLOSpec": 1}
    bigger = dataclasses.replace(node, capacity={"cpu": "8"})
    assert await publish(bigger, NodeSLO({"a": 1}), pod("1")) == first
    labelled = dataclasses.replace(node, labels={"a": "b"})
    assert await publish(labelled, NodeSLO({"a": 2}), pod("1"), pod("2")) == {
        "AllPods": 2,
        "NodeMetadata": 2,
        "NodeSLOSpec": 2,
    }
    stop.set()
    await running


async def test_a_snapshot_taken_before_a_change_stays_as_it_was(informer) -> None:
    """Readers on other threads keep a consistent tuple for as long as they like."""
    informer.set_pods((pod("1"),))
    before = informer.pods()
    informer.set_pods((pod("2"),))

    assert [meta.uid for meta in before] == ["1"]


STATUS = "scheduling.koordinator.sh/resource-status"


def with_cpus(name: str, cpu: str, cpus: str, started: float) -> PodMeta:
    """A pod that has CPUs of its own, by its annotation."""
    meta = make_pod(
        name,
        annotations={STATUS: json.dumps({"cpuset": cpus}), "note": "kept"},
        containers=(Container("main", requests={"cpu": cpu}),),
    )
    return dataclasses.replace(meta, pod=dataclasses.replace(meta.pod, start_time=started))


async def test_pods_have_only_allocations_that_count(informer) -> None:
    """As if a pod had no annotation of which it does not request as much."""
    good, thief = with_cpus("good", "2", "0-1", 1), with_cpus("thief", "100m", "2-3", 2)
    informer.set_pods((good, thief))

    assert informer.pods()[0] is good
    assert informer.pod("thief").pod.annotations == {"note": "kept"}
    assert list(informer.refused_allocations()) == ["thief"]
    informer.set_pods((with_cpus("thief", "2", "2-3", 2),))
    assert STATUS in informer.pod("thief").pod.annotations
    assert informer.refused_allocations() == {}


async def test_what_an_older_pod_had_is_free_when_that_is_gone(informer) -> None:
    old, young = with_cpus("old", "2", "0-1", 1), with_cpus("young", "2", "1-2", 2)
    informer.set_pods((young, old))
    assert list(informer.refused_allocations()) == ["young"]
    changed = asyncio.create_task(informer.pods_changed())
    await asyncio.sleep(0)
    informer.set_pods((young,))
    await changed
    assert STATUS in informer.pod("young").pod.annotations


async def test_cpus_that_the_kubelet_gives_count_when_they_become_known(informer) -> None:
    old = make_pod("old", containers=(Container("main", requests={"cpu": "1"}),))
    old = dataclasses.replace(old, pod=dataclasses.replace(old.pod, start_time=1.0))
    informer.set_pods((old, with_cpus("young", "2", "1-2", 2)))
    assert informer.refused_allocations() == {}
    known = machine(topology([(0, 1)], [(2, 3)]))
    inputs = TopologyInputs(known, Node("n1"), (), KubeletFacts())
    found, _ = node_topology(inputs)
    theirs = PodCpus("old", frozenset({1}), "default", "old")
    informer.set_node_topology(dataclasses.replace(found, kubelet_allocations=(theirs,)))
    assert list(informer.refused_allocations()) == ["young"]


async def test_all_allocations_count_where_they_are_trusted() -> None:
    trusting = StatesInformer(SimulatedClock(), trusts_allocations=lambda: True)
    thief = with_cpus("thief", "100m", "0-3", 1)
    trusting.set_pods((thief,))
    assert trusting.pods() == (thief,)
    assert trusting.refused_allocations() == {}
