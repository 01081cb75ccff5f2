"""Usage of the nodes of a round as columns, summed from NodeMetrics as each planner counts it."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from koord.api.pod import BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY
from koord_descheduler.plugin import (
    ClusterNode,
    ClusterPod,
    DisruptionBudget,
    LabelSet,
    Migration,
    ReportedAggregate,
    ReportedUsage,
    UsageReport,
    View,
)
from koord_descheduler_plugins.low_node_load.args import (
    AggregationType,
    Amounts,
    Flags,
    LowNodeLoadArgs,
)

_CPU = frozenset({"cpu", BATCH_CPU, MID_CPU})
_MEMORY = frozenset({"memory", BATCH_MEMORY, MID_MEMORY})


class Amount(NamedTuple):
    """An amount of CPU and memory."""

    cpu: int = 0
    memory: int = 0


def amount_of(usage: ReportedUsage | None) -> Amount:
    """A usage in whole units; nothing where there is none."""
    return Amount() if usage is None else Amount(round(usage.cores * 1000), int(usage.memory_bytes))


def requested_by(pod: ClusterPod) -> Amount:
    """Return the requests of a pod, of any tier: an estimate of its usage."""
    requests = pod.spec.requests
    return Amount(
        sum(amount for name, amount in requests if name in _CPU),
        sum(amount for name, amount in requests if name in _MEMORY),
    )


class UsageSums(NamedTuple):
    """Sums over the entries of a NodeMetric, and over the pods of its node that have not ended."""

    reported_cpu: int = 0  # all entries
    reported_memory: int = 0
    gone_cpu: int = 0  # entries of pods that are not there any more
    gone_memory: int = 0
    leaving_cpu: int = 0  # entries of pods that are being deleted
    leaving_memory: int = 0
    fresh_cpu: int = 0  # requests of pods that have no entry yet
    fresh_memory: int = 0
    prod_cpu: int = 0  # entries of prod pods
    prod_memory: int = 0
    prod_leaving_cpu: int = 0
    prod_leaving_memory: int = 0
    prod_fresh_cpu: int = 0
    prod_fresh_memory: int = 0
    pods: int = 0
    prod_pods: int = 0
    leaving_pods: int = 0
    prod_leaving_pods: int = 0
    system_cpu: int = 0
    system_memory: int = 0
    host_cpu: int = 0  # of host applications
    host_memory: int = 0


ProdFlags = dict[tuple[LabelSet, int | None, str], bool]
"""Whether pods are prod, by labels, priority and QoS class."""
IsProd = Callable[[ClusterPod], bool]
"""Whether a pod is of the priority class prod."""
PodAmounts = Mapping[tuple[str, str], Amount]
"""Usage of pods by namespace and name."""


def pod_amounts(report: UsageReport) -> PodAmounts:
    """The entries of a NodeMetric."""
    return {(one.namespace, one.name): amount_of(one.usage) for one in report.pods}


def sums_of(
    report: UsageReport,
    pods: Iterable[ClusterPod],
    is_prod: IsProd,
    flags: ProdFlags,
) -> UsageSums:
    """Add up one node. Of two entries of one pod the last one counts.

    flags is filled in: it spares most pods the question is_prod.
    """
    left = {(one.namespace, one.name): one.usage for one in report.pods}
    reported = _total(left.values())
    prod_cores = prod_memory = 0.0
    count = prod_count = 0
    unsteady: list[tuple[ClusterPod, ReportedUsage | None]] = []
    for pod in pods:
        if pod.phase in _FINISHED:
            continue
        usage = left.pop((pod.label_set.namespace, pod.name), None)
        count += 1
        if usage is None or pod.deleting:
            unsteady.append((pod, usage))
        key = pod.label_set, pod.priority, pod.qos
        of_prod = flags.get(key)
        if of_prod is None:
            of_prod = is_prod(pod)
            if pod.qos:  # else it depends on more than the key
                flags[key] = of_prod
        if of_prod:
            prod_count += 1
            if usage is not None:
                prod_cores += usage.cores
                prod_memory += usage.memory_bytes
    sums = UsageSums(
        *reported,
        *_total(left.values()),
        prod_cpu=round(prod_cores * 1000),
        prod_memory=round(prod_memory),
        pods=count,
        prod_pods=prod_count,
        **_node_amounts(report),
    )
    return _with_unreported(sums, unsteady, is_prod) if unsteady else sums


_FINISHED = frozenset({"Succeeded", "Failed"})


def _node_amounts(report: UsageReport) -> dict[str, int]:
    """Usage of the node outside pods, as fields of UsageSums."""
    system, host = amount_of(report.system_usage), amount_of(report.host_usage)
    return {
        "system_cpu": system.cpu,
        "system_memory": system.memory,
        "host_cpu": host.cpu,
        "host_memory": host.memory,
    }


def _with_unreported(
    sums: UsageSums, pods: Iterable[tuple[ClusterPod, ReportedUsage | None]], is_prod: IsProd
) -> UsageSums:
    """The sums with pods that are being deleted, or have no entry."""
    more = Counter[str]()
    for pod, usage in pods:
        sort = "leaving" if pod.deleting else "fresh"
        amount = amount_of(usage) if pod.deleting else requested_by(pod)
        for prefix in ("", "prod_") if is_prod(pod) else ("",):
            more[f"{prefix}{sort}_cpu"] += amount.cpu
            more[f"{prefix}{sort}_memory"] += amount.memory
            more[f"{prefix}leaving_pods"] += pod.deleting
    return sums._replace(**more)


def _total(usages: Iterable[ReportedUsage]) -> Amount:
    cores = memory = 0.0
    for one in usages:
        cores += one.cores
        memory += one.memory_bytes
    return Amount(round(cores * 1000), round(memory))


class _CachedSums(NamedTuple):
    report: UsageReport
    pods: tuple[ClusterPod, ...]
    sums: UsageSums


UsageCache = Mapping[str, _CachedSums]
"""Sums of nodes, by name, with their inputs."""


def sum_usage(
    usage_cache: UsageCache,
    names: Sequence[str],
    rows: Sequence[int],
    reports: Sequence[UsageReport],
    view: View,
    is_prod: IsProd,
) -> UsageCache:
    """Return the book of these nodes; only those whose NodeMetric or pods have changed cost."""
    found: dict[str, _CachedSums] = {}
    flags: ProdFlags = {}
    for name, row, report in zip(names, rows, reports, strict=True):
        pods = view.pods(row)
        known = usage_cache.get(name)
        if known is None or known.report is not report or known.pods is not pods:
            known = _CachedSums(report, pods, sums_of(report, pods, is_prod, flags))
        found[name] = known
    return found


CPU, MEMORY, PODS = 0, 1, 2  # columns that are always there

_FUTURE = 60.0  # seconds by which clocks of nodes may be ahead
_MEAN_WINDOW = 300.0  # seconds of a NodeMetric's means, as Koordinator has it by default
_MAX_PLAUSIBLE = 4  # times a node's capacity


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundInputs:
    """All that a round is decided on. Nothing in it changes."""

    view: View
    nodes: Sequence[ClusterNode]  # those that the profile is for, in a stable order
    reports: Mapping[str, UsageReport]  # by node
    budgets: Sequence[DisruptionBudget] = ()
    migrations: Sequence[Migration] = ()
    now: float = 0.0  # Unix seconds
    hardware: Callable[[ClusterPod, View], Flags | None] = lambda pod, view: None
    """Returns the nodes with the devices and CPUs that a pod needs; None: all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeUsage:
    """Nodes whose usage is known, in their order; columns are (nodes, resources)."""

    resources: tuple[str, ...]
    nodes: tuple[ClusterNode, ...]
    names: tuple[str, ...]
    rows: NDArray[np.intp]  # in the view
    reports: tuple[UsageReport, ...]
    capacity: Amounts  # before amplification
    usage: Amounts
    prod_usage: Amounts  # of prod pods alone
    in_transit: Amounts  # of pods that come, or have not left yet; usage does not have it
    prod_in_transit: Amounts
    fixed: Amounts  # of usage, what no pod takes: system and host applications
    schedulable: Flags
    unusable: Mapping[str, str]  # nodes that are left out, and why, a sentence for people

    def taking(self, at: NDArray[np.intp]) -> "NodeUsage":
        """Return some of the nodes; amounts are copies."""
        places = at.tolist()
        return NodeUsage(
            resources=self.resources,
            nodes=tuple(self.nodes[place] for place in places),
            names=tuple(self.names[place] for place in places),
            rows=self.rows[at],
            reports=tuple(self.reports[place] for place in places),
            capacity=self.capacity[at],
            usage=self.usage[at],
            prod_usage=self.prod_usage[at],
            in_transit=self.in_transit[at],
            prod_in_transit=self.prod_in_transit[at],
            fixed=self.fixed[at],
            schedulable=self.schedulable[at],
            unusable=self.unusable,
        )


