"""Between the configuration and the framework: what is known of plugins."""

import typing

from koord.component.plugins.args import args_type_of
from koord_scheduler.config.known import KnownPlugin, KnownPlugins
from koord_scheduler.config.points import Point
from koord_scheduler.framework.interfaces import Plugin
from koord_scheduler.framework.profiles.profile import INTERFACES
from koord_scheduler.framework.profiles.registry import PluginFactory, PluginRegistry


def known_plugins(registry: PluginRegistry) -> KnownPlugins:
    """Return what a configuration may say of the registered plugins.

    A plugin declares its arguments with takes_args. A class is for the extension points whose
    interfaces it has, and so is what a function is annotated to return; another function may make
    a plugin of any, until it is called.
    """
    return {entry.name: _known(entry.plugin) for entry in registry}


def _known(factory: PluginFactory) -> KnownPlugin:
    made = _made_by(factory)
    if made is None:
        return KnownPlugin(frozenset(Point), args_type_of(factory), is_opaque=True)
    points = (point for point, bases in INTERFACES.items() if issubclass(made, bases))
    return KnownPlugin(frozenset(points), args_type_of(factory))


def _made_by(factory: PluginFactory) -> type[Plugin] | None:
    """The class of the plugins that a factory makes; None: it is not known."""
    if isinstance(factory, type):
        return factory
    try:
        found = typing.get_type_hints(factory).get("return")
    except Exception:  # annotations of a third party's code
        return None
    return (
        found
        if isinstance(found, type) and found is not Plugin and issubclass(found, Plugin)
        else None
    )
