"""Small clusters for LowNodeLoad, as spec 06 §8 describes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from koord_descheduler.plugin.testing import FakeCluster, PluginHarness
from koord_descheduler_plugins.low_node_load.plugin import LowNodeLoad

Json = dict[str, Any]


@dataclass(frozen=True)
class P:
    """A pod: what it uses, in milli-cores and MiB, and other facts."""

    cpu: int
    memory: int = 1024
    measured: bool = True
    facts: Json = field(default_factory=dict)


@dataclass(frozen=True)
class N:
    """A node: its pods in the order in which they are listed, and other facts.

    10 cores, 40960 MiB and 110 pods, unless allocatable says otherwise.
    """

    pods: Mapping[str, P | int]
    system: int = 0  # milli-cores
    host: int = 0  # milli-cores of host applications
    unschedulable: bool = False
    labels: Json = field(default_factory=dict)
    raw: str = ""  # the annotation about raw allocatable
    cpu: int = 10
    age: float = 0.0  # seconds of its NodeMetric


def build(nodes: Mapping[str, N]) -> FakeCluster:
    """A cluster of these nodes, reported now."""
    cluster = FakeCluster()
    for name, one in nodes.items():
        cluster.apply(manifest(name, one))
        for pod, what in one.pods.items():
            what = what if isinstance(what, P) else P(what)
            facts = {"priority": 9000, "cpu": "500m", "memory": "512Mi", **what.facts}
            cluster.pod(pod, name, **facts)
    report(cluster, nodes)
    return cluster


def manifest(name: str, one: N) -> Json:
    annotations = {"node.koordinator.sh/raw-allocatable": one.raw} if one.raw else {}
    labels = {"kubernetes.io/hostname": name, **one.labels}
    return {
        "kind": "node",
        "metadata": {"name": name, "uid": name, "labels": labels, "annotations": annotations},
        "spec": {"unschedulable": one.unschedulable},
        "status": {"allocatable": {"cpu": str(one.cpu), "memory": "40960Mi", "pods": "110"}},
    }


def report(cluster: FakeCluster, nodes: Mapping[str, N]) -> None:
    """Report what nodes use, now."""
    for name, one in nodes.items():
        pods = {pod: P(what) if isinstance(what, int) else what for pod, what in one.pods.items()}
        total = sum(what.cpu for what in pods.values()) + one.system + one.host
        memory = sum(what.memory for what in pods.values())
        host = [{"name": "h", "usage": {"resources": {"cpu": f"{one.host}m", "memory": "0"}}}]
        cluster.apply(
            {
                "kind": "NodeMetric",
                "metadata": {"name": name},
                "status": {
                    "updateTime": _moment(cluster.clock.wall() - one.age),
                    "nodeMetric": {
                        "nodeUsage": _usage(total, memory),
                        "systemUsage": _usage(one.system, 0),
                    },
                    "podsMetric": [
                        {"namespace": "default", "name": pod, "podUsage": _usage(*_both(what))}
                        for pod, what in pods.items()
                        if what.measured
                    ],
                    "hostApplicationMetric": host if one.host else [],
                },
            }
        )


def load_args(**given: Any) -> Json:
    """Args of the scenarios: at once, cpu alone unless said otherwise."""
    return {"anomalyCondition": {"consecutiveAbnormalities": 1}, **given}


def cpu(low: float, high: float) -> Json:
    return {"lowThresholds": {"cpu": low}, "highThresholds": {"cpu": high}}


def harness(cluster: FakeCluster, args: Json, **more: Any) -> PluginHarness:
    return PluginHarness(LowNodeLoad, cluster, args=args, **more)


def names(found: PluginHarness) -> list[str]:
    """Names of the pods that were evicted, in their order."""
    return [one.pod.name for one in found.evicted]


def _both(what: P) -> tuple[int, int]:
    return what.cpu, what.memory


def _usage(cpu: int, memory: int) -> Json:
    return {"resources": {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}}


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
