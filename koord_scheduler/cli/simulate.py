"""The command `koord-scheduler simulate`: where a list of pods would go, one after the other."""

import argparse
import asyncio
from collections.abc import Sequence
from random import Random

from koord.component.terminal import ProgressReport, show
from koord.controlplane.commands import dump_report, run_command
from koord_scheduler.cli.inputs import PlanOptions, options_parser, plan_inputs
from koord_scheduler.framework.profile import Additions
from koord_scheduler.planning.report import Json, simulation_report
from koord_scheduler.planning.simulation import Simulation
from koord_scheduler.planning.views import simulation_view

NAME = "koord-scheduler simulate"
RESOURCES = ("cpu", "memory", "pods")

_ABOUT = """\
Place the pods of a file one after the other in a cluster, as a scheduler would if nothing else
happened, and show where each goes, what stays pending and why, and how full the nodes are before
and after. A pod without room preempts others as its profile would have it: they leave at once, and
nothing makes them anew. Nothing is changed in the cluster, and no pod waits for a permit."""


class SimulateOptions(PlanOptions):
    """The options of a command line."""

    seed: int = 0
    resources: tuple[str, ...] = RESOURCES


def main(argv: Sequence[str], additions: Additions = ()) -> int:
    """Print a simulation. Returns the exit status; see --help.

    additions are called with the registry, after the installed plugins.
    """
    options = parser().parse_args(argv, namespace=SimulateOptions())
    return run_command(NAME, lambda: _simulate(options, additions))


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    command = options_parser(NAME, _ABOUT, "manifests of pods and workloads")
    add = command.add_argument
    add("--seed", type=int, metavar="N", help="of the choice among equally good nodes; default 0")
    add("--resources", type=_names, metavar="NAMES", help=_RESOURCES_HELP)
    return command


def _simulate(options: SimulateOptions, additions: Additions) -> None:
    report = asyncio.run(_play(options, additions))
    show(report, lambda: simulation_view(report), options.output)


async def _play(options: SimulateOptions, additions: Additions) -> Json:
    async with plan_inputs(NAME, options, additions) as found:
        simulation = Simulation(found.profiles, found.services)
        draw = Random(options.seed)  # noqa: S311 - no secret
        with ProgressReport(f"placing {len(found.pods)} pods") as report:
            played = await simulation.play(found.pods, options.resources, draw, report.show)
        response = simulation_report(played)
        if found.dump is not None:
            response["input"] = dump_report(found.dump)
        return response


_RESOURCES_HELP = f"of which utilisation is shown; by default {','.join(RESOURCES)}"


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in (part.strip() for part in text.split(",")) if name)
