"""The split of a node's usage into pods, host applications and the system."""

import pytest

from koord.api.node import NODE_RESERVATION, Node
from koord.api.nodeslo import CgroupBase, HostApplication
from koord.api.pod import Pod
from koord.api.qos import QOS_LABEL, KubeQoS
from koord.api.quantity import Quantity
from koordlet_plugins.be_cpu_suppress.usage import (
    is_best_effort,
    is_best_effort_app,
    node_reserved,
    split_usage,
)

LS = Pod("default", "ls", "ls", labels={QOS_LABEL: "LS"}, qos=KubeQoS.BURSTABLE)
BE = Pod("default", "be", "be", labels={QOS_LABEL: "BE"}, qos=KubeQoS.BEST_EFFORT)
LS_APP = HostApplication("ls-app", qos="LS")
BE_APP = HostApplication("be-app", qos="BE", base=CgroupBase.KUBEPODS_BEST_EFFORT)


@pytest.mark.parametrize(
    ("node", "reserved", "pods", "apps", "counted", "split"),
    [
        (10, 0, {}, {}, lambda pod: False, (0, 0, 10)),
        (
            80,
            8,
            {"ls": 20, "be": 32},
            {"ls-app": 4, "be-app": 8},
            lambda pod: not is_best_effort(pod),
            (20, 4, 16),
        ),
        (80, 8, {"ls": 20, "be": 32}, {}, lambda pod: pod is LS, (20, 0, 28)),
        (12, 0, {"unknown": 8, "be": 4}, {}, lambda pod: not is_best_effort(pod), (8, 0, 0)),
        (12, 3, {"ls": 8, "be": 2}, {}, lambda pod: not is_best_effort(pod), (8, 0, 3)),
    ],
)
def test_split(node, reserved, pods, apps, counted, split):
    """Koordinator's examples: unknown pods count, and the system has what is reserved."""
    found = split_usage(
        node,
        reserved,
        pods=[LS, BE],
        pods_used=pods,
        counts_pod=counted,
        apps=[LS_APP, BE_APP],
        apps_used=apps,
        counts_app=lambda app: not is_best_effort_app(app),
    )
    assert found == split


@pytest.mark.parametrize(
    ("labels", "qos", "best_effort"),
    [
        ({}, KubeQoS.BEST_EFFORT, True),
        ({QOS_LABEL: "BE"}, KubeQoS.BURSTABLE, True),
        ({QOS_LABEL: "LS"}, KubeQoS.BEST_EFFORT, True),
        ({QOS_LABEL: "LS"}, KubeQoS.BURSTABLE, False),
        ({}, KubeQoS.GUARANTEED, False),
    ],
)
def test_best_effort(labels, qos, best_effort):
    """Either class makes a pod best-effort."""
    assert is_best_effort(Pod("d", "p", "u", labels=labels, qos=qos)) is best_effort


@pytest.mark.parametrize(
    ("capacity", "allocatable", "annotation", "cores"),
    [
        ("16", "15500m", "", "500m"),
        ("16", "15", '{"resources": {"cpu": "4"}}', "4"),
        ("16", "15", '{"resources": {"cpu": "4"}, "reservedCPUs": "0-1"}', "2"),
        ("16", "10", '{"reservedCPUs": "0-1"}', "6"),
        ("16", "17", "", "0"),
        ("16", None, "", "0"),
        (None, None, '{"resources": {"cpu": "1"}}', "1"),
        ("16", "15", "not json", "1"),
        ("16", "15", '{"resources": {"cpu": "many"}}', "1"),
        ("16", "15", '{"reservedCPUs": "a-b"}', "1"),
    ],
)
def test_reserved(capacity, allocatable, annotation, cores):
    """The larger of what the kubelet keeps and what the annotation says; malformed is nothing."""
    node = Node(
        "n",
        annotations={NODE_RESERVATION: annotation} if annotation else {},
        capacity={"cpu": capacity} if capacity else {},
        allocatable={"cpu": allocatable} if allocatable else {},
    )
    assert node_reserved(node, "cpu") == Quantity.parse(cores)
