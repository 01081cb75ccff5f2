"""The configuration that Koordinator ships, with the plugins of this tree."""

from koord.component.plugins.discovery import discover
from koord_scheduler.framework.profile import PluginRegistry, known_plugins
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
