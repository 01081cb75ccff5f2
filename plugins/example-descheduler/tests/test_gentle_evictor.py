"""GentleEvictor, against the kit's API server."""

import json

import pytest
from koord_crowded_nodes.gentle import GentleEvictor

from koord_descheduler.plugin import EvictOptions
from koord_descheduler.plugin.testing import FakeCluster, PluginHarness


async def test_it_asks_for_exactly_this_pod_with_its_grace_period() -> None:
    """One request, counted under the plugin that wanted it."""
    cluster = FakeCluster()
    pod = cluster.pod("web", "n1")
    async with PluginHarness(GentleEvictor, cluster, args={"gracePeriod": "90s"}) as harness:
        assert await harness.evict(pod, EvictOptions(plugin_name="CrowdedNodes"))
        [call] = harness.server.calls
        assert call.where == "POST /api/v1/namespaces/default/pods/web/eviction"
        assert json.loads(call.body or b"")["deleteOptions"] == {
            "gracePeriodSeconds": 90,
            "preconditions": {"uid": pod.uid},
        }
        labels = {"strategy": "CrowdedNodes", "namespace": "default", "node": "n1"}
        assert harness.metric("descheduler_pods_evicted", result="success", **labels) == 1


async def test_protected_namespaces_and_used_up_budgets_are_not_even_asked_for() -> None:
    """The filter keeps them."""
    cluster = FakeCluster()
    dns = cluster.pod("dns", "n1", namespace="kube-system")
    web = cluster.pod("web", "n1", labels={"app": "web"})
    cluster.budget("web", {"app": "web"}, allowed=0)
    async with PluginHarness(GentleEvictor, cluster) as harness:
        assert not await harness.evict(dns)
        assert not await harness.evict(web)
        assert harness.server.calls == []


async def test_what_is_gone_is_not_evicted() -> None:
    """The server says so; the profile counts nothing."""
    cluster = FakeCluster()
    cluster.node("n1")
    pod = cluster.pod("web", "n1")
    cluster.delete("Pod", pod.key)
    async with PluginHarness(GentleEvictor, cluster) as harness:
        assert not await harness.evict(pod)
        labels = {"strategy": "", "namespace": "default", "node": "n1"}
        assert harness.metric("descheduler_pods_evicted", result="error", **labels) == 1


@pytest.mark.parametrize("args", [{"gracePeriod": "-1s"}, {"protected": ["a", "a"]}])
def test_bad_args(args: dict[str, object]) -> None:
    """A bad file is rejected."""
    with pytest.raises(Exception, match=r"gracePeriod|protected"):
        PluginHarness(GentleEvictor, FakeCluster(), args=args)
