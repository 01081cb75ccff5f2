"""A koord-scheduler with plugins of one's own, without a package that is installed for them.

from koord_scheduler.command import new_scheduler_command, with_plugin

main = new_scheduler_command(with_plugin("NetworkTraffic", NetworkTraffic))
sys.exit(main())
"""

from collections.abc import Callable, Sequence

from koord_scheduler.framework.profile import PluginFactory, PluginRegistry

Option = Callable[[PluginRegistry], None]
"""A change of the plugin registry, made after the installed plugins are registered."""


def with_plugin(name: str, factory: PluginFactory) -> Option:
    """Register a plugin under the name by which profiles enable it.

    factory(args, handle) makes it; a class is its own factory. The start fails if an installed
    plugin has the same name.
    """

    def register(registry: PluginRegistry) -> None:
        registry.register(name, factory)

    return register


def new_scheduler_command(*options: Option) -> "SchedulerCommand":
    """Return what runs koord-scheduler, with all its flags and commands; nothing happens yet."""
    return SchedulerCommand(options)


class SchedulerCommand:
    """The command `koord-scheduler` with further plugins."""

    def __init__(self, options: Sequence[Option]) -> None:
        self._options = tuple(options)

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """Run it; argv None: the arguments of the process. Returns the exit status."""
        from koord_scheduler.cli.scheduler import main

        return main(argv, self._options)
