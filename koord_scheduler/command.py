"""The command `koord-scheduler`, also with plugins that no package has installed.

from koord_scheduler.command import new_scheduler_command, with_plugin

main = new_scheduler_command(with_plugin("NetworkTraffic", NetworkTraffic))
sys.exit(main())
"""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from koord.controlplane.dispatch import Command, dispatch

if TYPE_CHECKING:
    # Not imported at run time: the help of a command does not wait for the framework.
    from koord_scheduler.framework.profile import Additions, PluginFactory, PluginRegistry

COMMANDS = {
    "place": Command("koord_scheduler.cli.place", takes_more=True),
    "simulate": Command("koord_scheduler.cli.simulate", takes_more=True),
    "explain": Command("koord_scheduler.cli.explain"),
}


def main(argv: Sequence[str] | None = None, additions: "Additions" = ()) -> int:
    """Run the command; see the help of each for the exit status.

    additions register further plugins, when the installed ones are registered.
    """
    return dispatch(COMMANDS, "koord_scheduler.daemon.run", argv, additions)


Option = Callable[["PluginRegistry"], None]
"""A change of the plugin registry, made after the installed plugins are registered."""


def with_plugin(name: str, factory: "PluginFactory") -> Option:
    """Register a plugin under the name by which profiles enable it.

    factory(args, handle) makes it; a class is its own factory. The start fails if an installed
    plugin has the same name.
    """

    def register(registry: "PluginRegistry") -> None:
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
        return main(argv, self._options)


if __name__ == "__main__":
    sys.exit(main())
