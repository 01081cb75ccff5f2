"""The command `koord-manager plan`: what the nodes of a dump would offer by another strategy."""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from koord.cluster.dump import Dump, read_dump
from koord.cluster.facts import ClusterNode
from koord.cluster.state import ClusterState
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
from koord.kube.transport import Object
from koord.util.clock import SystemClock
from koord.util.documents import decode
from koord.util.errors import InvalidObject, OptionError
from koord.util.filewatch import FileReadError, read_bounded
from koord_manager.config import feature_gates
from koord_manager.controllers.noderesource import InsufficientResource, insufficient_resources
from koord_manager.framework.calculator import Calculator, History, amount_text
from koord_manager.framework.facts import (
    ClusterConfig,
    NodeDevices,
    NodeFacts,
    NodeTopology,
    gather_facts,
    load_cluster_config,
    read_devices,
    read_topology,
)
from koord_manager.framework.interfaces import PluginRegistry
from koord_manager.framework.loading import Plugins, enabled_plugins, fields_read

Json = dict[str, Any]
MAX_ROWS = 50  # nodes in the table; JSON has all


@dataclass(frozen=True, slots=True)
class PlannedCluster:
    """The input of a plan. Objects besides nodes are keyed by node."""

    state: ClusterState
    topologies: Mapping[str, NodeTopology] = field(default_factory=dict)
    devices: Mapping[str, NodeDevices] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodePlan:
    """The offer of one node by each strategy, by resource; None: nothing of it."""

    name: str
    before: Mapping[str, int | None]
    after: Mapping[str, int | None]
    short: Mapping[str, InsufficientResource]  # by the second strategy
    reason: str  # why it would offer nothing of some; "": it offers
    zones: Mapping[str, Mapping[str, str | None]]  # by the second strategy, as they are written


@dataclass(frozen=True, slots=True)
class Plan:
    """All nodes, in the order of their names."""

    at: float  # Unix seconds
    nodes: tuple[NodePlan, ...]
    problems: tuple[str, ...]

    def total(self, name: str, *, after: bool) -> int:
        """Return what all nodes offer of a resource together."""
        amounts = (one.after if after else one.before for one in self.nodes)
        return sum(found.get(name) or 0 for found in amounts)

    @property
    def resources(self) -> list[str]:
        """The resources that some node offers by either strategy."""
        found = {
            name
            for one in self.nodes
            for amounts in (one.before, one.after)
            for name, amount in amounts.items()
            if amount is not None
        }
        return sorted(found)


def make_plan(
    cluster: PlannedCluster,
    calculator: Calculator,
    before: ClusterConfig,
    after: ClusterConfig,
    *,
    now: float,
    only: str = "",
) -> Plan:
    """Return what each node offers by two configurations. No earlier offer bounds a decrease.

    only: the name of the one node that is looked at.
    """
    found, problems = list[NodePlan](), dict[str, None]()
    for node in cluster.state.nodes():
        if only not in ("", node.name):
            continue
        bare = replace_offers(node)
        one = _facts(cluster, bare, before, now)
        other = _facts(cluster, bare, after, now)
        first = calculator.calculate(one, History())
        second = calculator.calculate(other, History())
        problems.update(dict.fromkeys(f"{node.name}: {each}" for each in second.problems))
        reasons = {each.reason for each in second.resources.values() if each.amount is None}
        found.append(
            NodePlan(
                node.name,
                {name: each.amount for name, each in first.resources.items()},
                {name: each.amount for name, each in second.resources.items()},
                insufficient_resources(second, other),
                "; ".join(sorted(reasons - {""})),
                {
                    zone: {name: None if one is None else str(one) for name, one in each.items()}
                    for zone, each in second.zones.items()
                },
            )
        )
    return Plan(now, tuple(found), tuple(problems))


def replace_offers(node: ClusterNode) -> ClusterNode:
    """Return the node without what it offers now: a plan does not depend on that."""
    kept = tuple(one for one in node.allocatable if one[0] in ("cpu", "memory"))
    return _with_allocatable(node, kept)


def _with_allocatable(node: ClusterNode, amounts: tuple[tuple[str, int], ...]) -> ClusterNode:
    from msgspec import structs

    return structs.replace(node, allocatable=amounts)


def _facts(
    cluster: PlannedCluster, node: ClusterNode, config: ClusterConfig, now: float
) -> NodeFacts:
    facts, _ = gather_facts(
        node,
        config,
        now=now,
        report=cluster.state.reports.get(node.name),
        pods=cluster.state.pods_of_node(node.name),
        topology=cluster.topologies.get(node.name),
        devices=cluster.devices.get(node.name),
    )
    return facts


def plan_report(plan: Plan) -> Json:
    """Return a plan as JSON."""
    totals = {
        name: {
            "before": plan.total(name, after=False),
            "after": plan.total(name, after=True),
            "gained": plan.total(name, after=True) - plan.total(name, after=False),
        }
        for name in plan.resources
    }
    return {
        "kind": "Plan",
        "totals": totals,
        "nodes": [
            {
                "node": one.name,
                "before": dict(one.before),
                "after": dict(one.after),
                "reason": one.reason,
                "zones": {name: dict(each) for name, each in one.zones.items()},
                "short": {
                    name: {"offered": each.offered, "held": each.held, "pods": list(each.pods)}
                    for name, each in one.short.items()
                },
            }
            for one in plan.nodes
        ],
        "problems": list(plan.problems),
    }


def plan_view(report: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yield the tables of a plan's JSON."""
    yield _totals(report["totals"])
    rows = [one for one in report["nodes"] if one["before"] != one["after"] or one["short"]]
    if rows:
        names = list(report["totals"])
        table = Table("node", *names, "held above it by", box=None, pad_edge=False)
        for one in rows[:MAX_ROWS]:
            pods = sorted({pod for each in one["short"].values() for pod in each["pods"]})
            cells = [_change(name, one["before"], one["after"]) for name in names]
            table.add_row(one["node"], *cells, _few(pods) or one["reason"])
        yield Text("")
        yield table
        if len(rows) > MAX_ROWS:
            yield Text(f"and {len(rows) - MAX_ROWS} more nodes; --output=json has all")
    for problem in report["problems"][:10]:
        yield Text(problem)


def _totals(totals: Mapping[str, Mapping[str, int]]) -> Table:
    table = Table("all nodes", "now", "then", "gained", box=None, pad_edge=False)
    for name, one in totals.items():
        gained = one["gained"]
        sign = "-" if gained < 0 else "+"
        table.add_row(
            name,
            amount_text(name, one["before"]),
            amount_text(name, one["after"]),
            f"{sign}{amount_text(name, abs(gained))}",
        )
    return table


def _change(name: str, before: Mapping[str, int], after: Mapping[str, int]) -> str:
    texts = [
        "none" if found.get(name) is None else amount_text(name, found[name])
        for found in (before, after)
    ]
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)


def _few(pods: list[str]) -> str:
    more = f" and {len(pods) - 3} more" if len(pods) > 3 else ""
    return ", ".join(pods[:3]) + more


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
        limits=made.limits,
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
