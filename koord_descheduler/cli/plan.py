"""The command `koord-descheduler plan`: what would be moved, and why."""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from koord.cluster.dump import Dump, read_dump
from koord.cluster.state import ClusterState
from koord.component.config.document import read_config
from koord.component.terminal import show
from koord.controlplane.cluster_access import live_informers
from koord.controlplane.commands import (
    NOW_HELP,
    command_parser,
    print_message,
    run_command,
    time_of,
    time_option,
)
from koord.controlplane.offline import (
    LIST_TIMEOUT,
    ClusterReadError,
    DumpInformers,
    find_cluster,
    read_cluster,
)
from koord.util.clock import SystemClock
from koord.util.errors import KoordError, OptionError
from koord.util.health import OK
from koord_descheduler.cli.views import plan_view
from koord_descheduler.config import Configuration, ReadConfig, config_parser, parse_configuration
from koord_descheduler.framework.handle import Hardware, Informers
from koord_descheduler.framework.profile import PluginRegistry, fields_read, known_plugins
from koord_descheduler.planning import (
    DEFAULT_HIGH_THRESHOLDS,
    DEFAULT_LOW_THRESHOLDS,
    Plan,
    default_plan_configuration,
    installed_plugins,
    make_plan,
    offline_services,
    percents,
    plan_report,
)

NAME = "koord-descheduler plan"

_ABOUT = """\
Run the profiles of a configuration for one cycle in dry-run, and show what would be moved, from
where, to which nodes, and why; for what stays, the reason. Nothing is changed. The cluster is the
one that kubectl would ask, or with --from a dump, for which no API server is asked: what
    kubectl get nodes,pods,pdb,nodemetrics,replicasets,deployments,statefulsets,priorityclasses \\
        -A -o json > cluster.json
prints; more kinds make it more exact: persistentvolumeclaims, persistentvolumes, namespaces, and
for pods with devices or CPUs of their own devices and noderesourcetopologies."""


class IncompletePlan(KoordError):
    """A part of the cycle failed; the rest is printed."""


class PlanOptions(argparse.Namespace):
    """The options of a command line."""

    source: Path | None = None  # None: the live cluster
    kubeconfig: str = ""  # "": as kubectl finds it
    config: Path | None = None  # None: the defaults
    low: Mapping[str, float] | None = None  # None: LOW
    high: Mapping[str, float] | None = None  # None: HIGH
    node: str = ""  # "": all
    now: float | None = None  # Unix seconds; None: of the newest NodeMetric
    output: Literal["table", "json"] = "table"


def main(argv: Sequence[str], registry: PluginRegistry | None = None) -> int:
    """Print a plan. Returns the exit status; see --help.

    registry has the plugins that can be enabled; None: those that are installed.
    """
    options = parser().parse_args(argv, namespace=PlanOptions())
    return run_command(NAME, lambda: _print_plan(options, registry or installed_plugins(NAME)))


def _print_plan(options: PlanOptions, registry: PluginRegistry) -> None:
    configuration = _configuration(options, registry)
    if options.source is None:
        plan = asyncio.run(_live_plan(options, configuration, registry))
        report = plan_report(plan)
    else:
        dump = read_dump(options.source, fields_read(configuration, registry))
        plan = asyncio.run(_dump_plan(options, configuration, registry, dump))
        report = plan_report(plan, dump)
    show(report, lambda: plan_view(report), options.output)
    if plan.errors:
        raise IncompletePlan(f"the plan is not whole: {'; '.join(plan.errors)}")


async def _live_plan(
    options: PlanOptions, configuration: Configuration, registry: PluginRegistry
) -> Plan:
    kubeconfig = options.kubeconfig or configuration.client_connection.kubeconfig
    config = find_cluster(kubeconfig)
    kept = fields_read(configuration, registry)
    warn = partial(print_message, f"{NAME}: warning")
    cluster = await read_cluster(config, NAME, warn, kept=kept)
    async with live_informers(config, NAME) as informers:
        try:
            async with asyncio.timeout(LIST_TIMEOUT):
                await Hardware(informers).listed()
        except TimeoutError as err:
            raise ClusterReadError(informers.start_health().reason) from err
        now = SystemClock().wall()
        plan = await _plan(options, configuration, registry, cluster, now, informers)
        if plan.unknown and informers.start_health() != OK:
            warn(informers.start_health().reason)
        return plan


async def _dump_plan(
    options: PlanOptions, configuration: Configuration, registry: PluginRegistry, dump: Dump
) -> Plan:
    now = time_of(dump, options.source)
    return await _plan(options, configuration, registry, dump.cluster, now, DumpInformers(dump))


async def _plan(
    options: PlanOptions,
    configuration: Configuration,
    registry: PluginRegistry,
    cluster: ClusterState,
    now: float,
    informers: Informers,
) -> Plan:
    """The plan for a cluster, at the time that the options say, else now."""
    if options.node and all(node.name != options.node for node in cluster.nodes()):
        raise OptionError("--node", options.node, "wanted the name of a node of the cluster")
    services = offline_services(cluster, now if options.now is None else options.now, informers)
    plan = await make_plan(configuration, registry, services)
    return plan.only(options.node) if options.node else plan


def _configuration(options: PlanOptions, registry: PluginRegistry) -> Configuration:
    known = known_plugins(registry)
    if options.config is None:
        low, high = options.low or DEFAULT_LOW_THRESHOLDS, options.high or DEFAULT_HIGH_THRESHOLDS
        read = parse_configuration(
            default_plan_configuration(low, high), Path("--low and --high"), known
        )
    elif options.low or options.high:
        raise OptionError("--low, --high", str(options.config), "set thresholds in the file")
    else:
        read = read_config(options.config, config_parser(known))
        _warn(read)
    return read.configuration


def _warn(read: ReadConfig) -> None:
    for fault in read.warnings:
        print_message(NAME, f"warning: {fault}")


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    command = command_parser(NAME, _ABOUT)
    add = command.add_argument
    add("--from", dest="source", type=Path, metavar="DUMP", help=_SOURCE_HELP)
    add("--kubeconfig", metavar="FILE", help="of the live cluster; by default as kubectl finds it")
    add("--config", type=Path, metavar="FILE", help=_CONFIG_HELP)
    add("--low", type=percents, metavar="CPU,MEMORY", help=_low_help("low", DEFAULT_LOW_THRESHOLDS))
    add(
        "--high",
        type=percents,
        metavar="CPU,MEMORY",
        help=_low_help("high", DEFAULT_HIGH_THRESHOLDS),
    )
    add("--node", metavar="NAME", help="only what concerns this node")
    add("--now", type=time_option, metavar="TIME", help=NOW_HELP)
    add("--output", "-o", choices=("table", "json"), help="table (default) or json")
    return command


_SOURCE_HELP = "a file or a directory of files that kubectl has printed, JSON or YAML"
_CONFIG_HELP = "a DeschedulerConfiguration; without one, LowNodeLoad with --low and --high"


def _low_help(name: str, default: Mapping[str, float]) -> str:
    text = ",".join(f"{key}={value:g}" for key, value in default.items())
    return f"{name} thresholds in percent of allocatable, as {text}, which is the default"
