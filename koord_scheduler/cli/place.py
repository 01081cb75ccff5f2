"""The command `koord-scheduler place`: where a pod would go, and why not elsewhere."""

import argparse
import asyncio
from collections.abc import Sequence

from koord.component.terminal import show
from koord.controlplane.commands import dump_report, run_command
from koord.util.errors import OptionError
from koord_scheduler.cli.inputs import PlanOptions, options_parser, plan_inputs
from koord_scheduler.framework.extension.providers import pending_advice
from koord_scheduler.framework.profile import Additions
from koord_scheduler.planning.report import Json, decision_report
from koord_scheduler.planning.simulation import reserved_annotations
from koord_scheduler.planning.views import placement_view

NAME = "koord-scheduler place"
SHOWN = 20  # nodes of a table

_ABOUT = """\
Show the node that a pod would be placed on now, the score of each feasible node by plugin, and for
each other node why it is none; for a pod that would stay pending the cause, and what would help.
Nothing is changed."""


class PlaceOptions(PlanOptions):
    """The options of a command line."""

    nodes: int = SHOWN


def main(argv: Sequence[str], additions: Additions = ()) -> int:
    """Print a decision. Returns the exit status; see --help.

    additions are called with the registry, after the installed plugins.
    """
    options = parser().parse_args(argv, namespace=PlaceOptions())
    return run_command(NAME, lambda: _place(options, additions))


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    command = options_parser(NAME, _ABOUT, "the manifest of the pod, or of its workload")
    command.add_argument(
        "--nodes", type=int, metavar="N", help=f"rows of a table; by default {SHOWN}"
    )
    return command


def _place(options: PlaceOptions, additions: Additions) -> None:
    if options.nodes < 1:
        raise OptionError("--nodes", str(options.nodes), "wanted 1 or more")
    report = asyncio.run(_decide(options, additions))
    show(report, lambda: placement_view(report, options.nodes), options.output)


async def _decide(options: PlaceOptions, additions: Additions) -> Json:
    async with plan_inputs(NAME, options, additions) as found:
        if len({id(pod.spec) for pod in found.pods}) > 1:
            hint = "name a file with one pod, or use `koord-scheduler simulate`"
            raise OptionError(str(options.pods), f"{len(found.pods)} different pods", hint)
        pod, nodes = found.pods[0], found.services.cluster.view()
        profile = found.profiles.of(pod)
        decider = profile.decider
        decision = decider.decide(pod, nodes)
        blockers = decider.blockers(decision)
        preemption = await decider.preemption(decision)
        waits_for = [] if decision.status.ok else pending_advice(profile.plugins, pod)
        annotations = reserved_annotations(profile, found.services, decision)
        decided = decision_report(
            decision, blockers, preemption, annotations=annotations, waits_for=waits_for
        )
        report = {"kind": "Placement", **decided}
        if found.dump is not None:
            report["input"] = dump_report(found.dump)
        return report
