"""The nodes of a round as columns: capacity and usage, as each planner counts them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from koord_descheduler.plugin import (
    AggregatedUsage,
    AggregationType,
    ClusterNode,
    ClusterPod,
    DisruptionBudget,
    LowNodeLoadArgs,
    Migration,
    Usage,
    UsageReport,
    View,
)
from koord_descheduler_plugins.low_node_load.figures import (
    Amount,
    Book,
    IsProd,
    Sums,
    add_up,
    amount_of,
    pod_amounts,
    requested_by,
)
from koord_descheduler_plugins.low_node_load.limits import Amounts, Flags

CPU, MEMORY, PODS = 0, 1, 2  # columns that are always there

_FUTURE = 60.0  # seconds by which clocks of nodes may be ahead
_MEAN_WINDOW = 300.0  # seconds of a NodeMetric's means, as Koordinator has it by default
_ABSURD = 4  # times a node's capacity


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """All that a round is decided on. Nothing in it changes."""

    view: View
    nodes: Sequence[ClusterNode]  # those that the profile is for, in a stable order
    reports: Mapping[str, UsageReport]  # by node
    budgets: Sequence[DisruptionBudget] = ()
    migrations: Sequence[Migration] = ()
    now: float = 0.0  # Unix seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Census:
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

    def taking(self, at: NDArray[np.intp]) -> "Census":
        """Return some of the nodes; amounts are copies."""
        places = at.tolist()
        return Census(
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


def koordinator_census(
    situation: Situation,
    args: LowNodeLoadArgs,
    resources: tuple[str, ...],
    book: Book,
    is_prod: IsProd,
) -> tuple[Census, Book]:
    """Count as Koordinator does: system and all entries, whether their pods are there or not."""

    def refusal(report: UsageReport) -> str:
        return _too_old(report, situation.now, args.node_metric_expiration_seconds)

    found = _known(situation, refusal)
    book, sums = _sums(situation, found, book, is_prod)
    system = _amounts(report.system_usage for report in found.reports)
    usage = _columns(len(resources), system + sums["reported"], sums["pods"])
    nothing = np.zeros_like(usage)
    return (
        Census(
            resources=resources,
            nodes=found.nodes,
            names=found.names,
            rows=found.rows,
            reports=found.reports,
            capacity=_capacity(situation.view, found, resources, merged=False),
            usage=usage,
            prod_usage=_columns(len(resources), sums["prod"], sums["prod_pods"]),
            in_transit=nothing,
            prod_in_transit=nothing,
            fixed=_columns(len(resources), system, 0),
            schedulable=_schedulable(found),
            unusable=found.unusable,
        ),
        book,
    )


def exact_census(
    situation: Situation,
    args: LowNodeLoadArgs,
    resources: tuple[str, ...],
    book: Book,
    is_prod: IsProd,
) -> tuple[Census, Book]:
    """Count what runs on a node from now on: system, host applications and the pods that stay.

    Usage is what was measured, as only that makes a node over- or underutilized. In transit are the
    requests of pods without entry, and what pods use that are being deleted: that takes room on a
    node, too. Where an aggregation is wanted, its figure of the node takes the place of the means.
    """

    def refusal(report: UsageReport) -> str:
        found = _too_old(report, situation.now, args.node_metric_expiration_seconds)
        if not found and report.update_time is not None:
            ahead = report.update_time - situation.now
            if ahead > _FUTURE:
                return f"its NodeMetric is {ahead:.0f} s from the future"
        return found

    found = _known(situation, refusal)
    book, sums = _sums(situation, found, book, is_prod)
    staying = sums["reported"] - sums["gone"] - sums["leaving"]
    wholes = [whole_usage(report, args) for report in found.reports]
    known = np.array([one is not None for one in wholes], np.bool_)
    amounts = [Amount() if one is None else one.amount for one in wholes]
    whole = np.array(amounts, np.int64).reshape(-1, 2)
    residual = np.maximum(whole - sums["reported"], 0)
    parts = _amounts(report.system_usage for report in found.reports)
    parts = parts + _amounts(report.host_usage for report in found.reports)
    beside = np.where(known[:, None], residual, parts)
    said = np.array([report.system_usage is not None for report in found.reports], np.bool_)
    fixed = np.where(said[:, None], parts, beside)
    width = len(resources)
    census = Census(
        resources=resources,
        nodes=found.nodes,
        names=found.names,
        rows=found.rows,
        reports=found.reports,
        capacity=_capacity(situation.view, found, resources, merged=True),
        usage=_columns(width, beside + staying, sums["pods"] - sums["leaving_pods"]),
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
    return _believable(census), book


@dataclass(frozen=True, slots=True)
class MovingPod:
    """A pod that a migration is about."""

    pod: ClusterPod
    source: int  # place in the census
    amount: Amount  # its usage, else its requests
    is_prod: bool
    is_measured: bool  # amount is its usage
    target: str  # "": not known yet


def moving_pods(situation: Situation, census: Census, is_prod: IsProd) -> list[MovingPod]:
    """The pods of migrations that are on a node of the census still, in a stable order."""
    places = {name: place for place, name in enumerate(census.names)}
    found = []
    for one in sorted(situation.migrations, key=attrgetter("pod", "uid")):
        place = places.get(one.node)
        if place is None:
            continue
        pods = situation.view.pods(int(census.rows[place]))
        pod = next((pod for pod in pods if pod.uid == one.uid), None)
        if pod is not None and not pod.finished and not pod.deleting:
            usage = pod_amounts(census.reports[place]).get((pod.namespace, pod.name))
            amount = requested_by(pod) if usage is None else usage
            found.append(MovingPod(pod, place, amount, is_prod(pod), usage is not None, one.target))
    return found


def count_moved(census: Census, moving: Sequence[MovingPod]) -> None:
    """Move pods on their way from usage to in transit, which they are on known targets, too."""
    places = {name: place for place, name in enumerate(census.names)}
    for one in moving:
        amounts = np.array((*one.amount, 1), np.int64)
        counted = amounts if one.is_measured else amounts * (0, 0, 1)  # in usage so far
        for usage, in_transit in (
            (census.usage, census.in_transit),
            *([(census.prod_usage, census.prod_in_transit)] if one.is_prod else []),
        ):
            usage[one.source, : PODS + 1] -= counted
            in_transit[one.source, : PODS + 1] += counted
            if one.target in places:
                in_transit[places[one.target], : PODS + 1] += amounts


def take_away(census: Census, place: int, amounts: Sequence[Amount], *, is_prod: bool) -> None:
    """Count measured pods, all prod or none, as gone from a node."""
    if amounts:
        cpu, memory = (sum(column) for column in zip(*amounts, strict=True))
        pods = (cpu, memory, len(amounts))
        census.usage[place, : PODS + 1] -= pods
        if is_prod:
            census.prod_usage[place, : PODS + 1] -= pods


@dataclass(frozen=True, slots=True)
class _Found:
    nodes: tuple[ClusterNode, ...]
    names: tuple[str, ...]
    rows: NDArray[np.intp]
    reports: tuple[UsageReport, ...]
    unusable: dict[str, str]


def _known(situation: Situation, refusal: Callable[[UsageReport], str]) -> _Found:
    """The nodes that are in the view and have a NodeMetric that may be used."""
    view, reports = situation.view, situation.reports
    kept: list[tuple[ClusterNode, int, UsageReport]] = []
    unusable: dict[str, str] = {}
    for node in situation.nodes:
        row, report = view.row(node.name), reports.get(node.name)
        if row is None:
            unusable[node.name] = "it is gone"
        elif report is None:
            unusable[node.name] = "it has no NodeMetric"
        elif why := refusal(report):
            unusable[node.name] = why
        else:
            kept.append((node, row, report))
    return _Found(
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
    windows: Iterable[AggregatedUsage], kind: AggregationType, duration: float | None
) -> WholeUsage | None:
    """Return a figure of a window: of that duration, else of the shortest one that has it.

    None: there is none, as while the window is cold.
    """
    for one in sorted(windows, key=attrgetter("duration")):
        usage: Usage | None = getattr(one, kind.value)
        if usage is not None and duration in (None, one.duration):
            return WholeUsage(amount_of(usage), one.duration)
    return None


def _believable(census: Census) -> Census:
    """Leave out nodes whose figures cannot be true, or without capacity."""
    capacity, usage = census.capacity[:, :PODS], census.usage[:, :PODS]
    empty = (capacity <= 0).any(axis=1)
    absurd = (usage > _ABSURD * capacity).any(axis=1)
    if not (empty | absurd).any():
        return census
    why = {census.names[at]: "its NodeMetric is absurd" for at in np.flatnonzero(absurd)}
    why |= {census.names[at]: "it has no allocatable cpu or memory" for at in np.flatnonzero(empty)}
    kept = census.taking(np.flatnonzero(~(empty | absurd)))
    return replace(kept, unusable={**census.unusable, **why})


def _sums(
    situation: Situation, found: _Found, book: Book, is_prod: IsProd
) -> tuple[Book, dict[str, Amounts]]:
    """The sums of nodes: (nodes, 2) of cpu and memory by name, (nodes,) of numbers of pods."""
    rows = found.rows.tolist()
    book = add_up(book, found.names, rows, found.reports, situation.view, is_prod)
    table = np.array([book[name].sums for name in found.names], np.int64)
    columns = dict(zip(Sums._fields, table.reshape(-1, len(Sums._fields)).T, strict=True))
    pairs = {
        name.removesuffix("_cpu"): np.stack((columns[name], columns[f"{name[:-4]}_memory"]), axis=1)
        for name in Sums._fields
        if name.endswith("_cpu")
    }
    return book, {**pairs, **{name: columns[name] for name in columns if name.endswith("pods")}}


def _amounts(usages: Iterable[Usage | None]) -> Amounts:
    return np.array([amount_of(one) for one in usages], np.int64).reshape(-1, 2)


def _columns(width: int, compute: Amounts, pods: Amounts | int) -> Amounts:
    """A table of all resources: cpu and memory, number of pods, nothing of others."""
    table = np.zeros((len(compute), width), np.int64)
    table[:, :PODS] = compute
    table[:, PODS] = pods
    return table


def _capacity(view: View, found: _Found, resources: Sequence[str], *, merged: bool) -> Amounts:
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


def _schedulable(found: _Found) -> Flags:
    return np.array([not node.unschedulable for node in found.nodes], np.bool_)