def koordinator_usage(
    inputs: RoundInputs,
    args: LowNodeLoadArgs,
    resources: tuple[str, ...],
    usage_cache: UsageCache,
    is_prod: IsProd,
) -> tuple[NodeUsage, UsageCache]:
    """Count as Koordinator does: system and all entries, whether their pods are there or not."""

    def reject_reason(report: UsageReport) -> str:
        return _too_old(report, inputs.now, args.node_metric_expiration_seconds)

    found = _nodes_with_usage(inputs, reject_reason)
    usage_cache, sums = _sums(inputs, found, usage_cache, is_prod)
    system = sums["system"]
    usage = _columns(len(resources), system + sums["reported"], sums["pods"])
    nothing = np.zeros_like(usage)
    return (
        NodeUsage(
            resources=resources,
            nodes=found.nodes,
            names=found.names,
            rows=found.rows,
            reports=found.reports,
            capacity=_capacity(inputs.view, found, resources, merged=False),
            usage=usage,
            prod_usage=_columns(len(resources), sums["prod"], sums["prod_pods"]),
            in_transit=nothing,
            prod_in_transit=nothing,
            fixed=_columns(len(resources), system, 0),
            schedulable=_schedulable(found),
            unusable=found.unusable,
        ),
        usage_cache,
    )


