"""RemoveFailedPods. Source: the Kubernetes descheduler's guide, section RemoveFailedPods."""

from typing import Any

import pytest

from koord.util.errors import KoordError
from koord_descheduler.plugin import Action
from koord_descheduler.plugin.testing import FakeCluster, PluginHarness, make_workload
from koord_descheduler_plugins.pod_lifecycle import RemoveFailedPods

JOB = make_workload("Job", "batch")


def ended(reason: str = "Error", code: int = 1) -> dict[str, Any]:
    return {"state": {"terminated": {"reason": reason, "exitCode": code}}}


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    for name in ("n1", "n2"):
        cluster.node(name)
    return cluster


def failed(cluster: FakeCluster, name: str = "failed", *, age: float = 7200, **facts: Any) -> None:
    created = cluster.clock.wall() - age
    cluster.pod(name, "n1", **{"phase": "Failed", "created": created, **facts})


@pytest.mark.parametrize(
    ("facts", "args", "goes"),
    [
        ({}, {}, True),
        ({"phase": "Running"}, {}, False),
        ({"phase": "Succeeded"}, {}, False),
        ({"age": 3599}, {}, False),  # the default is an hour
        ({"age": 3600}, {}, True),
        ({"age": 10}, {"minPodLifetimeSeconds": 10}, True),
        ({"age": 0}, {"minPodLifetimeSeconds": 0}, True),
        ({"owner": JOB}, {"excludeOwnerKinds": ["Job"]}, False),
        ({"owner": JOB}, {"excludeOwnerKinds": ["ReplicaSet"]}, True),
        ({"status": {"reason": "NodeAffinity"}}, {"reasons": ["NodeAffinity"]}, True),
        ({"status": {"reason": "Evicted"}}, {"reasons": ["NodeAffinity"]}, False),
        ({"status": {"containerStatuses": [ended("OOMKilled")]}}, {"reasons": ["OOMKilled"]}, True),
        ({"status": {"containerStatuses": [{"state": {"waiting": {"reason": "CreateError"}}}]}},
         {"reasons": ["CreateError"]}, True),
        ({"status": {"initContainerStatuses": [ended("CreateError")]}},
         {"reasons": ["CreateError"]}, False),
        ({"status": {"initContainerStatuses": [ended("CreateError")]}},
         {"reasons": ["CreateError"], "includingInitContainers": True}, True),
        ({"status": {"containerStatuses": [ended(code=137)]}}, {"exitCodes": [1, 137]}, True),
        ({"status": {"containerStatuses": [ended(code=2)]}}, {"exitCodes": [1]}, False),
        ({"status": {"initContainerStatuses": [ended(code=1)]}}, {"exitCodes": [1]}, False),
        ({"status": {"initContainerStatuses": [ended(code=1)]}},
         {"exitCodes": [1], "includingInitContainers": True}, True),
        ({}, {"exitCodes": [0]}, False),  # no container has ended
        ({"namespace": "shop"}, {"namespaces": {"include": ["bank"]}}, False),
        ({"namespace": "shop"}, {"namespaces": {"exclude": ["bank"]}}, True),
        ({"labels": {"app": "a"}}, {"labelSelector": {"matchLabels": {"app": "b"}}}, False),
    ],
)  # fmt: skip
async def test_which_failed_pods_leave(round_of, cluster, facts, args, goes):
    failed(cluster, **facts)
    gone, _ = await round_of(RemoveFailedPods, cluster, args)

    assert gone == (["failed"] if goes else [])


async def test_a_failed_pod_that_stays_is_explained(round_of, cluster):
    failed(cluster, age=60)
    _, found = await round_of(RemoveFailedPods, cluster)

    assert found["failed"] == (
        Action.STAY,
        "it has failed, but its age of 60 s is less than minPodLifetimeSeconds, 3600 s",
    )


async def test_a_pod_without_creation_time_stays(round_of, cluster):
    cluster.pod("odd", "n1", phase="Failed")

    assert (await round_of(RemoveFailedPods, cluster))[0] == []


@pytest.mark.parametrize(
    "args",
    [
        {"namespaces": {"include": ["a"], "exclude": ["b"]}},
        {"minPodLifetimeSeconds": -1},
        {"exitCodes": ["one"]},
        {"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}},
    ],
)
def test_bad_arguments(cluster, args):
    with pytest.raises(KoordError):
        PluginHarness(RemoveFailedPods, cluster, args=args)


def test_it_is_no_balance_plugin(cluster):
    """The wrong extension point is refused at the start, not in each cycle."""
    with pytest.raises(KoordError, match="RemoveFailedPods"):
        PluginHarness(RemoveFailedPods, cluster, points=["balance"])
