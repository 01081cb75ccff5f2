"""The command lines of the installed programs as parsers, for completions and man pages."""

import argparse
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points

import shtab

from koord.component.flags import FlagRow

_KOORDLET = "Measure a node, report it, and run QoS plugins."
_DESCHEDULER = "Move pods from nodes with a high load to others."
_MANAGER = "Offer what prod pods leave to batch and mid pods."
_SCHEDULER = "Place pods by what nodes have, by their load and by the network."
_ROOT = 0  # user id
_COMMANDS = {
    "koord-descheduler": ("plan", "explain", "record", "replay"),
    "koord-manager": ("plan", "explain"),
    "koord-scheduler": ("place", "simulate", "explain"),
}  # each a module of the program's package cli
_NAMES = {
    ("explain", "pod"): "pods",
    ("metrics", "pod"): "pods",
    ("audit", "pod"): "pods",
    ("metrics", "name"): "kinds",
    ("release", "plugin"): "plugins",
    ("dry-run", "plugin"): "plugins",
}
"""What a command's argument names: words that the daemon knows."""

_FILES = ("file", "kubeconfig", "config", "nodeslo", "source", "record", "pods", "out")


def parser_of(program: str) -> argparse.ArgumentParser:
    """Return the parser of a program, with what its arguments are completed by.

    Raises:
        ModuleNotFoundError: the program cannot run here; an extra is not installed.
    """
    found = _PARSERS[program]()
    _complete(found, program)
    return found


def _koordletctl() -> argparse.ArgumentParser:
    from koordlet.cli.ctl.arguments import parser

    return parser()


def _kubectl_koordlet() -> argparse.ArgumentParser:
    from koordlet.cli.kubectl import parser

    return parser()


def _koordlet() -> argparse.ArgumentParser:
    from koord.component.http.exposition import Exposition
    from koord.component.plugins.discovery import discover, installed_plugins
    from koord.util.clock import SystemClock
    from koordlet.daemon.environment import Mode
    from koordlet.daemon.settings import load_settings
    from koordlet.plugin.registry import PluginRegistry
    from koordlet.server.app import FAMILIES

    def discover_shipped(registry: PluginRegistry) -> list[str]:
        found = installed_plugins(entry_points(group=registry.group))
        return discover(registry, [e.entry for e in found if e.distribution == registry.shipped])

    metrics = Exposition(FAMILIES).internal
    settings = load_settings(
        [], {}, clock=SystemClock(), metrics=metrics, discover=discover_shipped, laid_out=True
    )
    host = Mode(standalone=True, host_mode=True, reason="")
    settings.options.adopt_mode(host, uid=_ROOT, environ={})
    return _daemon("koordlet", _KOORDLET, settings.flags.describe())


def _koord_descheduler() -> argparse.ArgumentParser:
    from koord_descheduler.daemon.run import new_flags

    return _daemon("koord-descheduler", _DESCHEDULER, new_flags()[0].describe())


def _koord_manager() -> argparse.ArgumentParser:
    from koord_manager.daemon.settings import new_flags

    return _daemon("koord-manager", _MANAGER, new_flags()[0].describe())


def _koord_scheduler() -> argparse.ArgumentParser:
    from koord_scheduler.daemon.settings import new_flags

    return _daemon("koord-scheduler", _SCHEDULER, new_flags()[0].describe())


_PARSERS = {
    "koordletctl": _koordletctl,
    "kubectl-koordlet": _kubectl_koordlet,
    "koordlet": _koordlet,
    "koord-descheduler": _koord_descheduler,
    "koord-manager": _koord_manager,
    "koord-scheduler": _koord_scheduler,
}


def programs() -> Mapping[str, argparse.ArgumentParser]:
    """Return the parsers of all programs by name; errors as those of parser_of."""
    return {name: parser_of(name) for name in _PARSERS}


def subcommands(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Name, summary and parser of each command that a parser lists."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for listed in action._choices_actions:
                yield listed.dest, listed.help or "", action.choices[listed.dest]


def _daemon(name: str, about: str, rows: Iterable[FlagRow]) -> argparse.ArgumentParser:
    """Flags of Go's syntax as options, those of each plugin in a group of their own."""
    parser = argparse.ArgumentParser(prog=name, description=about)
    groups: dict[str, argparse._ArgumentGroup] = {}
    for row in rows:
        if row.inert:
            continue
        if row.owner == name:
            add = parser.add_argument
        else:
            if row.owner not in groups:
                groups[row.owner] = parser.add_argument_group(f"Flags of {row.owner}")
            add = groups[row.owner].add_argument
        default = f" (default {row.default})" if row.default else ""
        help = f"{row.help}{default}".replace("%", "%%")
        if row.kind == "bool":
            add(f"--{row.name}", action="store_true", help=help)
        else:
            add(f"--{row.name}", metavar=row.kind.upper(), help=help)
    if name in _COMMANDS:
        commands = parser.add_subparsers(metavar="COMMAND")
        for command in _COMMANDS[name]:
            own = import_module(f"{name.replace('-', '_')}.cli.{command}").parser()
            about = (
                (own.description or "").partition(". ")[0].partition(".\n")[0].replace("\n", " ")
            )
            commands.add_parser(
                command,
                prog=f"{name} {command}",
                help=about.rstrip("."),
                description=own.description,
                epilog=own.epilog,
                parents=[own],
                conflict_handler="resolve",
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
    return parser


def _complete(parser: argparse.ArgumentParser, command: str) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            listed = {choice.dest for choice in action._choices_actions}
            for name in set(action.choices) - listed:  # is for completions themselves
                del action.choices[name]
            for name, child in action.choices.items():
                _complete(child, name)
            continue
        names = _NAMES.get((command, action.dest))
        if names:
            action.complete = shtab.cmd(f"koordletctl words {names} 2>/dev/null")  # type: ignore[attr-defined]
        elif action.dest.endswith("dir"):
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.dest.endswith(_FILES):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
