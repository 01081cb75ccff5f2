"""The daemon as a process."""

from collections.abc import Mapping, Sequence

from koord.component.http.families import FamilyRules
from koord.component.plugins.discovery import discover
from koord.controlplane.process import Process, run_process
from koord_scheduler import PREFIX
from koord_scheduler.daemon.run import PROGRAM, run_daemon
from koord_scheduler.daemon.settings import Settings, load_settings

FAMILIES = FamilyRules(prefix=PREFIX)


def run(argv: Sequence[str]) -> int:
    """Run the daemon; see run_process for the exit status."""
    process = Process(program=PROGRAM, families=FAMILIES, load=_load, run=run_daemon)
    return run_process(process, argv)


def _load(argv: Sequence[str], environ: Mapping[str, str], terminal: bool) -> Settings:
    return load_settings(argv, environ, discover=discover, terminal=terminal)
