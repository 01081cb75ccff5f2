"""A program with a daemon and commands: finds the one that a command line means.

Imports nothing but the standard library: ^C ends the program without a traceback also while the
rest is being imported.
"""

import importlib
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


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

    daemon: a module that has run(argv, *more). argv None: that of the process.
    """
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