def exact_usage(
    inputs: RoundInputs,
    args: LowNodeLoadArgs,
    resources: tuple[str, ...],
    usage_cache: UsageCache,
    is_prod: IsProd,
) -> tuple[NodeUsage, UsageCache]:
    """Count what runs on a node from now on: system, host applications and the pods that stay.

    Usage is what was measured, as only that makes a node over- or underutilized. In transit are the
    requests of pods without entry, and what pods use that are being deleted: that takes resources
    of a node, too. Where an aggregation is wanted, its figure of the node takes the place of the
    means.
    """

    def reject_reason(report: UsageReport) -> str:
        found = _too_old(report, inputs.now, args.node_metric_expiration_seconds)
        if not found and report.update_time is not None:
            ahead = report.update_time - inputs.now
            if ahead > _FUTURE:
                return f"its NodeMetric is {ahead:.0f} s from the future"
        return found

    found = _nodes_with_usage(inputs, reject_reason)
    usage_cache, sums = _sums(inputs, found, usage_cache, is_prod)
    staying = sums["reported"] - sums["gone"] - sums["leaving"]
    wholes = [whole_usage(report, args) for report in found.reports]
    known = np.array([one is not None for one in wholes], np.bool_)
    amounts = [Amount() if one is None else one.amount for one in wholes]
    whole = np.array(amounts, np.int64).reshape(-1, 2)
    residual = np.maximum(whole - sums["reported"], 0)
    parts = sums["system"] + sums["host"]
    estimated = np.where(known[:, None], residual, parts)
    said = np.array([report.system_usage is not None for report in found.reports], np.bool_)
    fixed = np.where(said[:, None], parts, estimated)
    width = len(resources)
    node_usage = NodeUsage(
        resources=resources,
        nodes=found.nodes,
        names=found.names,
        rows=found.rows,
        reports=found.reports,
        capacity=_capacity(inputs.view, found, resources, merged=True),
        usage=_columns(width, estimated + staying, sums["pods"] - sums["leaving_pods"]),
        prod_usage=_columns(
            width,
            sums["prod"] - sums["prod_leaving"],
            sums["prod_pods"] - sums["prod_leaving_pods"],
        ),
        in_transit=_columns(width, sums["fresh"] + sums["leaving"], sums["leaving_pods"]),
        prod_in_transit=_columns(
            width, sums["prod_fresh"] + sums["prod_leaving"], sums["prod_leaving_pods"]
        ),
        fixed=_columns(width, fixed, 0),
        schedulable=_schedulable(found),
        unusable=found.unusable,
    )
    return _without_implausible(node_usage), usage_cache


