"""A daemon as a process: options in, exit status out."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from koord.component.config.field_errors import InvalidConfig
from koord.component.flags import HelpRequested
from koord.component.http.exposition import Exposition
from koord.component.metrics import FamilyRules
from koord.component.process import freeze_growing_heap
from koord.controlplane.sections import ComponentInfo
from koord.controlplane.settings import ControlPlaneFlags, write_configuration
from koord.util.clock import Clock, SystemClock
from koord.util.errors import InvalidObject, KoordError, OptionError
from koord.util.logs import LevelSpec, configure, parse_levels, redirect_library_logs
from koord.util.text import printable

SWITCH_INTERVAL = 0.001  # seconds a thread may keep the interpreter while the loop wants it


class DaemonSettings(Protocol):
    """The settings that a process needs."""

    @property
    def options(self) -> ControlPlaneFlags: ...

    def document(self) -> object:
        """Return the effective configuration as JSON values that read back."""


S = TypeVar("S", bound=DaemonSettings)


@dataclass(frozen=True, kw_only=True, slots=True)
class Process(Generic[S]):
    """The parts of a daemon's program."""

    program: ComponentInfo
    families: FamilyRules
    load: Callable[[Sequence[str], Mapping[str, str], bool], S]
    """load(argv, environ, terminal): returns the settings; raises OptionError and the like."""
    run: Callable[[S, Exposition, Clock], Awaitable[None]]
    commands: str = ""  # for the help: the commands besides the daemon


def run_process(process: Process[S], argv: Sequence[str]) -> int:
    """Run a daemon.

    Returns 0 after a stop, 1 after a lost lease, a failed start, or a stop without leader election;
    2 for unusable options or an unusable file.
    """
    name = process.program.name
    if list(argv) in (["--version"], ["-version"]):
        print(f"{name} {process.program.version}")
        return 0
    sys.setswitchinterval(SWITCH_INTERVAL)
    terminal = sys.stderr.isatty()
    configure("console" if terminal else "json", LevelSpec(), name)  # until the flags are known
    try:
        asyncio.run(_run(process, argv, terminal=terminal))
    except HelpRequested as help_text:
        print(help_text)
        if process.commands:
            print(process.commands)
    except (OptionError, InvalidConfig, InvalidObject) as err:
        print(f"{name}: {printable(err)}\n{name} --help lists the flags", file=sys.stderr)
        return 2
    except KoordError as err:
        print(f"{name}: {printable(err)}", file=sys.stderr)
        return 1
    return 0


async def _run(process: Process[S], argv: Sequence[str], *, terminal: bool) -> None:
    clock = SystemClock()
    exposition = Exposition(process.families, clock=clock)
    redirect_library_logs(clock)
    settings = process.load(argv, os.environ, terminal)
    options = settings.options
    configure(options.log_format, parse_levels(options.level_spec), process.program.name)
    if options.write_config_to.value:
        write_configuration(settings.document(), Path(options.write_config_to.value))
        return
    freeze_growing_heap()
    await process.run(settings, exposition, clock)
