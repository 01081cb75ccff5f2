"""Profiles, services and a default configuration for decisions without a running scheduler."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from koord.cluster.decoder import Decoder
from koord.cluster.facts import ClusterPod
from koord.cluster.keptfields import NO_FIELDS, KeptFields
from koord.cluster.state import ClusterState
from koord.controlplane.offline import (
    DiscardingEventRecorder,
    EmptyInformers,
    FixedWallClock,
    UnreachableTransport,
)
from koord.kube.client import ApiClient
from koord.util.errors import KoordError
from koord_scheduler.config.profiles import Profile
from koord_scheduler.config.v1 import GROUP_VERSION, KIND
from koord_scheduler.framework.binding import PodBinding
from koord_scheduler.framework.handle import Services, new_services
from koord_scheduler.framework.nodes.scoring import NodeScoring
from koord_scheduler.framework.nodes.search import NodeSearch
from koord_scheduler.framework.profile import (
    PluginRegistry,
    ProfileError,
    ProfilePlugins,
    build_profile,
)
from koord_scheduler.planning.decision import Decider

EXTRA_PLUGINS = ("LoadAwareScheduling",)


def default_plan_configuration(schedulers: Iterable[str], known: Collection[str]) -> bytes:
    """Return a configuration file: the default plugins and BESIDE_DEFAULTS, for these schedulers.

    known: the plugins that are installed.
    """
    enabled = [{"name": name} for name in EXTRA_PLUGINS if name in known]
    plugins = {"multiPoint": {"enabled": enabled}}
    document = {
        "apiVersion": GROUP_VERSION,
        "kind": KIND,
        "profiles": [{"schedulerName": name, "plugins": plugins} for name in schedulers],
    }
    return json.dumps(document).encode()


def offline_services(cluster: ClusterState, now: float, kept: KeptFields = NO_FIELDS) -> Services:
    """Return services for a cluster as it was at so many Unix seconds.

    kept: what plugins read of pods beyond what is always kept.
    """
    clock = FixedWallClock(now)
    return new_services(
        client=ApiClient(UnreachableTransport(), clock),
        events=DiscardingEventRecorder(),
        informers=EmptyInformers(),
        cluster=cluster,
        activate=_nothing_waits,
        clock=clock,
        registry=CollectorRegistry(),
        decoder=Decoder(kept),
    )


def _nothing_waits(uids: Iterable[str]) -> None:
    """There is no queue."""


class UnbuildableProfiles(KoordError):
    """Plugins of the configuration cannot be made; the message has all that is wrong."""


class UnknownScheduler(KoordError):
    """A pod asks for a scheduler that has no profile."""


@dataclass(frozen=True, slots=True)
class PlannedProfile:
    """One profile, and what decides by it."""

    plugins: ProfilePlugins
    decider: Decider
    binding: PodBinding


class PlannedProfiles:
    """Profiles by scheduler name. Close them at the end."""

    def __init__(self, profiles: Mapping[str, PlannedProfile]) -> None:
        self._profiles = profiles

    @property
    def all(self) -> Sequence[PlannedProfile]:
        return tuple(self._profiles.values())

    def of(self, pod: ClusterPod) -> PlannedProfile:
        """The profile that a pod asks for.

        Raises:
            UnknownScheduler: there is none.
        """
        found = self._profiles.get(pod.scheduler_name)
        if found is None:
            known = ", ".join(self._profiles)
            raise UnknownScheduler(
                f"pod {pod.key}: wanted spec.schedulerName to be that of a profile ({known}), "
                f'found "{pod.scheduler_name}"'
            )
        return found

    async def close(self) -> None:
        """Let all plugins clean up."""
        for one in self._profiles.values():
            await one.plugins.close()


async def plan_profiles(
    settings: Sequence[Profile], registry: PluginRegistry, services: Services
) -> PlannedProfiles:
    """Make the plugins of all profiles.

    Raises:
        UnbuildableProfiles: as it says; what was made is closed.
    """
    made: dict[str, PlannedProfile] = {}
    errors = []
    for one in settings:
        try:
            plugins = await build_profile(one, registry, services)
        except ProfileError as err:
            errors.append(str(err))
        else:
            search = NodeSearch(plugins, services.nominator)
            binding = PodBinding(plugins)
            decider = Decider(one.scheduler_name, search, NodeScoring(plugins), binding)
            made[one.scheduler_name] = PlannedProfile(plugins, decider, binding)
    profiles = PlannedProfiles(made)
    if errors:
        await profiles.close()
        raise UnbuildableProfiles("; ".join(errors))
    return profiles
