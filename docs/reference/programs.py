"""The command lines of the installed programs as parsers, for completions and man pages."""

import argparse
from collections.abc import Iterable, Iterator, Mapping

import shtab

from koord.component.flags import FlagRow
from koord.component.http.exposition import Exposition
from koord_descheduler.cli import explain as explain_eviction
from koord_descheduler.cli import plan, record, replay
from koord_descheduler.daemon.settings import new_flags as descheduler_flags
from koord_scheduler.cli import explain as explain_placement
from koord_scheduler.cli import place, simulate
from koord_scheduler.daemon.settings import new_flags as scheduler_flags
from koordlet.cli.ctl.arguments import parser as koordletctl
from koordlet.cli.kubectl import parser as kubectl_koordlet
from koordlet.daemon.environment import Mode
from koordlet.plugin.testing import SimulatedClock
from koordlet.server.app import FAMILIES
from reference.fakedaemon import settings_of

_KOORDLET = "Measure a node, report it, and run QoS plugins."
_DESCHEDULER = "Move pods from nodes with a high load to others."
_SCHEDULER = "Place pods by what nodes have, by their load and by the network."
_HOST = Mode(standalone=True, host_mode=True, reason="")
_ROOT = 0  # user id
_COMMANDS = {
    "koord-descheduler": {"plan": plan, "explain": explain_eviction, "record": record,
                          "replay": replay},
    "koord-scheduler": {"place": place, "simulate": simulate, "explain": explain_placement},
}  # fmt: skip
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


def programs() -> Mapping[str, argparse.ArgumentParser]:
    """All of them by name, with what their arguments are completed by."""
    settings = settings_of([], exposition=Exposition(FAMILIES), clock=SimulatedClock())
    settings.options.adopt_mode(_HOST, uid=_ROOT, environ={})
    found = {
        "koordletctl": koordletctl(),
        "kubectl-koordlet": kubectl_koordlet(),
        "koordlet": _daemon("koordlet", _KOORDLET, settings.flags.describe()),
        "koord-descheduler": _daemon(
            "koord-descheduler", _DESCHEDULER, descheduler_flags()[0].describe()
        ),
        "koord-scheduler": _daemon("koord-scheduler", _SCHEDULER, scheduler_flags()[0].describe()),
    }
    for name, parser in found.items():
        _complete(parser, name)
    return found


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
        for command, module in _COMMANDS[name].items():
            own = module.parser()
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
