"""The daemon as a process."""

from collections.abc import Mapping, Sequence

from koord.component.metrics import FamilyRules
from koord.component.plugins.discovery import discover
from koord.controlplane.daemon import Process, run_process
from koord_manager import NAME, PREFIX
from koord_manager.daemon.run import PROGRAM, run_daemon
from koord_manager.daemon.settings import Settings, load_settings

_COMMANDS = f"""
Commands beside the daemon, each with its own --help:
  {NAME} plan      what the nodes of a dump offer, and would by another strategy
  {NAME} explain   what a node offers, and why, by a running {NAME}"""
UNSUFFIXED_COUNTERS = frozenset(
    f"{PREFIX}_{name}"
    for name in (
        "node_resource_reconcile_count",
        "node_resource_run_plugin_status",
        "nodemetric_reconcile_count",
        "nodeslo_reconcile_count",
    )
)
FAMILIES = FamilyRules(prefix=PREFIX, unsuffixed_counters=UNSUFFIXED_COUNTERS)


def run(argv: Sequence[str]) -> int:
    """Run the daemon; see run_process for the exit status."""
    process = Process(
        program=PROGRAM, families=FAMILIES, load=_load, run=run_daemon, commands=_COMMANDS
    )
    return run_process(process, argv)


def _load(argv: Sequence[str], environ: Mapping[str, str], terminal: bool) -> Settings:
    return load_settings(argv, environ, discover=discover, terminal=terminal)
