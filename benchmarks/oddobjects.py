"""Pods that are as large as etcd takes them, in a cluster of 1,000 nodes: CPU and memory of each.

What fills them is beyond what is kept, so their cost is that of reading the JSON once.
"""

import gc
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.table import Row
from koord.cluster.decoder import DecodedEvent, Decoder
from koord.cluster.facts import ClusterPod
from koord.cluster.kinds import NODE, POD
from koord.cluster.state import ClusterState

NODES, PODS_PER_NODE, ODD = 1_000, 13, 20
LARGEST = 4.0  # MiB of one that is kept
PLAIN = "as plain JSON"
_FILL = 1_400_000  # bytes of JSON

Json = dict[str, Any]


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield time and memory of each kind of odd pod, and the time of a plain one beside them."""
    cluster = _Cluster(20 if smoke else NODES)
    plain = [json.dumps(_pod(f"plain-{at}")).encode() for at in range(200)]
    alone, _ = cluster.cost(plain)
    for name, fill in FILLED.items():
        odd = [json.dumps(fill(_pod(f"{name}-{at}"))).encode() for at in range(2 if smoke else ODD)]
        took, reference = cluster.cost(odd)
        yield Row(f"pod of 1.4 MB of {name}", took * 1e3, "ms", None, reference * 1e3, PLAIN)
        yield Row(f"memory of one of {name}", cluster.memory(odd[0]) / 2**20, "MiB", LARGEST)
    baseline, _ = cluster.cost(plain)
    yield Row("plain pod beside all of them", baseline * 1e6, "µs", None, alone * 1e6, "alone")


class _Cluster:
    """A cluster state with nodes and plain pods, and a decoder that shares what they have."""

    def __init__(self, nodes: int) -> None:
        self._state = ClusterState()
        self._decoder = Decoder()
        allocatable = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        for at in range(nodes):
            node = {"metadata": {"name": f"n{at}"}, "status": {"allocatable": allocatable}}
            self._state.put(NODE, self._decoder.object(NODE, json.dumps(node).encode()))
        for at in range(nodes * PODS_PER_NODE):
            pod = json.dumps(_pod(f"p{at}", f"n{at % nodes}")).encode()
            self._state.put(POD, self._decoder.object(POD, pod))

    def cost(self, pods: list[bytes]) -> tuple[float, float]:
        """CPU seconds of an event, and of reading it as plain JSON; the best of all."""
        took, plain = [], []
        for pod in pods:
            line = b'{"type":"ADDED","object":%s}' % pod
            begun = time.thread_time()
            json.loads(line)
            plain.append(time.thread_time() - begun)
            begun = time.thread_time()
            self._take(self._decoder.event(POD, line))
            took.append(time.thread_time() - begun)
        return min(took), min(plain)

    def memory(self, pod: bytes) -> int:
        """Bytes that are kept of a pod which shares nothing with others."""
        gc.collect()
        tracemalloc.start()
        found = Decoder().event(POD, b'{"type":"ADDED","object":%s}' % pod)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert found.object is not None
        return kept

    def _take(self, event: DecodedEvent[ClusterPod]) -> None:
        assert isinstance(event.object, ClusterPod)
        self._state.put(POD, event.object)
        self._state.view()


def _pod(name: str, node: str = "") -> Json:
    resources = {"requests": {"cpu": "100m", "memory": "64Mi"}}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": "web"}},
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": resources}]},
        "status": {"phase": "Running" if node else "Pending"},
    }


def _many(item: Callable[[int], Any]) -> list[Any]:
    """Return the number of items that fill the pod."""
    return [item(at) for at in range(_FILL // len(json.dumps([item(10_000)])))]


def _labels(pod: Json) -> Json:
    pod["metadata"]["labels"] = {f"k{at}": "v" for at in range(_FILL // 14)}
    return pod


def _owners(pod: Json) -> Json:
    pod["metadata"]["ownerReferences"] = _many(
        lambda at: {"kind": "ConfigMap", "name": f"c{at}", "uid": f"u{at}"}
    )
    return pod


def _tolerations(pod: Json) -> Json:
    pod["spec"]["tolerations"] = _many(lambda at: {"key": f"k{at}", "operator": "Exists"})
    return pod


def _terms(pod: Json) -> Json:
    terms = _many(
        lambda at: {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": f"{at}"}}}
    )
    pod["spec"]["affinity"] = {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    }
    return pod


def _ports(pod: Json) -> Json:
    pod["spec"]["containers"][0]["ports"] = _many(lambda at: {"containerPort": 1, "hostPort": at})
    return pod


def _resources(pod: Json) -> Json:
    requests = {f"example.com/r{at:06}": "1" for at in range(_FILL // 26)}
    pod["spec"]["containers"][0]["resources"]["requests"] |= requests
    return pod


def _volumes(pod: Json) -> Json:
    pod["spec"]["volumes"] = _many(lambda at: {"name": f"v{at}", "ephemeral": {}})
    return pod


def _text(pod: Json) -> Json:
    """The text as the API server writes it: six bytes for each character."""
    pod["spec"]["containers"][0]["args"] = ["\u0001" * _FILL]
    return pod


FILLED: Mapping[str, Callable[[Json], Json]] = {
    "labels": _labels,
    "owner references": _owners,
    "tolerations": _tolerations,
    "anti-affinity terms": _terms,
    "host ports": _ports,
    "resources": _resources,
    "volumes": _volumes,
    "escaped text": _text,
}
"""What fills a pod."""
