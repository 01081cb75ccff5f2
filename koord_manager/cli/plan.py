"""The command `koord-manager plan`: what the nodes of a dump would offer by another strategy."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from koord.cluster.dump import Dump, read_dump
from koord.component.terminal import show
from koord.controlplane.commands import (
    NOW_HELP,
    command_parser,
    dump_report,
    dump_view,
    print_message,
    register_installed,
    run_command,
    time_of,
    time_option,
)
from koord.kube.client import DEVICES, NODE_TOPOLOGIES, Resource
from koord.kube.responses import Object
from koord.util.clock import SystemClock
from koord.util.documents import decode
from koord.util.errors import InvalidObject, OptionError
from koord.util.filewatch import FileReadError, read_bounded
from koord_manager.config import feature_gates
from koord_manager.framework.calculator import Calculator
from koord_manager.framework.facts import ClusterConfig, load_cluster_config
from koord_manager.framework.interfaces import PluginRegistry
from koord_manager.framework.loading import Plugins, enabled_plugins, fields_read
from koord_manager.framework.objects import read_devices, read_topology
from koord_manager.planning import PlannedCluster, make_plan, plan_report, plan_view

NAME = "koord-manager plan"
_MAX_CONFIG = 1 << 20  # bytes
_COLOCATION = "colocation-config"
_CONFIG_MAP = "koordinator-system/slo-controller-config"
T = TypeVar("T")

_ABOUT = """\
Show what the nodes of a dump offer to batch and mid pods, and what they would offer by another
strategy: cores and memory gained, and the pods that hold more than their node would offer. A dump
is what `kubectl get nodes,pods,nodemetrics,configmap -A -o json` prints. No API server is asked,
nothing is changed. What nodes have offered before is left out: no decrease is bounded."""


class PlanOptions(argparse.Namespace):
    """The options of a command line."""

    source: Path
    config_map: Path | None = None  # None: colocation is enabled, with all defaults
    what_if: Path | None = None
    settings: list[tuple[str, Any]] | None = None
    node: str = ""
    now: float | None = None
    output: Literal["table", "json"] = "table"


def main(argv: Sequence[str], registry: PluginRegistry | None = None) -> int:
    """Print a plan. Returns the exit status; see --help.

    registry has the plugins; None: those that are installed.
    """
    options = parser().parse_args(argv, namespace=PlanOptions())
    return run_command(NAME, lambda: _plan(options, registry))


def _plan(options: PlanOptions, registry: PluginRegistry | None) -> None:
    plugins = registry or register_installed(NAME, PluginRegistry())
    names = enabled_plugins(plugins, feature_gates(one.name for one in plugins), ("*",))
    gates, kept = feature_gates(names), fields_read(plugins, names)
    dump = read_dump(options.source, kept, (_CONFIG_MAP,))
    of_dump = dump.config_maps.get(_CONFIG_MAP)
    before = _data(options.config_map) or of_dump or {_COLOCATION: '{"enable":true}'}
    after = _data(options.what_if) or before
    after = _with_settings(after, options.settings or ())
    now = time_of(dump, options.source) if options.now is None else options.now
    if options.node and dump.cluster.snapshot.node(options.node) is None:
        raise OptionError("--node", options.node, "wanted the name of a node of the dump")
    made = Plugins(plugins, names, {}, gates, SystemClock())
    calculator = Calculator(
        made.node_resource,
        declared=kept.node_annotations,
        max_decrease_percent=100,
        call=made.calculate,
        failed=made.failed,
    )
    plan = make_plan(
        PlannedCluster(
            dump.cluster,
            _of_nodes(dump, NODE_TOPOLOGIES, read_topology),
            _of_nodes(dump, DEVICES, read_devices),
        ),
        calculator,
        _config(before),
        _config(after),
        now=now,
        only=options.node,
    )
    report = {**plan_report(plan), "input": dump_report(dump)}
    show(report, lambda: [*plan_view(report), *dump_view(report["input"])], options.output)


def _of_nodes(dump: Dump, resource: Resource, read: Callable[[Object], T]) -> Mapping[str, T]:
    """The objects of a kind by node; one that is malformed is left out, and said."""
    found: dict[str, T] = {}
    for name, item in dump.take_custom(resource.api_version, resource.plural).items():
        try:
            found[name] = read(item)
        except InvalidObject as err:
            print_message(NAME, f"warning: {resource.plural} {name}: {err}")
    return found


def _data(path: Path | None) -> dict[str, object] | None:
    """The data of a ConfigMap, or of a file that is the colocation-config itself."""
    if path is None:
        return None
    try:
        found = decode(read_bounded(path, _MAX_CONFIG), path.name)
    except FileReadError as err:
        raise OptionError(str(path), err.found, "name a ConfigMap or a colocation-config") from err
    if not isinstance(found, dict):
        raise OptionError(str(path), "no object", "name a ConfigMap or a colocation-config")
    if found.get("kind") == "ConfigMap":
        data = found.get("data")
        return dict(data) if isinstance(data, dict) else {}
    return {_COLOCATION: json.dumps(found)}


def _with_settings(
    data: Mapping[str, object], settings: Sequence[tuple[str, Any]]
) -> dict[str, object]:
    if not settings:
        return dict(data)
    try:
        found = json.loads(str(data.get(_COLOCATION) or "{}"))
    except ValueError as err:
        raise OptionError("--set", _COLOCATION, f"it is no JSON: {err}") from err
    return {**data, _COLOCATION: json.dumps({**found, **dict(settings)})}


def _config(data: Mapping[str, object]) -> ClusterConfig:
    found, problems = load_cluster_config(data, ClusterConfig())
    for one in problems:
        print_message(NAME, f"warning: {one}")
    if problems and not found.slo.colocation_known:
        raise InvalidObject(_COLOCATION, wanted="a strategy", found="one that is rejected")
    return found


def _setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"wanted FIELD=VALUE, found {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    command = command_parser(NAME, _ABOUT)
    add = command.add_argument
    add("--from", dest="source", type=Path, required=True, metavar="DUMP", help=_SOURCE_HELP)
    add("--config-map", type=Path, metavar="FILE", help=_CONFIG_HELP)
    add("--what-if", type=Path, metavar="FILE", help="another one, to compare with")
    add("--set", dest="settings", type=_setting, action="append", metavar="FIELD=VALUE",
        help="a field of colocation-config that is different, such as cpuReclaimThresholdPercent=70"
        )  # fmt: skip
    add("--node", metavar="NAME", help="only this node")
    add("--now", type=time_option, metavar="TIME", help=NOW_HELP)
    add("--output", "-o", choices=("table", "json"), help="table (default) or json")
    return command


_SOURCE_HELP = "a file or a directory of files that kubectl has printed, JSON or YAML"
_CONFIG_HELP = (
    "slo-controller-config, or the JSON of its colocation-config; without it that of the dump, and "
    "without one there colocation is enabled with all defaults"
)
