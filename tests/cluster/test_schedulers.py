"""koord-scheduler beside kube-scheduler, each with the pods that name it, on shared nodes.

docs/scheduler.md, "When a second scheduler is safe", says what these tests show.
"""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from koord.api.annotations import USAGE_THRESHOLDS
from koord.api.quantity import Quantity
from tests.support.programs import KUBERNETES
from tests.support.real_cluster.access import NODE
from tests.support.real_cluster.client import SHOP, Cluster, Object, pod
from tests.support.real_cluster.installation import Installation

OURS, THEIRS = "koord-scheduler", "default-scheduler"
# Of a scheduler that has not seen the last decisions of the others; the test binds its pods.
BEHIND = "scheduler-behind"
MOST = "3"  # CPUs of the four of a node without a kubelet: one such pod fits, a second does not
ROUNDS = 10
HOLLOW = "hollow-1"
BOTH_ORDERS = pytest.mark.parametrize(("first", "second"), [(OURS, THEIRS), (THEIRS, OURS)])


@pytest.fixture(autouse=True)
def by_requests_alone(cluster: Cluster, installed: Installation) -> Iterator[None]:
    """What nodes are measured or estimated to use keeps no pod of ours away."""
    off = json.dumps({"usageThresholds": {"cpu": 0, "memory": 0}})
    cluster.kubectl("annotate", "nodes", "--all", f"{USAGE_THRESHOLDS}={off}")
    yield
    cluster.kubectl("annotate", "nodes", "--all", f"{USAGE_THRESHOLDS}-")


def requesting(name: str, scheduler: str, node: str, cpu: str) -> Object:
    """A pod of that scheduler, for that node alone."""
    selected: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": node}}
    return pod(name, name, cpu=cpu, schedulerName=scheduler, **selected)


def node_of(cluster: Cluster, name: str) -> str:
    """The node that a pod is bound to; empty while there is none."""
    return str(cluster.find("pod", name, "-n", SHOP)["spec"].get("nodeName", ""))


def waits(cluster: Cluster, name: str) -> bool:
    """Whether its scheduler has found no node for it."""
    status = cluster.find("pod", name, "-n", SHOP)["status"]
    return any(
        (each["type"], each["status"], each.get("reason"))
        == ("PodScheduled", "False", "Unschedulable")
        for each in status.get("conditions", ())
    )


def bind(cluster: Cluster, name: str, node: str) -> None:
    """Bind a pod as a scheduler does, without a look at the node's room."""
    path = f"/api/v1/namespaces/{SHOP}/pods/{name}/binding"
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    cluster.kubectl("create", "--raw", path, "-f", "-", given=json.dumps(binding))


def create_at_once(cluster: Cluster, *objects: Object) -> None:
    """Create each by a kubectl of its own, all at the same time."""
    running = [
        subprocess.Popen(
            [KUBERNETES.called("kubectl"), "create", "-f", "-"],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        )
        for _ in objects
    ]  # fmt: skip
    for process, made in zip(running, objects, strict=True):
        assert process.stdin is not None
        process.stdin.write(json.dumps(made))
    for process in running:
        assert process.stdin is not None
        process.stdin.close()
    assert [process.wait() for process in running] == [0] * len(objects)


def test_each_places_the_pods_that_name_it(cluster: Cluster, shop: None) -> None:
    """And no others: the event on a pod says who has placed it."""
    cluster.apply(*(requesting(name, name, HOLLOW, "1") for name in (OURS, THEIRS)))
    for name in (OURS, THEIRS):
        cluster.until(lambda n=name: node_of(cluster, n), "the pod is placed")

        def placed_by(name: str = name) -> set[str]:
            chosen = f"reason=Scheduled,involvedObject.name={name}"
            listed = cluster.items("events", "-n", SHOP, "--field-selector", chosen)
            return {
                each.get("reportingComponent") or each["source"]["component"] for each in listed
            }

        assert cluster.until(placed_by, "an event says so") == {name}


