"""The cluster as columns: decoding pods, following their events, views, and where a pod fits.

Without the garbage collector, as in the informer's benchmark.
"""

import gc
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.table import Row
from koord.cluster.decoder import Decoder
from koord.cluster.facts import ClusterPod
from koord.cluster.hypothetical import HypotheticalCluster
from koord.cluster.kinds import NODE, POD
from koord.cluster.predicates import fits
from koord.cluster.state import Snapshot
from koord.cluster.view import View

NODES, PODS_PER_NODE = 5_000, 30
REPLICAS = 30  # pods of a workload
PAGE = 500  # pods
EVENTS = 2_000
ROUNDS = 20  # of what takes milliseconds
SPREAD_EVERY = 10  # workloads, of which one has affinity, anti-affinity and spread


def run(*, smoke: bool) -> Iterator[Row]:
    """Yield CPU time beside that of the standard library or a loop, and memory kept."""
    gc.collect()
    gc.disable()
    try:
        yield from _measure(NODES // 10 if smoke else NODES)
    finally:
        gc.enable()


def _measure(nodes: int) -> Iterator[Row]:
    decoder, snapshot = Decoder(), Snapshot(usage=("cpu", "memory"))
    for number in range(nodes):
        snapshot.put_node(decoder.object(NODE, _node(number)))
    pods, before = nodes * PODS_PER_NODE, _resident()
    decoding = placing = plain = 0.0
    for first in range(0, pods, PAGE):
        data = b'{"items":[' + b",".join(_pod(n) for n in range(first, first + PAGE)) + b"]}"
        if first < 10 * PAGE:
            plain += _cpu(lambda data=data: json.loads(data))  # type: ignore[misc]
        begun = time.process_time()
        page = decoder.page(POD, data)
        decoded = time.process_time()
        for pod in page.objects:
            snapshot.put_pod(pod)
        decoding, placing = decoding + decoded - begun, placing + time.process_time() - decoded
    del page, pod
    kept = (_resident() - before) / pods
    what = f"{pods} pods"
    size = len(_pod(0))
    reference = plain / (10 * PAGE) * 1e6
    yield Row(f"decode a pod of {size} bytes", decoding / pods * 1e6, "us", None, reference,
              "json.loads")  # fmt: skip
    yield Row("place a pod", placing / pods * 1e6, "us")
    yield Row(f"memory kept, {what}, per pod", kept, "bytes", 1500.0)
    yield from _events(decoder, snapshot, pods)
    yield from _views(decoder, snapshot, pods)
    yield from _fits(decoder, snapshot.view())


def _events(decoder: Decoder, snapshot: Snapshot, pods: int) -> Iterator[Row]:
    """New pods come and go."""
    added = [_event("ADDED", pods + number) for number in range(EVENTS // 2)]
    lines = added + [_event("DELETED", pods + number) for number in range(EVENTS // 2)]

    def follow() -> None:
        for line in lines:
            event = decoder.event(POD, line)
            if event.type == "DELETED":
                snapshot.remove_pod(event.key, event.uid)
            else:
                assert isinstance(event.object, ClusterPod)
                snapshot.put_pod(event.object)

    def parse() -> None:
        for line in lines:
            json.loads(line)

    snapshot.view()
    spent, reference = _cpu(follow) / EVENTS, _cpu(parse) / EVENTS
    yield Row(f"watch event among {pods} pods", spent * 1e6, "us", 60.0, reference * 1e6,
              "json.loads")  # fmt: skip


def _views(decoder: Decoder, snapshot: Snapshot, pods: int) -> Iterator[Row]:
    """Each after one pod has come; then what only some rules need."""
    spent = tables = placed = 0.0
    view = snapshot.view()
    for number in range(ROUNDS):
        snapshot.put_pod(decoder.object(POD, _pod(pods + number)))
        begun = time.process_time()
        view = snapshot.view()
        made = time.process_time()
        assert view.requested.shape[0] == len(view)
        joined = time.process_time()
        assert view.placed.nodes == len(view)
        spent, tables = spent + made - begun, tables + joined - made
        placed += time.process_time() - joined
    copied = _cpu(view.requested.copy, ROUNDS)
    copy = "a copy of its requests"
    yield Row("view after a change", spent / ROUNDS * 1e3, "ms", None, copied * 1e3, copy)
    yield Row("its requests in one table", tables / ROUNDS * 1e3, "ms", None, copied * 1e3, copy)
    yield Row("its pods in one table", placed / ROUNDS * 1e3, "ms", None, copied * 1e3, copy)
    what_if = HypotheticalCluster(view)
    moving = _cpu(lambda: _move(what_if, view, nodes=len(view)), ROUNDS)
    yield Row("what-if: move a pod, and view", moving * 1e3, "ms", None, copied * 1e3, copy)


def _move(what_if: Any, view: View, *, nodes: int) -> None:
    """Move a pod from the first node to the last and back."""
    key = view.pods(0)[0].key
    first, last = view.node(0).name, view.node(nodes - 1).name
    for source, target in ((first, last), (last, first)):
        what_if.add(what_if.remove(key, source), target)
    assert len(what_if.view().requested) == nodes


def _fits(decoder: Decoder, view: View) -> Iterator[Row]:
    """A pod with requests and tolerations alone, and one with every rule."""
    plain = decoder.object(POD, _pod(REPLICAS * SPREAD_EVERY + REPLICAS))
    ruled = decoder.object(POD, _pod(0))
    room = [dict(view.node(row).allocatable) for row in range(len(view))]

    def loop() -> list[bool]:
        return [
            all(amount <= one.get(name, 0) for name, amount in plain.spec.requests) for one in room
        ]

    reference = _cpu(loop, ROUNDS)
    for name, pod in (("with requests", plain), ("with all rules", ruled)):
        spent = _cpu(lambda pod=pod: fits(pod, view), ROUNDS)  # type: ignore[misc]
        found = fits(pod, view).mask
        assert np.any(found)
        yield Row(f"fits, {len(view)} nodes, {name}", spent * 1e3, "ms", None, reference * 1e3,
                  "a loop over two resources")  # fmt: skip


def _cpu(work: Callable[[], object], times: int = 1) -> float:
    """Seconds of CPU of one run; when there are several, after one that is not counted."""
    if times > 1:
        work()
    begun = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - begun) / times


def _resident() -> int:
    """Bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def _node(number: int) -> bytes:
    name = f"node-{number}"
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "topology.kubernetes.io/zone": f"zone-{number % 3}",
    }
    room = {"cpu": "32", "memory": "128Gi", "pods": "110", "ephemeral-storage": "200Gi"}
    metadata = {"name": name, "uid": f"uid-{number}", "labels": labels}
    taints = [{"key": "dedicated", "value": "batch", "effect": "NoSchedule"}]
    spec = {"taints": taints} if number % 10 == 0 else {}
    return json.dumps(
        {"metadata": metadata, "spec": spec, "status": {"allocatable": room}}
    ).encode()


def _event(kind: str, number: int) -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + _pod(number) + b"}"


def _pod(number: int) -> bytes:
    """A pod as a Deployment has it, with all that is not kept."""
    workload = number // REPLICAS
    app = f"app-{workload}"
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}}
    spread = {
        **term,
        "topologyKey": "topology.kubernetes.io/zone",
        "maxSkew": 30,
        "whenUnsatisfiable": "DoNotSchedule",
    }
    near = {**term, "topologyKey": "kubernetes.io/os"}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    linux = {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}
    rules = {
        "affinity": {
            "nodeAffinity": {required: {"nodeSelectorTerms": [{"matchExpressions": [linux]}]}},
            "podAffinity": {required: [near]},
            "podAntiAffinity": {required: [term]},
        },
        "topologySpreadConstraints": [spread],
    }
    managed = {"f:metadata": {f"f:field-{one}": {} for one in range(40)}}
    name = f"{app}-5d8f7c9b4-{number:05d}"
    return json.dumps(
        {
            "metadata": {
                "name": name,
                "namespace": f"team-{workload % 20}",
                "uid": f"6a1f0d3e-0000-4000-8000-{number:012d}",
                "resourceVersion": str(number),
                "creationTimestamp": f"2026-07-24T06:{number // 60 % 60:02d}:{number % 60:02d}Z",
                "labels": {"app": app, "pod-template-hash": "5d8f7c9b4"},
                "annotations": {"example.com/checksum": f"{number:064d}"},
                "ownerReferences": [
                    {"kind": "ReplicaSet", "name": f"{app}-5d8f7c9b4", "uid": f"uid-{app}",
                     "controller": True}
                ],
                "managedFields": [{"manager": "kubelet", "fieldsV1": managed}],
            },
            "spec": {
                "nodeName": f"node-{number * 7919 % NODES}",
                "priority": 9000,
                "containers": [
                    {
                        "name": "main",
                        "image": "registry.local/app:1",
                        "env": [{"name": f"E{one}", "value": "x" * 20} for one in range(10)],
                        "ports": [{"containerPort": 8080, "protocol": "TCP"}],
                        "resources": {
                            "requests": {"cpu": f"{100 + workload % 9 * 100}m", "memory": "512Mi"},
                            "limits": {"cpu": "4", "memory": "8Gi"},
                        },
                    }
                ],
                "tolerations": [
                    {"key": f"node.kubernetes.io/{one}", "operator": "Exists",
                     "effect": "NoExecute", "tolerationSeconds": 300}
                    for one in ("not-ready", "unreachable")
                ],
                "volumes": [{"name": f"kube-api-access-{number:05d}", "projected": {}}],
                **(rules if workload % SPREAD_EVERY == 0 else {}),
            },
            "status": _status(number),
        },
        separators=(",", ":"),
    ).encode()  # fmt: skip


def _status(number: int) -> dict[str, Any]:
    """The status of a pod that runs, as its kubelet reports it."""
    begun = f"2026-07-24T06:{number // 60 % 60:02d}:{number % 60:02d}Z"
    ready = f"2026-07-24T07:{number // 60 % 60:02d}:{number % 60:02d}Z"
    times = {"PodReadyToStartContainers": ready, "Initialized": begun, "Ready": ready,
             "ContainersReady": ready, "PodScheduled": begun}  # fmt: skip
    return {
        "phase": "Running",
        "qosClass": "Burstable",
        "hostIP": "10.0.0.1",
        "podIP": "10.1.0.1",
        "podIPs": [{"ip": "10.1.0.1"}],
        "startTime": begun,
        "conditions": [
            {"type": one, "status": "True", "lastProbeTime": None, "lastTransitionTime": time}
            for one, time in times.items()
        ],
        "containerStatuses": [
            {
                "name": "main",
                "state": {"running": {"startedAt": ready}},
                "lastState": {},
                "ready": True,
                "restartCount": 0,
                "image": "registry.local/app:1",
                "imageID": f"registry.local/app@sha256:{number:064x}",
                "containerID": f"containerd://{number:064x}",
                "started": True,
            }
        ],
    }
