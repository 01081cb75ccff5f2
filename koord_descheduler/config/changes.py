"""Which parts of a running descheduler a newly read configuration changes."""

from collections.abc import Mapping
from dataclasses import dataclass

from koord.component.config.follower import AppliedConfig
from koord_descheduler.config.configuration import Configuration, Profile

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
    """What to do about one profile between two cycles."""

    name: str
    before: Profile | None  # None: the profile is new
    after: Profile | None  # None: the profile is gone
    build: frozenset[str]  # plugins that need a new instance
    end: frozenset[str]  # plugins whose instance ends


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
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


def compare(before: Configuration, after: Configuration) -> Changes:
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
    return Changes(
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
