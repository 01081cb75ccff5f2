"""RemovePodsHavingTooManyRestarts. Source: the Kubernetes descheduler's guide."""

import pytest

from koord.util.errors import KoordError
from koord_descheduler.plugin.testing import FakeCluster, PluginHarness
from koord_descheduler_plugins.pod_lifecycle import RemovePodsHavingTooManyRestarts


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    for name in ("n1", "n2"):
        cluster.node(name)
    return cluster


def restarted(count: int, init: int = 0, *, waits: bool = False) -> dict:
    state = {"waiting": {"reason": "CrashLoopBackOff"}} if waits else {"running": {}}
    return {
        "containerStatuses": [{"restartCount": count - 1}, {"restartCount": 1, "state": state}],
        "initContainerStatuses": [{"restartCount": init}],
    }


@pytest.mark.parametrize(
    ("status", "args", "goes"),
    [
        (restarted(10), {}, True),
        (restarted(9), {}, False),
        (restarted(9, init=1), {}, False),
        (restarted(9, init=1), {"includingInitContainers": True}, True),
        (restarted(10), {"states": ["Running"]}, True),
        (restarted(10), {"states": ["CrashLoopBackOff"]}, False),
        (restarted(10, waits=True), {"states": ["CrashLoopBackOff"]}, True),
        ({**restarted(10), "phase": "Pending"}, {"states": ["Running"]}, False),
        ({}, {}, False),
        (restarted(10), {"namespaces": {"exclude": ["default"]}}, False),
        (restarted(10), {"labelSelector": {"matchLabels": {"app": "web"}}}, False),
    ],
)
async def test_which_pods_leave(round_of, cluster, status, args, goes):
    """Ten restarts of all containers together are too many."""
    cluster.pod("p", "n1", status=status)
    args = {"podRestartThreshold": 10, **args}
    gone, _ = await round_of(RemovePodsHavingTooManyRestarts, cluster, args)

    assert gone == (["p"] if goes else [])


async def test_the_worst_leave_first(round_of, cluster):
    for name, node, count in (("few", "n1", 5), ("most", "n2", 50), ("many", "n1", 20)):
        cluster.pod(name, node, status=restarted(count))
    gone, _ = await round_of(
        RemovePodsHavingTooManyRestarts,
        cluster,
        {"podRestartThreshold": 5},
        maxNoOfPodsToEvictPerNode=1,
    )

    assert gone == ["most", "many"]


@pytest.mark.parametrize(
    "args", [{}, {"podRestartThreshold": 0}, {"podRestartThreshold": 1, "states": ["Pending"]}]
)
def test_bad_arguments(cluster, args):
    with pytest.raises(KoordError):
        PluginHarness(RemovePodsHavingTooManyRestarts, cluster, args=args)
