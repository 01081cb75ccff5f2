"""Between the configuration and the framework: what is known of plugins, profiles as they run."""

from dataclasses import replace

from koord.component.plugins.args import args_type_of
from koord_descheduler.config.configuration import Configuration, Profile
from koord_descheduler.config.intree import IN_TREE
from koord_descheduler.config.points import KnownPlugin, KnownPlugins, Point
from koord_descheduler.framework.interfaces import (
    BalancePlugin,
    DeschedulePlugin,
    EvictPlugin,
    FilterPlugin,
)
from koord_descheduler.framework.registry import PluginFactory, PluginRegistry

_INTERFACES: dict[Point, type] = {
    Point.DESCHEDULE: DeschedulePlugin,
    Point.BALANCE: BalancePlugin,
    Point.EVICT: EvictPlugin,
    Point.FILTER: FilterPlugin,
}


def known_plugins(registry: PluginRegistry) -> KnownPlugins:
    """Return what a configuration may say of the registered plugins.

    A plugin declares its arguments with takes_args; one of Koordinator's registry that does not has
    Koordinator's. A class is for the extension points whose interfaces it has, a function for any
    until it is called.
    """
    return {entry.name: _known(entry.name, entry.plugin) for entry in registry}


def profile_settings(config: Configuration) -> tuple[Profile, ...]:
    """Return all profiles in the order in which they run, each with the dry-run that holds."""
    return tuple(
        replace(profile, dry_run=config.is_dry_run(profile)) for profile in config.profiles
    )


def _known(name: str, factory: PluginFactory) -> KnownPlugin:
    args = args_type_of(factory)
    if args is None and name in IN_TREE:
        return IN_TREE[name]
    points = frozenset(Point)
    if isinstance(factory, type):
        points = frozenset(
            point for point, base in _INTERFACES.items() if issubclass(factory, base)
        )
    return KnownPlugin(points, args)
