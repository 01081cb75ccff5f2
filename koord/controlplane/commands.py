"""What commands beside a daemon share: how they end, what they print on errors, options."""

import argparse
import os
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from koord.component.config.faults import InvalidConfig
from koord.component.plugins.discovery import discover
from koord.component.plugins.factories import FactoryRegistry
from koord.util.errors import InvalidObject, KoordError, OptionError
from koord.util.logs import LevelSpec, configure
from koord.util.printable import printable

R = TypeVar("R", bound=FactoryRegistry[Any])

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
EXIT = "Exit status: 0 done, 1 failed, 2 the command line or a file is wrong."
MOST = 4000  # characters of a message
NOW_HELP = "time of the plan, as 2026-07-24T06:52:45Z; by default now, or that of the dump"


def run_command(name: str, act: Callable[[], None]) -> int:
    """Do what a command does, which prints to stdout; return the exit status."""
    configure("console", LevelSpec("error"), name)
    try:
        act()
        sys.stdout.flush()
    except (OptionError, InvalidConfig, InvalidObject) as err:
        say(name, str(err))
        return USAGE
    except KoordError as err:
        say(name, str(err))
        return FAILED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the rest has no reader
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return OK


def say(name: str, text: str) -> None:
    """Print a message to stderr."""
    print(f"{name}: {printable(text)[:MOST]}", file=sys.stderr)


def installed(name: str, registry: R) -> R:
    """Register the plugins that are installed; what is wrong with one is a warning of the command.

    Returns the registry.
    """
    for problem in discover(registry):
        say(name, f"warning: {problem}")
    return registry


def command_parser(name: str, about: str) -> argparse.ArgumentParser:
    """A parser whose help has paragraphs; what is not given leaves the namespace's own defaults."""
    return argparse.ArgumentParser(
        prog=name,
        description=about,
        epilog=EXIT,
        argument_default=argparse.SUPPRESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def time_option(text: str) -> float:
    """Read the value of an option: a time, as Unix seconds."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except (ValueError, OverflowError):
        wanted = "wanted a time as 2026-07-24T06:52:45Z"
        raise argparse.ArgumentTypeError(f"{wanted}, found {text!r}") from None
