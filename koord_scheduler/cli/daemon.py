"""The daemon as a process."""

from collections.abc import Mapping, Sequence

from koord.component.metrics import FamilyRules
from koord.component.plugins.discovery import discover
from koord.controlplane.process import Process, run_process
from koord_scheduler import NAME, PREFIX
from koord_scheduler.daemon.run import PROGRAM, run_daemon
from koord_scheduler.daemon.settings import Settings, load_settings
from koord_scheduler.framework.profile import Additions, PluginRegistry

_COMMANDS = f"""
Commands beside the daemon, each with its own --help:
  {NAME} place     where a pod would go in a cluster, or in a dump of one, and why
  {NAME} simulate  where a list of pods would go, one after the other
  {NAME} explain   why a pod of a running {NAME} is where it is, or nowhere"""
FAMILIES = FamilyRules(prefix=PREFIX)


def run(argv: Sequence[str], additions: Additions = ()) -> int:
    """Run the daemon, with what else is added to its plugins; see run_process for the status."""

    def find(registry: PluginRegistry) -> Sequence[str]:
        problems = discover(registry)
        for add in additions:
            add(registry)
        return problems

    def load(argv: Sequence[str], environ: Mapping[str, str], terminal: bool) -> Settings:
        return load_settings(argv, environ, discover=find, terminal=terminal)

    process = Process(
        program=PROGRAM, families=FAMILIES, load=load, run=run_daemon, commands=_COMMANDS
    )
    return run_process(process, argv)
