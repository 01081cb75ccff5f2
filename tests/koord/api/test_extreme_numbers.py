"""Objects from outside with a number, anywhere in them, that no one means: taken or refused."""

import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.annotations import device_allocations, scaling_factors, usage_thresholds
from koord.api.kubelet import parse_cpu_manager_state, parse_kubelet_config
from koord.api.node import parse_node
from koord.api.nodemetric import parse_spec
from koord.api.nodeslo import merge_nodeslo
from koord.api.pod import parse_pod
from koord.api.podmigrationjob import read_job
from koord.api.reservation import read_reservation
from koord.cluster import kinds
from koord.cluster.decoder import Decoder
from koord.util.documents import decode
from koord.util.errors import InvalidObject, KoordError
from koord_descheduler.config import parse_configuration
from koordlet.host.devices import parse_xpus
from koordlet.prediction.checkpoints import decode_checkpoint
from koordlet.rules.device_object import parse_published_devices
from koordlet.rules.node_resource_topology import parse_published_topology
from tests.support.clusters import node, pod
from tests.support.descheduler.shipped_plugins import IN_TREE
from tests.support.nodeslo import FULL_SLO

Json = Any

EXTREME = [
    "1" + "0" * 400, "-1" + "0" * 400, "1e999", "1e308", "1e-400", "9223372036854775808", "-1",
    "0", "1.5", "NaN", "true", "[]", '"1e999999999"', '"' + "9" * 400 + '"',
    '"0001-01-01T00:00:00+23:59"', '"9999999999h"',
]  # fmt: skip
META = {"name": "n", "uid": "u", "resourceVersion": "1"}
USAGE = {"resources": {"cpu": "1", "memory": 1024}}
METRIC = {
    "metadata": {"name": "n1"},
    "spec": {
        "metricCollectPolicy": {
            "aggregateDurationSeconds": 300,
            "reportIntervalSeconds": 60,
            "nodeAggregatePolicy": {"durations": ["5m0s", "10m0s"]},
        }
    },
    "status": {
        "updateTime": "2026-07-24T06:52:45Z",
        "nodeMetric": {
            "nodeUsage": USAGE,
            "aggregatedNodeUsages": [{"duration": "5m0s", "usage": {"p95": USAGE}}],
            "systemUsage": USAGE,
        },
        "podsMetric": [{"name": "a", "namespace": "b", "podUsage": USAGE, "priority": "x"}],
        "hostApplicationMetric": [{"name": "a", "usage": USAGE}],
        "prodReclaimableMetric": {"resource": USAGE},
    },
}
POD = {
    **pod("web", requests={"cpu": 1}, priority=5, terminationGracePeriodSeconds=30),
    "status": {"phase": "Running", "startTime": "2026-07-24T06:52:45Z",
               "containerStatuses": [{"name": "c", "restartCount": 3}]},
}  # fmt: skip
NODE = {
    **node("n1"),
    "status": {**node("n1")["status"], "capacity": {"cpu": 4, "memory": 5},
               "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}},
}  # fmt: skip
MEMORY = {"bucketWeights": {"1": 10, "2": 3}, "totalWeight": 1.5,
          "referenceTimestamp": "2026-07-24T06:52:45Z"}  # fmt: skip
DEVICE = {"type": "gpu", "minor": 0, "health": True, "resources": {"koordinator.sh/gpu-core": 100},
          "topology": {"nodeID": 0, "socketID": 0, "pcieID": "0"}}  # fmt: skip
DESCHEDULER = {
    "apiVersion": "descheduler/v1alpha2",
    "kind": "DeschedulerConfiguration",
    "deschedulingInterval": "60s",
    "maxNoOfPodsToEvictPerNode": 3,
    "leaderElection": {"leaseDuration": "15s"},
    "clientConnection": {"qps": 5, "burst": 3},
    "profiles": [
        {
            "name": "p",
            "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
            "pluginConfig": [
                {
                    "name": "LowNodeLoad",
                    "args": {
                        "lowThresholds": {"cpu": 45},
                        "highThresholds": {"cpu": 75},
                        "anomalyCondition": {"consecutiveAbnormalities": 5, "timeout": "1m0s"},
                        "resourceWeights": {"cpu": 1},
                        "nodeMetricExpirationSeconds": 180,
                        "detectorCacheTimeout": "5m0s",
                        "numberOfNodes": 1,
                    },
                },
                {
                    "name": "MigrationController",
                    "args": {
                        "evictQPS": "10",
                        "evictBurst": 1,
                        "maxMigratingPerNode": 2,
                        "maxMigratingPerWorkload": 3,
                        "maxUnavailablePerWorkload": "50%",
                        "maxMigratingGlobally": 5,
                        "defaultJobTTL": "5m0s",
                        "objectLimiters": {"workload": {"duration": "5m0s", "maxMigrating": 5}},
                    },
                },
            ],
        }
    ],
}

Read = Callable[[bytes], object]


def of_text(read: Callable[[str], object]) -> Read:
    return lambda data: read(data.decode())


def of_json(read: Callable[[object], object]) -> Read:
    """As the API server's responses are decoded, which lets all numbers through."""
    return lambda data: read(json.loads(data))


def slo(data: bytes) -> object:
    return merge_nodeslo({"spec": json.loads(data)})


def of_kind(kind: kinds.ObjectKind[Any]) -> Read:
    return lambda data: Decoder().object(kind, data)


def descheduler(data: bytes) -> object:
    return parse_configuration(data, Path("file"), IN_TREE)


DECODERS: dict[str, tuple[Read, Json]] = {
    "NodeMetric's spec": (of_json(parse_spec), METRIC),
    "NodeMetric": (of_kind(kinds.NODE_METRIC), METRIC),
    "NodeSLO": (slo, FULL_SLO),
    "pod": (of_json(parse_pod), POD),
    "pod of the cluster": (of_kind(kinds.POD), POD),
    "node": (of_json(parse_node), NODE),
    "node of the cluster": (of_kind(kinds.NODE), NODE),
    "kubelet's configuration": (
        of_json(parse_kubelet_config),
        {"kubeletconfig": {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0",
                           "kubeReserved": {"cpu": 1}, "evictionHard": {"memory.available": 3}}},
    ),
    "CPU manager's state": (
        of_json(parse_cpu_manager_state),
        {"policyName": "static", "defaultCpuSet": "0-3", "entries": {"u": {"c": "1"}},
         "checksum": 5},
    ),
    "PodMigrationJob": (
        of_json(read_job),
        {"metadata": {"name": "j", "creationTimestamp": "2026-07-24T06:52:45Z"},
         "spec": {"ttl": "5m0s", "paused": False, "podRef": {"name": "a"}},
         "status": {"phase": "Running", "conditions": [{"type": "x", "status": "True"}]}},
    ),
    "Reservation": (
        of_json(read_reservation),
        {"metadata": {"name": "r"}, "status": {"phase": "Available", "nodeName": "n",
                                               "currentOwners": [{"name": "x"}]}},
    ),
    "usage thresholds": (
        of_text(usage_thresholds),
        {"usageThresholds": {"cpu": 60}, "prodUsageThresholds": {"cpu": 50},
         "aggregatedUsage": {"usageThresholds": {"cpu": 70}, "usageAggregationDuration": "5m0s"}},
    ),
    "scaling factors": (of_text(scaling_factors), {"cpu": 80, "memory": 70}),
    "allocated devices": (
        of_text(device_allocations),
        {"gpu": [{"minor": 0, "resources": {"koordinator.sh/gpu-core": 100}}]},
    ),
    "Device": (of_json(parse_published_devices), {"metadata": META, "spec": {"devices": [DEVICE]}}),
    "NodeResourceTopology": (
        of_json(parse_published_topology),
        {"metadata": META, "zones": [{"name": "node-0", "type": "Node", "resources": [
            {"name": "cpu", "capacity": 4, "allocatable": 4, "available": 4}]}]},
    ),
    "XPU file": (
        lambda data: parse_xpus(data, "file"),
        [{"vendor": "v", "model": "m", "minor": 0, "uuid": "u", "resources": {"x": 1},
          "topology": {"nodeID": 0, "socketID": 0}, "status": {"healthy": True}}],
    ),
    "checkpoint": (
        lambda data: decode_checkpoint(data, "node"),
        {"UID": "node", "CPU": MEMORY, "Memory": MEMORY, "LastUpdated": "2026-07-24T06:52:45Z"},
    ),
    "configuration": (descheduler, DESCHEDULER),
    "document": (lambda data: decode(data, "file"), {"a": 1}),
}  # fmt: skip


def places(value: Json, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Each place in a document, but the document itself."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in inner:
        yield (*path, key)
        if isinstance(item, dict | list):
            yield from places(item, (*path, key))


def spoilt(document: Json, path: tuple[Any, ...], text: str) -> bytes:
    """The document as JSON with this text at a place."""
    changed = copy.deepcopy(document)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = "@@"
    return json.dumps(changed).replace('"@@"', text).encode()


@pytest.mark.parametrize("name", DECODERS)
def test_the_documents_are_good(name: str) -> None:
    """Else the test below would test nothing."""
    read, document = DECODERS[name]
    read(json.dumps(document).encode())


@pytest.mark.parametrize("name", DECODERS)
def test_each_extreme_number_at_each_place(name: str) -> None:
    read, document = DECODERS[name]
    for path in places(document):
        for text in EXTREME:
            with_it = spoilt(document, path, text)
            try:
                read(with_it)
            except (KoordError, json.JSONDecodeError):
                continue
            except Exception as err:
                raise AssertionError(f"{path}: {text:.40}: {err!r}") from err


@given(number=st.integers() | st.floats() | st.integers(10**18, 10**420))
def test_intervals_of_a_node_metric_are_seconds_that_can_be_waited(number: float) -> None:
    """Whatever the object says, or it is refused."""
    policy = {"aggregateDurationSeconds": number, "reportIntervalSeconds": number}
    try:
        spec = parse_spec({"spec": {"metricCollectPolicy": policy}})
    except InvalidObject:
        assert not isinstance(number, int) or not -(2**63) <= number < 2**63
        return
    assert math.isfinite(spec.report_interval)
    assert 60 <= spec.aggregate_duration <= 3600
