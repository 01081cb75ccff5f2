"""The daemon as a process: options in, exit status out."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import koord_descheduler
from koord.component.config.faults import InvalidConfig
from koord.component.flags import HelpRequested
from koord.component.heap import settle_growing_heap
from koord.component.http.exposition import Exposition
from koord.component.http.families import FamilyRules
from koord.component.plugins.discovery import discover
from koord.util.clock import SystemClock
from koord.util.errors import InvalidObject, KoordError, OptionError
from koord.util.logs import LevelSpec, configure, parse_levels, take_library_logs
from koord.util.printable import printable
from koord_descheduler import NAME, PREFIX
from koord_descheduler.daemon.run import run_daemon
from koord_descheduler.daemon.settings import load_settings, write_configuration
from koord_descheduler.framework.metrics import UNSUFFIXED_COUNTERS

SWITCH_INTERVAL = 0.001  # seconds a thread may keep the interpreter while the loop wants it
_COMMANDS = f"""
Commands beside the daemon, each with its own --help:
  {NAME} plan      what a cycle would do in a cluster, or in a dump of one
  {NAME} explain   what the last cycles of a running {NAME} decided
  {NAME} record    keeps what a cluster does in a file
  {NAME} replay    what another configuration would have done with that"""
FAMILIES = FamilyRules(prefix=PREFIX, unsuffixed_counters=UNSUFFIXED_COUNTERS)


def run(argv: Sequence[str]) -> int:
    """Run the daemon.

    Returns 0 after a stop, 1 after a lost lease, a failed start, or a stop without leader election;
    2 for unusable options or an unusable file.
    """
    if list(argv) in (["--version"], ["-version"]):
        print(f"{NAME} {koord_descheduler.__version__}")
        return 0
    sys.setswitchinterval(SWITCH_INTERVAL)
    terminal = sys.stderr.isatty()
    configure("console" if terminal else "json", LevelSpec(), NAME)  # until the flags are known
    try:
        asyncio.run(_run(argv, terminal=terminal))
    except HelpRequested as help_text:
        print(help_text)
        print(_COMMANDS)
    except (OptionError, InvalidConfig, InvalidObject) as err:
        print(f"{NAME}: {printable(err)}\n{NAME} --help lists the flags", file=sys.stderr)
        return 2
    except KoordError as err:
        print(f"{NAME}: {printable(err)}", file=sys.stderr)
        return 1
    return 0


async def _run(argv: Sequence[str], *, terminal: bool) -> None:
    clock = SystemClock()
    exposition = Exposition(FAMILIES, clock=clock)
    take_library_logs(clock)
    settings = load_settings(argv, os.environ, discover=discover, terminal=terminal)
    options = settings.options
    configure(options.log_format, parse_levels(options.level_spec), NAME)
    if options.write_config_to.value:
        write_configuration(settings.configuration, Path(options.write_config_to.value))
        return
    settle_growing_heap()
    await run_daemon(settings, exposition, clock)
