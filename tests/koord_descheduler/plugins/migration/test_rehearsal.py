"""In dry-run quotas count as if jobs were made, in each cycle anew; nothing is written."""

from collections.abc import Sequence
from typing import Any

import pytest

from koord_descheduler.plugin import BalancePlugin, ClusterNode, Handle
from koord_descheduler.plugin.testing import FakeCluster, ProfileHarness
from koord_descheduler_plugins.migration.controller import MigrationController


class EvictAll(BalancePlugin):
    """Evicts all pods of n1."""

    def __init__(self, args: Any, handle: Handle) -> None:
        self._handle = handle

    async def balance(self, nodes: Sequence[ClusterNode]) -> None:
        for pod in self._handle.list_pods_on_node("n1"):
            await self._handle.evictor().evict(pod)


@pytest.fixture
def cluster() -> FakeCluster:
    found = FakeCluster()
    found.node("n1")
    found.node("n2")
    owner = found.workload("ReplicaSet", "web", replicas=40)
    for at in range(4):
        found.pod(f"web-{at}", "n1", owner=owner, spec={"schedulerName": "koord-scheduler"})
    return found


def harness(cluster: FakeCluster, **args: Any) -> ProfileHarness:
    own = {"defaultJobMode": "EvictDirectly", **args}
    profile = {
        "name": "p",
        "plugins": {"balance": {"enabled": [{"name": "EvictAll"}]}},
        "pluginConfig": [{"name": "MigrationController", "args": own}],
    }
    config = {
        "apiVersion": "descheduler/v1alpha2",
        "kind": "DeschedulerConfiguration",
        "deschedulingInterval": "10s",
        "dryRun": True,
        "profiles": [profile],
    }
    plugins = {"EvictAll": EvictAll, "MigrationController": MigrationController}
    return ProfileHarness(config, cluster, plugins)


async def actions(run: ProfileHarness) -> list[tuple[str, str]]:
    assert (await run.cycle()).errors == []
    return [(one.action.value, one.reason) for one in run.decisions.pods()]


QUOTA = "2 pods of node n1 are migrating, maxMigratingPerNode is 2"


async def test_quotas_count_the_pods_of_the_same_cycle(cluster: FakeCluster) -> None:
    async with harness(cluster, maxMigratingPerNode=2) as run:
        for _ in range(2):
            assert await actions(run) == [
                ("evict", ""),
                ("evict", ""),
                ("refused", QUOTA),
                ("refused", QUOTA),
            ]
            await cluster.clock.advance(10)
        assert not run.server.calls
        assert not run.services.migrations.by_uid


async def test_dry_run_of_the_plugin_itself_asks_no_quota(cluster: FakeCluster) -> None:
    """As upstream: it says yes before any filter."""
    async with harness(cluster, maxMigratingPerNode=2, dryRun=True) as run:
        assert [one for one, _ in await actions(run)] == ["evict"] * 4
