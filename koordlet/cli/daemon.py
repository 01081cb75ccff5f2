"""The daemon as a process: options in, exit status out."""

import asyncio
import os
import sys
from collections.abc import Sequence

import koordlet
from koord.component.flags import HelpRequested
from koord.component.http.exposition import Exposition
from koord.component.plugins.discovery import discover
from koord.component.process import freeze_heap, use_one_malloc_arena
from koord.util.clock import SystemClock
from koord.util.errors import KoordError, OptionError
from koord.util.logs import LevelSpec, configure, parse_levels, redirect_library_logs
from koord.util.text import printable
from koordlet import NAME
from koordlet.daemon.run import run_daemon
from koordlet.daemon.settings import load_settings
from koordlet.server.app import FAMILIES

SWITCH_INTERVAL = 0.001  # seconds a thread may keep the interpreter while the loop wants it


def run(argv: Sequence[str], *, laid_out: bool = False) -> int:
    """Run the daemon. Returns 0 after a stop, 1 after a failed start, 2 for unusable options.

    laid_out: the root flags name plain files in place of the kernel's, for tests.
    """
    if argv in (["--version"], ["-version"]):
        print(f"koordlet {koordlet.__version__}")
        return 0
    sys.setswitchinterval(SWITCH_INTERVAL)
    use_one_malloc_arena()
    terminal = sys.stderr.isatty()
    configure("console" if terminal else "json", LevelSpec(), NAME)  # until the flags are known
    try:
        asyncio.run(_run(argv, terminal=terminal, laid_out=laid_out))
    except HelpRequested as help_text:
        print(help_text)
    except OptionError as err:
        print(f"koordlet: {printable(err)}\nkoordlet --help lists the flags", file=sys.stderr)
        return 2
    except KoordError as err:
        print(f"koordlet: {printable(err)}", file=sys.stderr)
        return 1
    return 0


async def _run(argv: Sequence[str], *, terminal: bool, laid_out: bool) -> None:
    clock = SystemClock()
    exposition = Exposition(FAMILIES, clock=clock)
    redirect_library_logs(clock)
    settings = load_settings(
        argv,
        os.environ,
        clock=clock,
        metrics=exposition.internal,
        discover=discover,
        terminal=terminal,
        laid_out=laid_out,
    )
    options = settings.options
    configure(options.log_format.value, parse_levels(options.log_level.value), NAME)  # type: ignore[arg-type]
    freeze_heap()
    await run_daemon(settings, exposition, clock)
