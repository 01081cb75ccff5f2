"""Plan evictions: run the profiles of a configuration for one cycle in dry-run."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry

from koord.cluster.facts import ClusterNode
from koord.cluster.state import ClusterState
from koord.controlplane.commands import register_installed
from koord.controlplane.offline import (
    DiscardingEventRecorder,
    EmptyInformers,
    FixedWallClock,
    UnreachableTransport,
)
from koord.kube.client import ApiClient
from koord.util.errors import KoordError
from koord_descheduler.config.configuration import Configuration
from koord_descheduler.config.pluginargs import HistoryDependent
from koord_descheduler.config.v1alpha2 import GROUP_VERSION, KIND
from koord_descheduler.framework.cycle import Descheduler
from koord_descheduler.framework.decisions import Action, Decisions, NodeDecision, PodDecision
from koord_descheduler.framework.evictor import EvictionLimiter, FrameworkMetrics
from koord_descheduler.framework.handle import Migrations, Services
from koord_descheduler.framework.profile import (
    PluginRegistry,
    ProfileError,
    ProfilePlugins,
    build_profile,
    profile_settings,
)

DEFAULT_LOW_THRESHOLDS: Mapping[str, float] = {"cpu": 45, "memory": 55}
DEFAULT_HIGH_THRESHOLDS: Mapping[str, float] = {"cpu": 75, "memory": 80}
KEPT_NAMESPACES = ("kube-system", "koordinator-system")


def default_plan_configuration(
    low: Mapping[str, float] = DEFAULT_LOW_THRESHOLDS,
    high: Mapping[str, float] = DEFAULT_HIGH_THRESHOLDS,
) -> bytes:
    """Return a configuration file: LowNodeLoad with these thresholds, in percent of allocatable.

    All else is as in the configuration that Koordinator ships, where LowNodeLoad is not enabled.
    """
    namespaces = {"exclude": list(KEPT_NAMESPACES)}
    args = {
        "LowNodeLoad": {
            "evictableNamespaces": namespaces,
            "lowThresholds": dict(low),
            "highThresholds": dict(high),
        },
        "MigrationController": {"evictionPolicy": "Eviction", "namespaces": namespaces},
    }
    profile = {
        "name": "koord-descheduler",
        "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
        "pluginConfig": [{"name": name, "args": one} for name, one in args.items()],
    }
    document = {
        "apiVersion": GROUP_VERSION,
        "kind": KIND,
        "deschedulingInterval": "10s",
        "profiles": [profile],
    }
    return json.dumps(document).encode()


def offline_services(cluster: ClusterState, now: float) -> Services:
    """Return services for a cluster as it was at so many Unix seconds."""
    clock = FixedWallClock(now)
    return Services(
        client=ApiClient(UnreachableTransport(), clock),
        events=DiscardingEventRecorder(),
        informers=EmptyInformers(),
        cluster=cluster,
        decisions=Decisions(),
        migrations=Migrations(),
        clock=clock,
        metrics=FrameworkMetrics(CollectorRegistry()),
    )


class UnbuildableProfiles(KoordError):
    """Plugins of the configuration cannot be made; the message has all that is wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The evictions that a cycle would make, with reasons."""

    at: float  # Unix seconds; the time for which it is made
    considered: int  # nodes that are ready and selected by the configuration
    nodes: tuple[NodeDecision, ...]
    pods: tuple[PodDecision, ...]
    errors: tuple[str, ...] = ()  # of plugins; the rest of the cycle was done

    def only(self, node: str) -> "Plan":
        """Return the part of the plan that concerns one node, as a source or as a candidate."""
        return replace(
            self,
            nodes=tuple(one for one in self.nodes if one.node == node),
            pods=tuple(one for one in self.pods if node in (one.node, *one.candidates)),
        )

    def count(self, action: Action) -> int:
        """The number of pods of which that would become."""
        return sum(one.action is action for one in self.pods)


async def make_plan(
    configuration: Configuration, registry: PluginRegistry, services: Services
) -> Plan:
    """Return what a cycle would do now. Nothing is evicted, whatever the configuration says.

    What plugins would wait for over several cycles counts as if it had lasted so long already.

    Raises:
        UnbuildableProfiles: as it says.
    """
    services = replace(services, decisions=Decisions())
    limits = configuration.limits
    limiter = EvictionLimiter(
        per_node=limits.per_node, per_namespace=limits.per_namespace, total=limits.total
    )
    profiles = await _build(configuration, registry, services, limiter)
    try:
        result = await Descheduler(
            profiles,
            lambda: _nodes(services),
            limiter,
            services.metrics,
            services.clock,
            decisions=services.decisions,
            interval=0,
            node_selector=configuration.node_selector,
        ).run_once()
        cycle = services.decisions.cycles[-1]
        return Plan(
            at=cycle.began,
            considered=result.nodes,
            nodes=tuple(cycle.nodes()),
            pods=tuple(cycle.pods()),
            errors=tuple(result.errors),
        )
    finally:
        await _close(profiles)


async def _build(
    configuration: Configuration,
    registry: PluginRegistry,
    services: Services,
    limiter: EvictionLimiter,
) -> list[ProfilePlugins]:
    profiles: list[ProfilePlugins] = []
    errors: list[str] = []
    for settings in profile_settings(configuration):
        planned = replace(settings, dry_run=True, args=_as_if_lasting(settings.args))
        try:
            profiles.append(await build_profile(planned, registry, services, limiter))
        except ProfileError as err:
            errors.append(str(err))
    if errors:
        await _close(profiles)
        raise UnbuildableProfiles("; ".join(errors))
    return profiles


def _as_if_lasting(args: Mapping[str, object]) -> dict[str, object]:
    return {
        name: one.as_if_lasting() if isinstance(one, HistoryDependent) else one
        for name, one in args.items()
    }


async def _nodes(services: Services) -> list[ClusterNode]:
    return services.cluster.nodes()


async def _close(profiles: list[ProfilePlugins]) -> None:
    while profiles:
        await profiles.pop().close()


def percents(text: str) -> dict[str, float]:
    """Read the value of an option: cpu=45,memory=55."""
    found = {}
    for part in text.split(","):
        name, _, amount = part.partition("=")
        try:
            found[name.strip()] = float(amount)
        except ValueError:
            raise argparse.ArgumentTypeError(f"wanted cpu=45,memory=55, found {text!r}") from None
    return found


def installed_plugins(name: str) -> PluginRegistry:
    """The plugins that are installed; what is wrong with one is a warning of the command."""
    return register_installed(name, PluginRegistry())
