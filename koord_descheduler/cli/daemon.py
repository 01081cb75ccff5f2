"""The daemon as a process."""

from collections.abc import Mapping, Sequence

from koord.component.metrics import FamilyRules
from koord.component.plugins.discovery import discover
from koord.controlplane.process import Process, run_process
from koord_descheduler import NAME, PREFIX
from koord_descheduler.daemon.run import PROGRAM, run_daemon
from koord_descheduler.daemon.settings import Settings, load_settings
from koord_descheduler.framework.evictor import UNSUFFIXED_COUNTERS

_COMMANDS = f"""
Commands beside the daemon, each with its own --help:
  {NAME} plan      what a cycle would do in a cluster, or in a dump of one
  {NAME} explain   what the last cycles of a running {NAME} decided
  {NAME} record    keeps what a cluster does in a file
  {NAME} replay    what another configuration would have done with that"""
FAMILIES = FamilyRules(prefix=PREFIX, unsuffixed_counters=UNSUFFIXED_COUNTERS)


def run(argv: Sequence[str]) -> int:
    """Run the daemon; see run_process for the exit status."""
    process = Process(
        program=PROGRAM, families=FAMILIES, load=_load, run=run_daemon, commands=_COMMANDS
    )
    return run_process(process, argv)


def _load(argv: Sequence[str], environ: Mapping[str, str], terminal: bool) -> Settings:
    return load_settings(argv, environ, discover=discover, terminal=terminal)