@dataclass(frozen=True, slots=True)
class MovingPod:
    """A pod that a migration is about."""

    pod: ClusterPod
    source: int  # index into the arrays of NodeUsage
    amount: Amount  # its usage, else its requests
    is_prod: bool
    is_measured: bool  # amount is its usage
    target: str  # "": not known yet


def moving_pods(inputs: RoundInputs, node_usage: NodeUsage, is_prod: IsProd) -> list[MovingPod]:
    """Return the pods of migrations that are still on a node of NodeUsage, in a stable order."""
    places = {name: place for place, name in enumerate(node_usage.names)}
    found = []
    for one in sorted(inputs.migrations, key=attrgetter("pod", "uid")):
        place = places.get(one.node)
        if place is None:
            continue
        pods = inputs.view.pods(int(node_usage.rows[place]))
        pod = next((pod for pod in pods if pod.uid == one.uid), None)
        if pod is not None and not pod.finished and not pod.deleting:
            usage = pod_amounts(node_usage.reports[place]).get((pod.namespace, pod.name))
            amount = requested_by(pod) if usage is None else usage
            found.append(MovingPod(pod, place, amount, is_prod(pod), usage is not None, one.target))
    return found


def count_moved(node_usage: NodeUsage, moving: Sequence[MovingPod]) -> None:
    """Move pods on their way from usage to in transit, which they are on known targets, too."""
    places = {name: place for place, name in enumerate(node_usage.names)}
    for one in moving:
        amounts = np.array((*one.amount, 1), np.int64)
        counted = amounts if one.is_measured else amounts * (0, 0, 1)  # in usage so far
        for usage, in_transit in (
            (node_usage.usage, node_usage.in_transit),
            *([(node_usage.prod_usage, node_usage.prod_in_transit)] if one.is_prod else []),
        ):
            usage[one.source, : PODS + 1] -= counted
            in_transit[one.source, : PODS + 1] += counted
            if one.target in places:
                in_transit[places[one.target], : PODS + 1] += amounts


def subtract_moved_usage(
    node_usage: NodeUsage, place: int, amounts: Sequence[Amount], *, is_prod: bool
) -> None:
    """Count measured pods, all prod or none, as gone from a node."""
    if amounts:
        cpu, memory = (sum(column) for column in zip(*amounts, strict=True))
        pods = (cpu, memory, len(amounts))
        node_usage.usage[place, : PODS + 1] -= pods
        if is_prod:
            node_usage.prod_usage[place, : PODS + 1] -= pods


@dataclass(frozen=True, slots=True)
class _NodesWithUsage:
    nodes: tuple[ClusterNode, ...]
    names: tuple[str, ...]
    rows: NDArray[np.intp]
    reports: tuple[UsageReport, ...]
    unusable: dict[str, str]


def _nodes_with_usage(
    inputs: RoundInputs, reject_reason: Callable[[UsageReport], str]
) -> _NodesWithUsage:
    """The nodes that are in the view and have a NodeMetric that may be used."""
    view, reports = inputs.view, inputs.reports
    kept: list[tuple[ClusterNode, int, UsageReport]] = []
    unusable: dict[str, str] = {}
    for node in inputs.nodes:
        row, report = view.row(node.name), reports.get(node.name)
        if row is None:
            unusable[node.name] = "it is gone"
        elif report is None:
            unusable[node.name] = "it has no NodeMetric"
        elif why := reject_reason(report):
            unusable[node.name] = why
        else:
            kept.append((node, row, report))
    return _NodesWithUsage(
        nodes=tuple(node for node, _, _ in kept),
        names=tuple(node.name for node, _, _ in kept),
        rows=np.array([row for _, row, _ in kept], np.intp),
        reports=tuple(report for _, _, report in kept),
        unusable=unusable,
    )


def _too_old(report: UsageReport, now: float, expiration: float) -> str:
    if report.usage is None and report.system_usage is None:
        return "its NodeMetric has no figures of the node"
    if report.update_time is None:
        return "its NodeMetric has no updateTime"
    age = now - report.update_time
    return f"its NodeMetric is {age:.0f} s old" if age >= expiration else ""