@BOTH_ORDERS
def test_what_one_has_given_away_is_not_free_for_the_other(
    cluster: Cluster, shop: None, first: str, second: str
) -> None:
    """The pod that comes later waits until the other one is gone."""
    cluster.apply(requesting("earlier", first, HOLLOW, MOST))
    cluster.until(lambda: node_of(cluster, "earlier"), "the first pod is placed")
    cluster.apply(requesting("later", second, HOLLOW, MOST))
    cluster.until(lambda: waits(cluster, "later"), "the second pod has no room")

    cluster.kubectl("-n", SHOP, "delete", "pod", "earlier")

    cluster.until(lambda: node_of(cluster, "later"), "the second pod has the room")


def test_two_pods_for_the_last_room_at_the_same_time_are_placed_or_wait(
    cluster: Cluster, shop: None
) -> None:
    """At least one has it. Both may, which the API server does not mind; no pod is lost."""
    both = 0
    for number in range(ROUNDS):
        pods = {f"{scheduler}-{number}": scheduler for scheduler in (OURS, THEIRS)}
        create_at_once(cluster, *(requesting(each, pods[each], HOLLOW, MOST) for each in pods))
        for name in pods:
            cluster.until(
                lambda n=name: node_of(cluster, n) or waits(cluster, n), f"{name} is decided"
            )
        placed = [name for name in pods if node_of(cluster, name)]
        both += len(placed) == 2
        assert placed
        cluster.kubectl("-n", SHOP, "delete", "pod", *pods)
    print(f"the last room was given away twice in {both} of {ROUNDS} races")


@BOTH_ORDERS
def test_a_node_without_room_for_what_it_has_gets_no_more(
    cluster: Cluster, shop: None, first: str, second: str
) -> None:
    """Neither scheduler adds to what both together gave away twice, until one pod is gone."""
    cluster.apply(
        requesting("earlier", first, HOLLOW, MOST), requesting("behind", BEHIND, HOLLOW, MOST)
    )
    cluster.until(lambda: node_of(cluster, "earlier"), "the first pod is placed")
    bind(cluster, "behind", HOLLOW)
    cluster.apply(*(requesting(f"more-{each}", each, HOLLOW, "500m") for each in (first, second)))
    for each in (first, second):
        cluster.until(lambda e=each: waits(cluster, f"more-{e}"), "a third pod has no room")

    cluster.kubectl("-n", SHOP, "delete", "pod", "behind")

    for each in (first, second):
        cluster.until(lambda e=each: node_of(cluster, f"more-{e}"), "there is room again")


@BOTH_ORDERS
def test_the_kubelet_refuses_what_was_given_away_twice(
    cluster: Cluster, shop: None, first: str, second: str
) -> None:
    """The later pod fails with OutOfcpu, the earlier one runs; what failed takes no room."""
    most = f"{free_cpu(cluster) * 2 // 3}m"
    little = f"{free_cpu(cluster) // 10}m"
    cluster.apply(
        requesting("earlier", first, NODE, most), requesting("behind", BEHIND, NODE, most)
    )
    cluster.until(lambda: phase(cluster, "earlier") == ("Running", ""), "the first pod runs")

    bind(cluster, "behind", NODE)

    cluster.until(
        lambda: phase(cluster, "behind") == ("Failed", "OutOfcpu"), "the kubelet refuses it"
    )
    cluster.apply(*(requesting(f"more-{each}", each, NODE, little) for each in (first, second)))
    for each in (first, second):
        cluster.until(
            lambda e=each: phase(cluster, f"more-{e}") == ("Running", ""), "there is room"
        )
    assert phase(cluster, "earlier") == ("Running", "")


def phase(cluster: Cluster, name: str) -> tuple[str, str]:
    """The phase of a pod, and the reason for it."""
    status = cluster.find("pod", name, "-n", SHOP)["status"]
    return status["phase"], status.get("reason", "")


def free_cpu(cluster: Cluster) -> int:
    """Thousandths of a CPU that the real node's pods have not requested."""
    room = cluster.find("node", NODE)["status"]["allocatable"]["cpu"]
    taken = [
        container.get("resources", {}).get("requests", {}).get("cpu", "0")
        for each in cluster.items("pods", "-A", f"--field-selector=spec.nodeName={NODE}")
        for container in each["spec"]["containers"]
    ]
    return Quantity.parse(room).milli - sum(Quantity.parse(each).milli for each in taken)
