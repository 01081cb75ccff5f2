"""What comes of pods is the same, whether plugins are called only where they are active or always.

Koordinator's shipped profile, two replicas of it: in one every plugin is called for every pod.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

import pytest

from koord.cluster.facts import ClusterPod
from koord.cluster.kinds import POD
from koord_scheduler.config.profiles import Point
from koord_scheduler.plugin.testing import ProfileHarness, fake_cluster, make_pod
from koord_scheduler_plugins.device_share.plugin import DEVICE_OBJECTS
from koord_scheduler_plugins.elastic_quota.tracker import QUOTAS
from koord_scheduler_plugins.node_numa_resource.plugin import TOPOLOGIES
from koord_scheduler_plugins.reservation.status import RESERVATIONS
from tests.koord_scheduler.config.test_file import SHIPPED
from tests.support.reservations import reservation_json
from tests.support.scheduler.devices import CORE, RATIO, d8
from tests.support.scheduler.numa import topology_object

NODES = ("a", "b", "c", "d")
CONFIG = SHIPPED.replace("{name: DefaultBinder}", "{name: RecordingBinder}")
assert CONFIG != SHIPPED
Step = Callable[[ProfileHarness], None]


def quota_json(name: str, cpu: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"min": {"cpu": "1"}, "max": {"cpu": cpu, "memory": "64Gi"}},
    }


def pod_of(draw: Random, name: str) -> ClusterPod:
    """A pod that uses some of the plugins, mostly none."""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    requests = {"cpu": draw.choice(["500m", "1", "1", "2", "4"]), "memory": "1Gi"}
    match draw.choice(["plain"] * 5 + ["web", "quota", "gpu", "cpus", "gang", "empty", "needs"]):
        case "web":
            labels["app"] = "web"
        case "quota":
            labels["quota.scheduling.koordinator.sh/name"] = "q"
        case "gpu":
            requests |= {CORE: "50", RATIO: "50"}
        case "cpus":
            labels["koordinator.sh/qosClass"] = "LSR"
        case "gang":
            labels["pod-group.scheduling.sigs.k8s.io/name"] = name
            labels["pod-group.scheduling.sigs.k8s.io/min-available"] = str(draw.choice([1, 2]))
        case "empty":
            requests = {}
        case "needs":
            text = json.dumps({"reservationSelector": {"kind": "r"}})
            annotations["scheduling.koordinator.sh/reservation-affinity"] = text
    amounts = {"requests": requests, "limits": requests}
    containers = [{"name": "main", "resources": amounts}]
    spec = {"schedulerName": "koord-scheduler", "containers": containers}
    priority = draw.choice([None, 9500])
    return make_pod(
        name, labels=labels, annotations=annotations, spec=spec, priority=priority, phase="Pending"
    )


def change_of(draw: Random) -> Step:
    """A change of the objects that decide where plugins are active."""
    node = draw.choice(NODES)
    match draw.randrange(9):
        case 0:
            quota = quota_json("q", draw.choice(["1", "4", "64"]))
            return lambda at: at.informers.apply(QUOTAS, quota)
        case 1:
            return lambda at: at.informers.delete(QUOTAS, "default/q")
        case 2 | 3:
            one = reservation_json("r", {"cpu": "2"}, node=node, labels={"kind": "r"})
            return lambda at: at.informers.apply(RESERVATIONS, one)
        case 4:
            return lambda at: at.informers.delete(RESERVATIONS, "r")
        case 5:
            found = topology_object(node, policy=draw.choice(["None", "SingleNUMANodePodLevel"]))
            return lambda at: at.informers.apply(TOPOLOGIES, found)
        case 6:
            return lambda at: at.informers.apply(DEVICE_OBJECTS, d8(node))
        case 7:
            ratio = draw.choice([None, {"cpu": 1.5}])
            text = {"node.koordinator.sh/resource-amplification-ratio": json.dumps(ratio)}
            annotations = {} if ratio is None else text
            return lambda at: add_node(at, node, annotations)
    labels = draw.choice([{}, {"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"}])
    return lambda at: add_node(at, node, {}, labels)


def add_node(
    at: ProfileHarness,
    name: str,
    annotations: Mapping[str, str],
    labels: Mapping[str, str] | None = None,
) -> None:
    gpus = {CORE: 800, RATIO: 800}
    at.cluster.node(
        name, cpu=16, memory="64Gi", allocatable=gpus, annotations=annotations, labels=labels
    )


def held(at: ProfileHarness) -> Iterator[tuple[str, str, tuple[tuple[str, str], ...]]]:
    """Pods with their nodes and annotations, which say what Reserve has chosen."""
    for key in sorted(at.cluster.state.snapshot.pod_keys()):
        pod = at.cluster.state.pod(key)
        assert pod is not None
        yield pod.key, pod.node, pod.annotations


async def history(draw: Random, one: ProfileHarness, other: ProfileHarness) -> int:
    """Let the same happen in both; return how many pods had a part of the profile."""
    (made,) = other._profiles.values()
    made.plugins.for_pod = lambda pod: made.plugins  # type: ignore[method-assign]
    for name in NODES:
        for each in (one, other):
            add_node(each, name, {})
    for each in (one, other):
        each.server.answer(lambda call: {} if call.method == "PATCH" else None)
    parts = 0
    for number in range(40):
        if draw.random() < 0.3:
            step = change_of(draw)
            for each in (one, other):
                step(each)
            continue
        pod = pod_of(draw, f"p{number}")
        (mine,) = one._profiles.values()
        parts += mine.plugins.for_pod(one.cluster.declared(pod)) is not mine.plugins
        for each in (one, other):
            each.cluster.state.put(POD, each.cluster.declared(pod))
        gates = [each.gate(pod) for each in (one, other)]
        assert gates[0] == gates[1]
        if not gates[0].ok:
            continue
        found, wanted = [await each.schedule(pod) for each in (one, other)]
        assert (found.node, found.status) == (wanted.node, wanted.status)
        assert (found.nominated, found.victims) == (wanted.nominated, wanted.victims)
        assert found.decided == wanted.decided
        assert list(held(one)) == list(held(other))
    return parts


@pytest.mark.parametrize("seed", range(12))
async def test_what_comes_of_pods_is_the_same_as_with_all_calls(seed: int) -> None:
    clusters = fake_cluster(), fake_cluster()
    async with (
        ProfileHarness(CONFIG, clusters[0], installed=True) as one,
        ProfileHarness(CONFIG, clusters[1], installed=True) as other,
    ):
        assert await history(Random(seed), one, other) > 0


async def test_no_large_plugin_has_to_do_with_a_plain_pod_in_a_cluster_without_their_objects() -> (
    None
):
    """Only NodeNUMAResource scores, and DeviceShare keeps its metrics up."""
    async with ProfileHarness(CONFIG, fake_cluster(), installed=True) as at:
        (made,) = at._profiles.values()
        add_node(at, "a", {})
        main = {"name": "main", "resources": {"requests": {"cpu": "1"}}}
        pod = make_pod("web", spec={"schedulerName": "koord-scheduler", "containers": [main]})
        at.decide(pod)  # from here on it is known that no node asks for anything
        part = made.plugins.for_pod(at.cluster.declared(pod))

        large = {"Coscheduling", "ElasticQuota", "Reservation", "NodeNUMAResource", "DeviceShare"}
        called = {
            (str(point), one.name)
            for point in Point
            for one in part.at(point)
            if one.name in large and point is not Point.POST_FILTER
        }
        assert called == {("score", "NodeNUMAResource"), ("preFilter", "DeviceShare")}
