"""The configuration in force: its profiles, and what a newly read file changes about them."""

import asyncio
from collections.abc import Sequence

from koord.cluster.facts import ClusterNode
from koord.component.config.follower import AppliedConfig
from koord.util.errors import KoordError
from koord.util.logs import get_logger
from koord_descheduler.config.changes import ProfileChange, compare
from koord_descheduler.config.configuration import Configuration, EvictionLimits, Profile
from koord_descheduler.config.read import ReadConfig
from koord_descheduler.framework.configured import profile_settings
from koord_descheduler.framework.cycle import Descheduler
from koord_descheduler.framework.handle import Services
from koord_descheduler.framework.limiter import EvictionLimiter
from koord_descheduler.framework.profile import (
    ProfileError,
    ProfilePlugins,
    StagedProfile,
    TimeLimits,
)
from koord_descheduler.framework.registry import PluginRegistry
from koord_descheduler.ledger.ledger import Ledger

log = get_logger("koord_descheduler.config")


class ProfileErrors(KoordError):
    """Several profiles cannot be built."""


class LiveConfiguration:
    """Builds the profiles of a configuration, and changes them between cycles. One event loop."""

    def __init__(
        self, read: ReadConfig, registry: PluginRegistry, services: Services, ledger: Ledger
    ) -> None:
        """read is that of the start."""
        self.configuration = read.configuration
        self._registry = registry
        self._services = services
        self._ledger = ledger
        self._limiter = EvictionLimiter()
        self._profiles: dict[str, ProfilePlugins] = {}
        self._changing = asyncio.Lock()
        self._is_built = False
        self.cycles = Descheduler(
            (),
            self._nodes,
            self._limiter,
            services.metrics,
            services.clock,
            decisions=services.decisions,
            interval=self.configuration.descheduling_interval,
        )
        self._log_warnings(read)

    async def build(self) -> None:
        """Make all plugins of all profiles.

        Raises:
            KoordError: some cannot be made; the message has everything that is wrong.
        """
        async with self._changing:
            staged = await self._stage_all()
            self._put_into_force(self.configuration, staged)
            self._is_built = True

    async def _stage_all(self) -> list[StagedProfile]:
        staged, errors = list[StagedProfile](), list[ProfileError]()
        try:
            for profile in profile_settings(self.configuration):
                try:
                    staged.append(await self._stage_anew(profile))
                except ProfileError as err:
                    errors.append(err)
        except BaseException:
            await _discard(staged)
            raise
        if errors:
            await _discard(staged)
            raise ProfileErrors("; ".join(map(str, errors)))
        return staged

    async def apply(self, read: ReadConfig) -> AppliedConfig:
        """Put a newly read configuration into force between two cycles, all or nothing.

        Raises:
            ProfileError: a plugin that it needs cannot be made; nothing has changed.
        """
        async with self._changing:
            changes = compare(self.configuration, read.configuration)
            if not self._is_built:
                self.configuration = read.configuration
                return changes.applied()
            staged = await self._stage(read.configuration, changes.profiles)
            async with self.cycles.between_cycles():
                ended = self._put_into_force(read.configuration, staged)
            for each in staged:
                await each.finish()
            for profile in ended:
                await profile.close()
        if changes:
            self._log_warnings(read)
        return changes.applied()

    async def close(self) -> None:
        """Let all plugins clean up."""
        while self._profiles:
            _, profile = self._profiles.popitem()
            await profile.close()

    async def _stage(
        self, wanted: Configuration, changes: Sequence[ProfileChange]
    ) -> list[StagedProfile]:
        """Make what is new; close it if anything fails."""
        profiles = {profile.name: profile for profile in profile_settings(wanted)}
        staged: list[StagedProfile] = []
        try:
            for change in changes:
                if change.after is not None:
                    profile = profiles[change.name]
                    running = self._profiles.get(change.name)
                    if running is None or not _keeps_handle(running.settings, profile):
                        staged.append(await self._stage_anew(profile))
                    else:
                        staged.append(await running.stage(profile, self._registry, change.build))
        except BaseException:
            await _discard(staged)
            raise
        return staged

    async def _stage_anew(self, profile: Profile) -> StagedProfile:
        made = ProfilePlugins(profile, self._services, self._limiter, TimeLimits())
        return await made.stage(profile, self._registry, profile.names)

    def _put_into_force(
        self, wanted: Configuration, staged: Sequence[StagedProfile]
    ) -> list[ProfilePlugins]:
        """Go on with a configuration; return the profiles that are not needed any more."""
        known = dict(self._profiles)
        for each in staged:
            each.apply()
            known[each.wanted.name] = each.profile
        before = self._profiles
        self._profiles = {profile.name: known[profile.name] for profile in wanted.profiles}
        self.configuration = wanted
        self._ledger.settings = wanted.eviction_ledger
        self._set_limits(wanted.limits)
        self.cycles.change(
            profiles=list(self._profiles.values()),
            interval=wanted.descheduling_interval,
            node_selector=wanted.node_selector,
        )
        return [one for name, one in before.items() if self._profiles.get(name) is not one]

    def _set_limits(self, limits: EvictionLimits) -> None:
        self._limiter.limit(
            per_node=limits.per_node, per_namespace=limits.per_namespace, total=limits.total
        )

    async def _nodes(self) -> list[ClusterNode]:
        return self._services.cluster.nodes()

    def _log_warnings(self, read: ReadConfig) -> None:
        for fault in read.warnings:
            log.warning("config.suspicious", warning=str(fault))


def _keeps_handle(before: Profile, after: Profile) -> bool:
    """Whether what plugins know about their profile still holds."""
    return before.dry_run == after.dry_run and before.node_selector == after.node_selector


async def _discard(staged: Sequence[StagedProfile]) -> None:
    for each in staged:
        await each.discard()
