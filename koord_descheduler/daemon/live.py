"""The configuration in force: its profiles, and what a newly read file changes about them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from koord.cluster.keptfields import KeptFields
from koord.component.config.follower import AppliedConfig
from koord.util.errors import KoordError
from koord.util.logs import get_logger
from koord_descheduler.config import Configuration, EvictionLimits, Profile, ReadConfig
from koord_descheduler.framework.evictor import EvictionLimiter
from koord_descheduler.framework.handle import Services
from koord_descheduler.framework.profile import (
    Descheduler,
    PluginRegistry,
    ProfileError,
    ProfilePlugins,
    StagedProfile,
    TimeLimits,
    fields_read,
    profile_settings,
)
from koord_descheduler.ledger.ledger import Ledger

# fields of Configuration by the names that files have for them
_NEEDS_RESTART = {
    "leaderElection": "leader_election",
    "clientConnection": "client_connection",
    "enableProfiling": "enable_profiling",
    "enableContentionProfiling": "enable_contention_profiling",
    "healthzBindAddress": "healthz_bind_address",
    "metricsBindAddress": "metrics_bind_address",
}
_LIVE = {
    "deschedulingInterval": "descheduling_interval",
    "dryRun": "dry_run",
    "nodeSelector": "node_selector",
    "evictionLedger": "eviction_ledger",
}
_LIMITS = {
    "maxNoOfPodsToEvictPerNode": "per_node",
    "maxNoOfPodsToEvictPerNamespace": "per_namespace",
    "maxNoOfPodsToEvictTotal": "total",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileChange:
    """The change of one profile between two cycles."""

    name: str
    before: Profile | None  # None: the profile is new
    after: Profile | None  # None: the profile is gone
    build: frozenset[str]  # plugins that need a new instance
    end: frozenset[str]  # plugins whose instance ends


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigurationChanges:
    """The difference of two configurations."""

    live: tuple[str, ...] = ()  # process-wide fields that take effect with the next cycle
    needs_restart: tuple[str, ...] = ()  # fields that wait for a restart
    profiles: tuple[ProfileChange, ...] = ()  # those that differ; new ones in their order
    is_reordered: bool = False  # the profiles that both have run in another order

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.live or self.needs_restart or self.profiles or self.is_reordered)

    def applied(self) -> AppliedConfig:
        """The same for the log, once it is in force."""
        names = (f"profiles[{change.name}]" for change in self.profiles)
        order = ("profiles",) if self.is_reordered else ()
        return AppliedConfig(changed=(*self.live, *order, *names), needs_restart=self.needs_restart)


def compare(before: Configuration, after: Configuration) -> ConfigurationChanges:
    """Return what is to be done so that after is in force instead of before.

    A plugin gets a new instance when its arguments differ, or what its profile says of nodes or
    dry-run. One that moves to another extension point, or in its order, keeps its instance.
    """
    live = _differing(before, after, _LIVE) + _differing(before.limits, after.limits, _LIMITS)
    old = {profile.name: profile for profile in before.profiles}
    new = {profile.name: profile for profile in after.profiles}
    changes = []
    for name in [*new, *(name for name in old if name not in new)]:
        change = _profile_change(name, before, after, old.get(name), new.get(name))
        if change.before != change.after or change.build:
            changes.append(change)
    return ConfigurationChanges(
        live=live,
        needs_restart=_differing(before, after, _NEEDS_RESTART),
        profiles=tuple(changes),
        is_reordered=[name for name in old if name in new] != [name for name in new if name in old],
    )


def _profile_change(
    name: str,
    before: Configuration,
    after: Configuration,
    one: Profile | None,
    other: Profile | None,
) -> ProfileChange:
    had = one.names if one else frozenset[str]()
    has = other.names if other else frozenset[str]()
    kept = had & has
    if one is not None and other is not None:
        is_same = one.node_selector == other.node_selector and before.is_dry_run(
            one
        ) == after.is_dry_run(other)
        same_args = (plugin for plugin in kept if one.args.get(plugin) == other.args.get(plugin))
        kept = frozenset(same_args if is_same else ())
    return ProfileChange(name=name, before=one, after=other, build=has - kept, end=had - kept)


def _differing(before: object, after: object, fields: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the fields in which two objects differ."""
    return tuple(
        name
        for name, attribute in fields.items()
        if getattr(before, attribute) != getattr(after, attribute)
    )


log = get_logger("koord_descheduler.config")


class ProfileErrors(KoordError):
    """Several profiles cannot be built."""


KeepFields = Callable[[KeptFields], Awaitable[None]]
"""Has fields of pods and nodes kept, and returns when all that are known have them."""


class LiveConfiguration:
    """Builds the profiles of a configuration, and changes them between cycles. One event loop."""

    def __init__(
        self,
        read: ReadConfig,
        registry: PluginRegistry,
        services: Services,
        ledger: Ledger,
        *,
        keep: KeepFields,
    ) -> None:
        """read is that of the start, whose fields are kept from the start."""
        self._keep = keep
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
            services.cluster.nodes,
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
            before = fields_read(self.configuration, self._registry)
            after = fields_read(read.configuration, self._registry)
            await self._keep(before | after)
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
            await self._keep(after)
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

    def _log_warnings(self, read: ReadConfig) -> None:
        for fault in read.warnings:
            log.warning("config.warning", warning=str(fault))


def _keeps_handle(before: Profile, after: Profile) -> bool:
    """Whether what plugins know about their profile still holds."""
    return before.dry_run == after.dry_run and before.node_selector == after.node_selector


async def _discard(staged: Sequence[StagedProfile]) -> None:
    for each in staged:
        await each.discard()
