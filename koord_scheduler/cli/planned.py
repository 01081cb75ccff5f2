"""What place and simulate share: the cluster, the pods of a file, and the profiles for them."""

import argparse
import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from koord.cluster.dump import Dump
from koord.cluster.dumpfiles import read_dump
from koord.cluster.facts import ClusterPod
from koord.cluster.state import ClusterState
from koord.component.config.document import read_config
from koord.controlplane.commands import (
    NOW_HELP,
    command_parser,
    installed,
    say,
    time_option,
)
from koord.controlplane.dumpreport import time_of
from koord.controlplane.livecluster import find_cluster, read_cluster
from koord.util.clock import SystemClock
from koord_scheduler.config.configuration import Configuration
from koord_scheduler.config.read import config_parser, parse_configuration
from koord_scheduler.framework.handle import Services
from koord_scheduler.framework.profiles.announcing import announce
from koord_scheduler.framework.profiles.configured import known_plugins
from koord_scheduler.framework.profiles.registry import Additions, PluginRegistry
from koord_scheduler.planning.manifests import read_pods
from koord_scheduler.planning.offline import offline_services
from koord_scheduler.planning.profiles import PlannedProfiles, plan_profiles
from koord_scheduler.planning.usual import usual_configuration

SOURCE = """\
The cluster is the one that kubectl would ask, or with --from a dump, for which no API server is
asked: what
    kubectl get nodes,pods,nodemetrics,priorityclasses,namespaces,pvc,pv,storageclasses \\
        -A -o json > cluster.json
prints."""


class PlanOptions(argparse.Namespace):
    """The options of a command line."""

    pods: Path
    source: Path | None = None  # None: the live cluster
    kubeconfig: str = ""  # "": as kubectl finds it
    config: Path | None = None  # None: the usual one
    now: float | None = None  # Unix seconds; None: of the newest NodeMetric
    output: Literal["table", "json"] = "table"


@dataclass(frozen=True, slots=True)
class Planned:
    """A cluster, pods that are not in it yet, and what decides about them."""

    pods: tuple[ClusterPod, ...]
    profiles: PlannedProfiles
    services: Services
    dump: Dump | None  # None: the cluster is a live one


def options_parser(name: str, about: str, pods_help: str) -> argparse.ArgumentParser:
    """A parser with the options of PlanOptions; a command adds its own."""
    parser = command_parser(name, f"{about}\n{SOURCE}")
    add = parser.add_argument
    add("pods", type=Path, metavar="PODS.yaml", help=pods_help)
    add("--from", dest="source", type=Path, metavar="DUMP", help=_SOURCE_HELP)
    add("--kubeconfig", metavar="FILE", help="of the live cluster; by default as kubectl finds it")
    add("--config", type=Path, metavar="FILE", help=_CONFIG_HELP)
    add("--now", type=time_option, metavar="TIME", help=NOW_HELP)
    add("--output", "-o", choices=("table", "json"), help="table (default) or json")
    return parser


@asynccontextmanager
async def planned(
    name: str, options: PlanOptions, additions: Additions = ()
) -> AsyncIterator[Planned]:
    """Read everything that the options name, and make the plugins.

    name is the command's, for warnings. additions are called after the installed plugins.

    Raises:
        KoordError: something cannot be read, or a plugin cannot be made.
    """
    found = installed(name, PluginRegistry())
    for add in additions:
        add(found)
    dump, cluster, now = await _cluster(name, options)
    pods = await asyncio.to_thread(read_pods, options.pods, cluster.priority_classes)
    configuration = _configuration(name, options, found, (one.scheduler_name for one in pods))
    services = offline_services(cluster, now if options.now is None else options.now)
    profiles = await plan_profiles(configuration.profiles, found, services)
    try:
        announce(services)
        await services.hooks.run()
        yield Planned(tuple(pods), profiles, services, dump)
    finally:
        await profiles.close()


async def _cluster(name: str, options: PlanOptions) -> tuple[Dump | None, ClusterState, float]:
    """The dump, the cluster, and its time in Unix seconds."""
    now = SystemClock().wall()
    if options.source is None:
        config = find_cluster(options.kubeconfig)
        warn = f"{name}: warning"
        return None, await read_cluster(config, name, lambda text: say(warn, text)), now
    dump = await asyncio.to_thread(read_dump, options.source)
    return dump, dump.cluster, time_of(dump, options.source)


def _configuration(
    name: str, options: PlanOptions, registry: PluginRegistry, schedulers: Iterable[str]
) -> Configuration:
    known = known_plugins(registry)
    if options.config is None:
        usual = usual_configuration(dict.fromkeys(schedulers), known)
        return parse_configuration(usual, Path("the usual configuration"), known).configuration
    read = read_config(options.config, config_parser(known, {}))
    for fault in read.warnings:
        say(name, f"warning: {fault}")
    return read.configuration


_SOURCE_HELP = "a file or a directory of files that kubectl has printed, JSON or YAML"
_CONFIG_HELP = (
    "a KubeSchedulerConfiguration; without one, the default plugins and LoadAwareScheduling for "
    "whichever scheduler a pod names"
)
