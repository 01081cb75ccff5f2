"""A program with a daemon and commands: finds the one that a command line means.

Imports nothing but the standard library: ^C ends the program without a traceback also while the
rest is being imported.
"""

import importlib
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_EXTRA = frozenset({"numpy", "msgspec", "httptools"})
"""Packages that the extras of the control plane install."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command, in a module that has main(argv), which returns the exit status."""

    module: str
    handles_interrupt: bool = True  # False: ^C ends it as it ends a daemon
    takes_more: bool = False  # main also takes what dispatch is given beyond argv


def dispatch(
    commands: Mapping[str, Command], daemon: str, argv: Sequence[str] | None, *more: object
) -> int:
    """Run the command that is named first, else the daemon; return the exit status.

    daemon: a module that has run(argv, *more), in the package of its program. argv None: that of
    the process. Status 1, with one line on stderr: a package of the program's extra is missing.
    """
    try:
        return _dispatch(commands, daemon, argv, *more)
    except ModuleNotFoundError as err:
        if err.name not in _EXTRA:
            raise
        program = daemon.partition(".")[0].replace("_", "-")
        print(
            f"{program}: the Python package {err.name} is not installed; "
            f"pip install 'koordlet[{program.removeprefix('koord-')}]'",
            file=sys.stderr,
        )
        return 1


def _dispatch(
    commands: Mapping[str, Command], daemon: str, argv: Sequence[str] | None, *more: object
) -> int:
    given = sys.argv[1:] if argv is None else argv
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        command = commands.get(given[0]) if given else None
        if command is None:
            return int(importlib.import_module(daemon).run(given, *more))
        if command.handles_interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        arguments = more if command.takes_more else ()
        return int(importlib.import_module(command.module).main(given[1:], *arguments))
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the event loop left Python's own handler
