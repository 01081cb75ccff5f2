"""What listeners hear of the cluster: each only what its decisions depend on."""

import copy
import json

import pytest

from koord.cluster import kinds
from koord.cluster.decoder import Decoder
from koord.cluster.keptfields import KeptFields
from koord.kube.managedobjects import BANDWIDTH_ANNOTATION
from koord_manager.cluster import METRIC, ManagerCluster, NodeChange
from koord_manager.framework.calculator import ORIGIN
from tests.support.manager import node, pod, pod_usage, quantities, report, usage

KIND = {"node": kinds.NODE, "pod": kinds.POD, "metric": METRIC}
WHOLE = quantities(cpu=10, memory="10G")
OBJECTS = {
    "node": node(
        WHOLE,
        labels={"a": "1"},
        annotations={"read": "1", "other": "1", BANDWIDTH_ANNOTATION: "1G"},
    ),
    "pod": pod("a", quantities(cpu=1)),
    "metric": report(node=usage(3, "3G"), system=usage(1, "1G"), pods=[pod_usage("a", 1, "1G")])
    | {"spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}}},
}


class Heard:
    def __init__(self):
        self.decoder = Decoder(
            KeptFields(node_annotations=dict.fromkeys(["read", BANDWIDTH_ANNOTATION, ORIGIN], 256))
        )
        self.cluster = ManagerCluster(self.decoder.kept)
        for name, manifest in OBJECTS.items():
            self.put(name, manifest)
        self.changes = set()
        self.cluster.listen(lambda name, change, delay: self.changes.add((name, change)))

    def put(self, name, manifest):
        item = self.decoder.object(KIND[name], json.dumps(manifest).encode())
        self.cluster.put(KIND[name], item)


@pytest.fixture
def heard():
    return Heard()


@pytest.mark.parametrize(
    ("name", "path", "value", "changes"),
    [
        ("node", (), None, []),
        ("node", ("metadata", "annotations", "other"), "2", []),
        ("node", ("metadata", "annotations", "read"), "2", [NodeChange.NODE]),
        ("node", ("metadata", "annotations", BANDWIDTH_ANNOTATION), "2G",
         [NodeChange.NODE, NodeChange.METADATA]),
        ("node", ("metadata", "labels", "a"), "2", [NodeChange.NODE, NodeChange.METADATA]),
        ("node", ("metadata", "uid"), "new", [NodeChange.NODE, NodeChange.METADATA]),
        ("node", ("status", "allocatable"), quantities(cpu=9, memory="9G"), [NodeChange.NODE]),
        ("node", ("status", "allocatable"), {**WHOLE, "kubernetes.io/batch-cpu": "1k"},
         [NodeChange.OFFERS]),
        ("node", ("metadata", "annotations", ORIGIN), "{}", [NodeChange.OFFERS]),
        ("node", ("spec",), {"unschedulable": True}, [NodeChange.NODE]),
        ("metric", (), None, [NodeChange.REPORT]),
        ("metric", ("status", "nodeMetric", "nodeUsage"), usage(4, "4G"), [NodeChange.REPORT]),
        ("metric", ("metadata", "resourceVersion"), "9", [NodeChange.REPORT]),
        ("metric", ("metadata", "uid"), "new", [NodeChange.REPORT, NodeChange.METRIC_SPEC]),
        ("metric", ("metadata", "ownerReferences"), [{"kind": "Node", "name": "n1"}],
         [NodeChange.REPORT, NodeChange.METRIC_SPEC]),
        ("metric", ("spec",), {}, [NodeChange.REPORT, NodeChange.METRIC_SPEC]),
        ("pod", (), None, []),
        ("pod", ("status", "phase"), "Failed", [NodeChange.PODS]),
    ],
)  # fmt: skip
def test_a_change_is_heard_as_what_it_is(heard, name, path, value, changes):
    manifest = copy.deepcopy(OBJECTS[name])
    place = manifest
    for key in path[:-1]:
        place = place[key]
    if path:
        place[path[-1]] = value

    heard.put(name, manifest)

    assert heard.changes == {("n1", one) for one in changes}


@pytest.mark.parametrize(
    ("kind", "key", "uid", "changes"),
    [
        (kinds.NODE, "n1", "uid-n1", [NodeChange.NODE, NodeChange.METADATA]),
        (METRIC, "n1", "", [NodeChange.REPORT, NodeChange.METRIC_SPEC]),
        (kinds.POD, "default/a", "uid-a", [NodeChange.PODS]),
        (kinds.POD, "default/unknown", "", []),
    ],
)
def test_a_deletion_is_heard(heard, kind, key, uid, changes):
    heard.cluster.remove(kind, key, uid)

    assert heard.changes == {("n1", one) for one in changes}


def test_a_pod_that_moves_is_heard_of_both_nodes(heard):
    moved = copy.deepcopy(OBJECTS["pod"])
    moved["spec"]["nodeName"] = "n2"

    heard.put("pod", moved)

    assert heard.changes == {("n1", NodeChange.PODS), ("n2", NodeChange.PODS)}
