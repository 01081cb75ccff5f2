"""Node and NodeSLO objects from JSON."""

import re

import pytest

from koord.api.node import Node, parse_node
from koord.api.nodeslo import CgroupBase, HostApplication, NodeSLO, merge_nodeslo
from koord.util.errors import InvalidObject


def test_reads_a_node():
    node = parse_node(
        {
            "metadata": {"name": "worker-07", "labels": {"a": "b"}, "annotations": None},
            "status": {"capacity": {"cpu": 4, "memory": "8Gi"}, "allocatable": {"cpu": "3500m"}},
        }
    )
    assert node == Node(
        "worker-07", {"a": "b"}, {}, {"cpu": "4", "memory": "8Gi"}, {"cpu": "3500m"}
    )


@pytest.mark.parametrize(
    ("obj", "where"),
    [
        ({}, "node.metadata.name"),
        ([], "node"),
        ({"metadata": {"name": "x"}, "status": {"capacity": {"cpu": "lots"}}}, "capacity.cpu"),
        ({"metadata": {"name": "x", "labels": ["a"]}}, "node.metadata.labels"),
    ],
)
def test_refuses_a_bad_node(obj, where):
    with pytest.raises(InvalidObject, match=where):
        parse_node(obj)


@pytest.mark.parametrize(
    ("port", "expected"),
    [(10250, 10250), (None, None), (0, None), (65536, None)],
)
def test_reads_where_the_kubelet_is(port, expected):
    """What cannot be an address or a port is left out: it would end up in a URL."""
    addresses = [
        {"type": "InternalIP", "address": "fd00::7"},
        {"type": "Hostname", "address": "worker-07"},
        {"type": "ExternalDNS", "address": "evil.example/@"},
        {"type": "ExternalIP"},
    ]
    endpoints = {"kubeletEndpoint": {"Port": port}}
    node = parse_node(
        {
            "metadata": {"name": "worker-07"},
            "status": {"addresses": addresses, "daemonEndpoints": endpoints},
        }
    )
    assert [(found.type, found.address) for found in node.addresses] == [
        ("InternalIP", "fd00::7"),
        ("Hostname", "worker-07"),
    ]
    assert node.kubelet_port == expected


def test_reads_host_applications():
    """Names, verbatim classes, and each way of saying where the cgroup is."""
    slo, problems = merge_nodeslo(
        {
            "spec": {
                "resourceUsedThresholdWithBE": {"enable": True},
                "hostApplications": [
                    {"name": "a", "qos": "BE"},
                    {
                        "name": "nginx",
                        "priority": "koord-prod",
                        "qos": "LS",
                        "cgroupPath": {
                            "base": "CgroupRoot",
                            "parentDir": "host-latency-sensitive/",
                            "relativePath": "nginx/",
                        },
                        "strategy": {},
                    },
                    {"name": "y", "cgroupPath": {"base": "KubepodsBesteffort"}},
                    {"name": "z", "cgroupPath": {"base": "Elsewhere"}},
                    {"name": "e", "cgroupPath": {}},
                ],
            }
        }
    )
    root = CgroupBase.CGROUP_ROOT
    assert slo.host_applications == (
        HostApplication("a", qos="BE", base=None),
        HostApplication("nginx", "koord-prod", "LS", root, "host-latency-sensitive/", "nginx/"),
        HostApplication("y", base=CgroupBase.KUBEPODS_BEST_EFFORT),
        HostApplication("z", base=root),
        HostApplication("e", base=root),
    )
    assert slo.spec["resourceUsedThresholdWithBE"] == {"enable": True}
    assert problems == ()


@pytest.mark.parametrize("obj", [{}, {"spec": None}, {"spec": {"hostApplications": None}}])
def test_an_empty_slo_asks_for_nothing(obj):
    slo, problems = merge_nodeslo(obj)
    assert slo.host_applications == NodeSLO().host_applications == problems == ()


@pytest.mark.parametrize(
    ("application", "where"),
    [
        ({"name": ""}, r"hostApplications\[0\].name: wanted a text"),
        ({"name": "../../etc"}, r'name: wanted a path without ".."'),
        ({"name": "a", "cgroupPath": {"relativePath": "x/../../y"}}, "relativePath: wanted a path"),
        ({"name": "a", "cgroupPath": {"parentDir": ".."}}, "parentDir: wanted a path"),
        ({"name": "a", "cgroupPath": []}, "cgroupPath: wanted an object"),
        ({"name": "a", "qos": 1}, "qos: wanted a text"),
        ("a", r"hostApplications\[0\]: wanted an object"),
    ],
)
def test_refuses_a_bad_application(application, where):
    """Also one whose cgroup would lie outside of its base directory."""
    slo, problems = merge_nodeslo({"spec": {"hostApplications": [application]}})
    assert slo.host_applications == ()
    assert [bool(re.search(where, str(problem))) for problem in problems] == [True]