class WholeUsage(NamedTuple):
    """The usage of a whole node over a window."""

    amount: Amount
    window: float  # seconds; for so long it still has what pods have used that are gone


def whole_usage(report: UsageReport, args: LowNodeLoadArgs) -> WholeUsage | None:
    """The usage of a whole node where parts cannot say it; None: system and pods do.

    That is with a figure that is not a mean, and where the system's usage is not reported.
    """
    kind = args.usage_aggregation_type
    if kind is not None:
        found = aggregated(report.aggregated, kind, args.usage_aggregation_duration)
        if found is not None:
            return found
    if report.system_usage is not None:
        return None
    return WholeUsage(amount_of(report.usage), _MEAN_WINDOW)


def aggregated(
    windows: Iterable[ReportedAggregate], kind: AggregationType, duration: float | None
) -> WholeUsage | None:
    """Return a figure of a window: of that duration, else of the shortest one that has it.

    None: there is none, as while the window is cold.
    """
    for one in sorted(windows, key=attrgetter("duration")):
        usage: ReportedUsage | None = getattr(one, kind.value)
        if usage is not None and duration in (None, one.duration):
            return WholeUsage(amount_of(usage), one.duration)
    return None


def _without_implausible(node_usage: NodeUsage) -> NodeUsage:
    """Leave out nodes whose figures cannot be true, or without capacity."""
    capacity, usage = node_usage.capacity[:, :PODS], node_usage.usage[:, :PODS]
    empty = (capacity <= 0).any(axis=1)
    absurd = (usage > _MAX_PLAUSIBLE * capacity).any(axis=1)
    if not (empty | absurd).any():
        return node_usage
    why = {node_usage.names[at]: "its NodeMetric is absurd" for at in np.flatnonzero(absurd)}
    why |= {
        node_usage.names[at]: "it has no allocatable cpu or memory" for at in np.flatnonzero(empty)
    }
    kept = node_usage.taking(np.flatnonzero(~(empty | absurd)))
    return replace(kept, unusable={**node_usage.unusable, **why})


def _sums(
    inputs: RoundInputs, found: _NodesWithUsage, usage_cache: UsageCache, is_prod: IsProd
) -> tuple[UsageCache, dict[str, Amounts]]:
    """The sums of nodes: (nodes, 2) of cpu and memory by name, (nodes,) of numbers of pods."""
    rows = found.rows.tolist()
    usage_cache = sum_usage(usage_cache, found.names, rows, found.reports, inputs.view, is_prod)
    table = np.array([usage_cache[name].sums for name in found.names], np.int64)
    columns = dict(zip(UsageSums._fields, table.reshape(-1, len(UsageSums._fields)).T, strict=True))
    pairs = {
        name.removesuffix("_cpu"): np.stack((columns[name], columns[f"{name[:-4]}_memory"]), axis=1)
        for name in UsageSums._fields
        if name.endswith("_cpu")
    }
    return usage_cache, {
        **pairs,
        **{name: columns[name] for name in columns if name.endswith("pods")},
    }


def _columns(width: int, compute: Amounts, pods: Amounts | int) -> Amounts:
    """A table of all resources: cpu and memory, number of pods, nothing of others."""
    table = np.zeros((len(compute), width), np.int64)
    table[:, :PODS] = compute
    table[:, PODS] = pods
    return table


def _capacity(
    view: View, found: _NodesWithUsage, resources: Sequence[str], *, merged: bool
) -> Amounts:
    """Allocatable before amplification.

    Not merged: what an annotation about that leaves out is 0, as in Koordinator.
    """
    table = np.zeros((len(found.rows), len(resources)), np.int64)
    for column, name in enumerate(resources):
        if name in view.resources:
            table[:, column] = view.allocatable[found.rows, view.resources[name]]
    for place, node in enumerate(found.nodes):
        if node.raw_allocatable is not None:
            raw = dict(node.raw_allocatable)
            for column, name in enumerate(resources):
                if not merged or name in raw:
                    table[place, column] = raw.get(name, 0)
    return table


def _schedulable(found: _NodesWithUsage) -> Flags:
    return np.array([not node.unschedulable for node in found.nodes], np.bool_)
