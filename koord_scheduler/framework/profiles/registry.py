"""The plugins of a koord-scheduler, by name: factories, each with its origin."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from koord.component.plugins.factories import FactoryRegistry
from koord_scheduler.framework.handle import Handle
from koord_scheduler.framework.interfaces import Plugin

PluginFactory = Callable[[Any, Handle], Plugin | Awaitable[Plugin]]
"""Makes a plugin from its args (None: the profile has none) and the handle of its profile."""


class PluginRegistry(FactoryRegistry[PluginFactory]):
    """Factories in the order of registration."""

    group = "koord_scheduler.plugins"
    shipped = "koordlet"
    base = Plugin


Additions = Sequence[Callable[[PluginRegistry], None]]
"""Called with a registry when the installed plugins are in it, to register further ones."""
