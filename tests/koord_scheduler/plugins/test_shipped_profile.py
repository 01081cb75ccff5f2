"""Koordinator's shipped profile, with the plugins that are installed here."""

from pathlib import Path

from koord.cluster.state import ClusterState
from koord.controlplane.commands import register_installed
from koord_scheduler.config.configuration import parse_configuration
from koord_scheduler.config.profiles import Point
from koord_scheduler.framework.profile import PluginRegistry, known_plugins
from koord_scheduler.planning.simulation import offline_services, plan_profiles
from tests.support.scheduler.shipped import SHIPPED

NAMES = (
    "Coscheduling",
    "DefaultPreBind",
    "DeviceShare",
    "ElasticQuota",
    "LoadAwareScheduling",
    "NodeNUMAResource",
    "Reservation",
    "SchedulingHint",
)


async def test_it_starts_with_all_of_its_plugins() -> None:
    """At all of their points, without a warning."""
    registry = register_installed("test", PluginRegistry())
    found = parse_configuration(SHIPPED.encode(), Path("/c.yaml"), known_plugins(registry))
    assert found.warnings == ()
    assert found.configuration.not_built == ()
    profile = found.configuration.profiles[0]
    assert [one.name for one in profile.enabled(Point.BIND)] == ["Reservation", "DefaultBinder"]
    profiles = await plan_profiles(
        found.configuration.profiles, registry, offline_services(ClusterState(), 0.0)
    )
    try:
        assert set(NAMES) < set(profiles.all[0].plugins.plugins)
    finally:
        await profiles.close()
