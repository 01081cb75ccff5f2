"""PodLifeTime. Source: the Kubernetes descheduler's guide, section PodLifeTime."""

from datetime import UTC, datetime
from typing import Any

import pytest

from koord.util.errors import KoordError
from koord_descheduler.plugin import Action
from koord_descheduler.plugin.testing import FakeCluster, PluginHarness, make_workload
from koord_descheduler_plugins.pod_lifecycle import PodLifeTime

WAITS = {"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}
INIT_WAITS = {"initContainerStatuses": WAITS["containerStatuses"]}
EPHEMERAL_WAITS = {"ephemeralContainerStatuses": WAITS["containerStatuses"]}
OOM = {"containerStatuses": [{"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]}


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    for name in ("n1", "n2"):
        cluster.node(name)
    return cluster


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def aged(cluster: FakeCluster, age: float, name: str = "old", node: str = "n1", **facts: Any):
    return cluster.pod(name, node, created=cluster.clock.wall() - age, **facts)


@pytest.mark.parametrize(
    ("facts", "args", "goes"),
    [
        ({}, {"maxPodLifeTimeSeconds": 599}, True),
        ({}, {"maxPodLifeTimeSeconds": 600}, False),  # older, not as old
        ({"phase": "Succeeded"}, {"maxPodLifeTimeSeconds": 599}, True),  # finished ones, too
        ({}, {"states": ["Running"]}, True),
        ({}, {"states": ["Pending"]}, False),
        ({}, {"states": ["Running"], "maxPodLifeTimeSeconds": 600}, False),  # all must hold
        ({"status": {"reason": "Shutdown"}}, {"states": ["Shutdown"]}, True),
        ({"status": WAITS}, {"states": ["CrashLoopBackOff"]}, True),
        ({"status": OOM}, {"states": ["OOMKilled"]}, True),
        ({"status": INIT_WAITS}, {"states": ["CrashLoopBackOff"]}, False),
        ({"status": INIT_WAITS},
         {"states": ["CrashLoopBackOff"], "includingInitContainers": True}, True),
        ({"status": EPHEMERAL_WAITS}, {"states": ["CrashLoopBackOff"]}, False),
        ({"status": EPHEMERAL_WAITS},
         {"states": ["CrashLoopBackOff"], "includingEphemeralContainers": True}, True),
        ({"status": OOM}, {"exitCodes": [137]}, True),
        ({"status": OOM}, {"exitCodes": [1]}, False),
        ({}, {"exitCodes": [0]}, False),
        ({"owner": make_workload("Job", "j")},
         {"states": ["Running"], "ownerKinds": {"exclude": ["Job"]}}, False),
        ({"owner": make_workload("Job", "j")},
         {"states": ["Running"], "ownerKinds": {"include": ["Job"]}}, True),
        ({}, {"states": ["Running"], "ownerKinds": {"include": ["Job"]}}, False),
        ({"namespace": "shop"}, {"states": ["Running"], "namespaces": {"exclude": ["shop"]}},
         False),
    ],
)  # fmt: skip
async def test_which_pods_leave(round_of, cluster, facts, args, goes):
    """A pod that was created 600 seconds ago."""
    aged(cluster, 600, **facts)
    gone, _ = await round_of(PodLifeTime, cluster, args)

    assert gone == (["old"] if goes else [])


@pytest.mark.parametrize(
    ("wanted", "goes"),
    [
        ({"type": "Ready"}, True),
        ({"type": "Ready", "status": "True"}, False),
        ({"reason": "PodCompleted"}, True),
        ({"type": "Initialized", "reason": "PodCompleted"}, False),
        ({"type": "Ready", "minTimeSinceLastTransitionSeconds": 300}, True),
        ({"type": "Ready", "minTimeSinceLastTransitionSeconds": 301}, False),
        ({"type": "Initialized", "minTimeSinceLastTransitionSeconds": 1}, False),  # has no time
    ],
)
async def test_conditions(round_of, cluster, wanted, goes):
    """Within one entry all must match; of several entries one does."""
    status = {
        "conditions": [
            {"type": "Initialized", "status": "True"},
            {"type": "Ready", "status": "False", "reason": "PodCompleted",
             "lastTransitionTime": moment(cluster.clock.wall() - 300)},
        ]
    }  # fmt: skip
    aged(cluster, 600, status=status)
    args = {"conditions": [{"type": "Never"}, wanted]}

    assert bool((await round_of(PodLifeTime, cluster, args))[0]) is goes


async def test_the_oldest_leave_first(round_of, cluster):
    """Over all nodes, so that limits leave the youngest."""
    for name, node, age in (("young", "n1", 100), ("oldest", "n2", 900), ("older", "n1", 500)):
        aged(cluster, age, name, node)
    args = {"maxPodLifeTimeSeconds": 50}
    gone, found = await round_of(PodLifeTime, cluster, args, maxNoOfPodsToEvictTotal=2)

    assert gone == ["oldest", "older"]
    assert found["oldest"] == (Action.EVICT, "it is 900 s old, more than 50 s")
    assert found["young"][0] is Action.REFUSED


async def test_with_a_condition_its_time_is_the_order(round_of, cluster):
    now = cluster.clock.wall()
    for name, age, since in (("a", 900, 60), ("b", 100, 90)):
        condition = {"type": "Ready", "status": "False", "lastTransitionTime": moment(now - since)}
        aged(cluster, age, name, status={"conditions": [condition]})
    args = {"conditions": [{"type": "Ready", "minTimeSinceLastTransitionSeconds": 60}]}

    assert (await round_of(PodLifeTime, cluster, args))[0] == ["b", "a"]


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"maxPodLifeTimeSeconds": -1},
        {"states": ["Running"], "ownerKinds": {"include": ["Job"], "exclude": ["Job"]}},
        {"maxPodLifeTimeSeconds": 1, "namespaces": {"include": ["a"], "exclude": ["b"]}},
    ],
)
def test_bad_arguments(cluster, args):
    with pytest.raises(KoordError):
        PluginHarness(PodLifeTime, cluster, args=args)
