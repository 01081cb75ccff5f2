"""The configuration that Koordinator ships, with the plugins of this tree."""

from koord.component.plugins.discovery import discover
from koord_scheduler.framework.profile import PluginRegistry, known_plugins
from koord_scheduler.plugin.testing import ProfileHarness, fake_cluster, make_pod
from koord_scheduler_plugins.elastic_quota.plugin import ElasticQuotaArgs
from tests.koord_scheduler.config.test_file import PATH, SHIPPED, parse_configuration


def test_it_starts_without_a_warning():
    registry = PluginRegistry()
    assert list(discover(registry)) == []
    found = parse_configuration(SHIPPED.encode(), PATH, known_plugins(registry))
    assert (found.configuration.not_built, found.warnings) == ((), ())
    (profile,) = found.configuration.profiles
    assert profile.args["ElasticQuota"] == ElasticQuotaArgs(
        quota_group_namespace="koordinator-system"
    )


async def test_ordinary_pods_are_placed_among_several_nodes():
    """It enables Score of plugins whose PreScore it does not enable; equal pods, and one more."""
    cluster = fake_cluster()
    for name in "abc":
        cluster.node(name)
    async with ProfileHarness(SHIPPED, cluster, installed=True) as at:
        for name, cpu in (("p", "0"), ("q", "0"), ("r", "0"), ("s", "100m")):
            main = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
            spec = {"schedulerName": "koord-scheduler", "containers": [main]}
            decided = at.decide(make_pod(name, spec=spec))
            assert (decided.status.message, set(decided.feasible)) == ("", set("abc"))
