"""Runs the plugins for one node, bounds what falls at once, and settles what it offers."""

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from koord.api.quantity import Quantity
from koord_manager.framework.facts import Calculation, NodeFacts, Offered, Term, Zone
from koord_manager.framework.interfaces import NodeResourcePlugin

FUTURE = 60.0  # seconds that the clock of a node may be ahead
MOST_CPU, MOST_MEMORY = 1.5, 1.05  # of the capacity; more in use is not possible, only reported


def doubts(node: NodeFacts) -> tuple[str, ...]:
    """Return what of a node's report cannot be right, or is missing; empty: nothing."""
    report, found = node.report, list[str]()
    if report is None or report.update_time is None:
        return ()
    if report.update_time > node.now + FUTURE:
        found.append(f"its time is {report.update_time - node.now:.0f} s in the future")
    if report.usage is None:
        found.append("the usage of the node is missing")
    if report.system_usage is None:
        found.append("the usage of the system is missing")
    capacity = dict(node.node.capacity)
    most_milli = capacity.get("cpu", 0) * MOST_CPU
    most_memory = capacity.get("memory", 0) * MOST_MEMORY
    parts = [("node", report.usage), ("system", report.system_usage)]
    cores, memory = report.pod_columns().largest()
    if cores * 1000 > most_milli or memory > most_memory:
        parts += [(f"pod {one.namespace}/{one.name}", one.usage) for one in report.pods]
    for name, usage in parts:
        if usage is None:
            continue
        if usage.cores * 1000 > most_milli:
            found.append(f"{name}: {usage.cores:g} cores in use")
        if usage.memory_bytes > most_memory:
            found.append(f"{name}: {usage.memory_bytes:.0f} bytes in use")
    return tuple(found[:5])


@dataclass(slots=True)
class _Known:
    amount: int
    report: float  # the report by which it was lowered last; 0: by none
    low_since: float | None = None  # the report that was the first to say much less


@dataclass(slots=True)
class History:
    """Amounts that a node has offered. basis: inputs besides reports; another one: all is new."""

    basis: Hashable = None
    known: dict[str, _Known] = field(default_factory=dict)

    def begin(self, basis: Hashable) -> None:
        """Start a calculation."""
        if basis != self.basis:
            if self.basis is not None:
                self.known.clear()
            self.basis = basis

    def knows(self, name: str) -> bool:
        """Whether it is known what the node has offered."""
        return name in self.known

    def assume(self, name: str, amount: int) -> None:
        """Begin with what the node has, unless it is known what it has offered."""
        if name not in self.known:
            self.known[name] = _Known(amount, 0.0)

    def forget(self, name: str) -> None:
        """The node offers nothing of it."""
        self.known.pop(name, None)

    def bounded(
        self, name: str, wanted: int, report: float, percent: int, doubtful: tuple[str, ...]
    ) -> tuple[int, str]:
        """Return how much to offer when so much is calculated, and why it is not that; "": it is.

        One report lowers it by so many percent at most, until a second one agrees. A doubtful one
        agrees with nothing, and raises nothing. report is its time.
        """
        known = self.known.get(name)
        if known is None:
            self.known[name] = _Known(wanted, report)
            return wanted, ""
        why = f"doubtful: {'; '.join(doubtful)}" if doubtful else ""
        if wanted >= known.amount:
            if not doubtful:
                self.known[name] = _Known(wanted, report)
                return wanted, ""
            return known.amount, why if wanted > known.amount else ""
        if report == known.report and known.low_since is not None:  # lowered by it already
            return (known.amount, _lowered(percent, why)) if wanted < known.amount else (wanted, "")
        lowest = known.amount - known.amount * percent // 100
        if wanted >= lowest and not doubtful:
            self.known[name] = _Known(wanted, report)
            return wanted, ""
        is_agreed = known.low_since is not None and known.low_since < report
        if is_agreed and not doubtful:
            self.known[name] = _Known(wanted, report)
            return wanted, ""
        since = known.low_since
        if not doubtful and since in (None, _NEVER):
            since = report
        found = max(wanted, lowest)
        # A doubtful report is remembered as having lowered it, but not as one to agree with.
        self.known[name] = _Known(found, report, since if since is not None else _NEVER)
        return found, _lowered(percent, why) if found > wanted else ""


_NEVER = float("inf")


def _lowered(percent: int, why: str) -> str:
    waits = "the report is" if why else "a second report must say the same:"
    return f"lowered by at most {percent}% for one report; {waits} {why}".rstrip(": ")


ORIGIN = "node.koordinator.sh/originExtendedAllocatable"  # annotation of a Node
NATIVE = frozenset({"cpu", "memory", "pods", "ephemeral-storage", "storage"})  # the kubelet's
MAX_RESOURCES = 64  # of one plugin
MAX_AMOUNT = 2**50 - 1  # as koord.cluster reads it
MAX_TEXT = 4096  # bytes of an annotation
MAX_SHARED = 256  # calculations that several nodes have

Call = Callable[[NodeResourcePlugin, NodeFacts, Calculation], Calculation]
"""Calls a plugin; raises what it raises."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OfferedResource:
    """The offered amount of one resource, and how it came about. None: the node has none of it."""

    plugin: str
    amount: int | None
    calculated: int | None  # before it was bounded, multiplied, and a part given away
    original: int | None = None  # before a part was given away
    given: int | None = None
    factor: float = 1.0
    terms: tuple[Term, ...] = ()
    reason: str = ""  # why it is none, or not what was calculated


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeResult:
    """The resources, labels and annotations that one node is to have."""

    resources: Mapping[str, OfferedResource]
    annotations: Mapping[str, str | None]
    labels: Mapping[str, str]
    zones: Mapping[str, Mapping[str, Quantity | None]]
    doubts: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def amounts_only(self) -> "NodeResult":
        """Return what is written on the Node, without how it came about: a tenth of the memory."""
        resources = {name: _written(one.amount) for name, one in self.resources.items()}
        return NodeResult(
            resources=resources, annotations=self.annotations, labels=self.labels, zones={}
        )


_NOT_WRITTEN = OfferedResource(plugin="", amount=None, calculated=None)


def _written(amount: int | None) -> OfferedResource:
    if amount is None:
        return _NOT_WRITTEN
    return OfferedResource(plugin="", amount=amount, calculated=None)


@dataclass(frozen=True, slots=True)
class _Part:
    """A checked calculation of one plugin; settled: the part that no report bounds."""

    plugin: str
    found: Calculation
    settled: Mapping[str, OfferedResource]


@dataclass(slots=True)
class _Merged:
    resources: dict[str, tuple[_Part, Offered]] = field(default_factory=dict)
    annotations: dict[str, str | None] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    zones: dict[str, dict[str, Quantity | None]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def view(self) -> Calculation:
        return Calculation(
            resources={name: each for name, (_, each) in self.resources.items()},
            annotations=self.annotations,
            labels=self.labels,
            zones=self.zones,
        )

    def take(self, part: _Part) -> None:
        found = part.found
        for name, one in found.resources.items():
            self.resources[name] = part, one
        self.annotations.update(found.annotations)
        self.labels.update(found.labels)
        for zone, amounts in found.zones.items():
            self.zones.setdefault(zone, {}).update(amounts)
        self.problems += [f"{part.plugin}: {one}" for one in found.problems]


class Calculator:
    """Calculates what nodes offer."""

    def __init__(
        self,
        plugins: Iterable[NodeResourcePlugin],
        *,
        declared: Iterable[str],
        max_decrease_percent: int,
        call: Call = lambda plugin, node, earlier: plugin.calculate(node, earlier),
        limits: AbstractContextManager[object] | None = None,
        failed: Callable[[str, str, Exception], None] = lambda plugin, node, error: None,
    ) -> None:
        """declared: the annotations of nodes that are kept. failed gets errors of plugins.

        limits is entered for all calls about a node; None: call needs nothing around it.
        """
        self.plugins: Sequence[NodeResourcePlugin] = sorted(plugins, key=lambda one: one.order)
        self._declared = frozenset(declared)
        self.max_decrease_percent = max_decrease_percent  # of an offer, by one report
        self._call = call
        self._limits = nullcontext() if limits is None else limits
        self._failed = failed
        self._parts: dict[tuple[str, int], _Part] = {}

    def calculate(self, node: NodeFacts, history: History) -> NodeResult:
        """Return what a node is to have; history is that of this node, and is brought up to date"""
        merged = _Merged()
        with self._limits:
            for plugin in self.plugins:
                try:
                    merged.take(self._part(plugin, node, merged))
                except Exception as err:  # third party's code: the others go on
                    merged.problems.append(f"{plugin.name}: {type(err).__name__}: {err}"[:300])
                    self._failed(plugin.name, node.name, err)
        return self._settle(node, merged, history)

    def _part(self, plugin: NodeResourcePlugin, node: NodeFacts, merged: _Merged) -> _Part:
        """Return what a plugin says; that of one without a need for reports is kept."""
        if plugin.reads_reports:
            return self._checked(plugin.name, self._call(plugin, node, merged.view()))
        return node.without_report(plugin, lambda _: self._shared(plugin, node, merged.view()))

    def _shared(self, plugin: NodeResourcePlugin, node: NodeFacts, earlier: Calculation) -> _Part:
        """Return what a plugin says; nodes of which it returns the same object share the part."""
        found = self._call(plugin, node, earlier)
        key = plugin.name, id(found)  # which lives as long as the part
        part = self._parts.get(key)
        if part is None:
            if len(self._parts) >= MAX_SHARED:  # of plugins that make each anew
                self._parts.clear()
            part = self._parts[key] = self._checked(plugin.name, found)
        return part

    def _checked(self, plugin: str, found: Calculation) -> _Part:
        """Return what may be merged. Raises ValueError."""
        if len(found.resources) + len(found.annotations) + len(found.labels) > MAX_RESOURCES:
            raise ValueError(f"wanted at most {MAX_RESOURCES} resources, annotations and labels")
        settled = {}
        for name, offered in found.resources.items():
            if name in NATIVE:
                raise ValueError(f"{name} belongs to the kubelet")
            amount = offered.amount
            if amount is not None and not (type(amount) is int and 0 <= amount <= MAX_AMOUNT):
                raise ValueError(f"{name}: wanted a whole number from 0 on, found {amount!r:.40}")
            if amount is None or not offered.is_measured:
                settled[name] = _offered(plugin, offered, amount, offered.reason)
        for key, text in found.annotations.items():
            if key not in self._declared:
                raise ValueError(f"annotation {key}: declare it with @reads")
            if text is not None and len(text) > MAX_TEXT:
                raise ValueError(f"annotation {key}: wanted at most {MAX_TEXT} characters")
        return _Part(plugin, found, settled)

    def _settle(self, node: NodeFacts, merged: _Merged, history: History) -> NodeResult:
        factors = tuple([(name, one.factor) for name, (_, one) in merged.resources.items()])
        history.begin((node.strategy, node.node.capacity, node.node.raw_allocatable, factors))
        doubtful = doubts(node)
        settled: dict[str, OfferedResource] = {}
        for name, (part, one) in merged.resources.items():
            found = part.settled.get(name)
            if found is None:
                found = self._bounded(node, name, part.plugin, one, history, doubtful)
            elif one.amount is None:
                history.forget(name)
            settled[name] = found
        zones = self._zones(node, merged, history, doubtful)
        annotations = dict(merged.annotations)
        given = {name: one for name, one in settled.items() if one.given is not None}
        if given and ORIGIN in self._declared:
            annotations[ORIGIN] = _origin_text(node.without_report(_origins, _origins), given)
        return NodeResult(
            resources=settled,
            annotations=annotations,
            labels=merged.labels,
            zones=zones,
            doubts=doubtful,
            problems=tuple(merged.problems),
        )

    def _bounded(
        self,
        node: NodeFacts,
        name: str,
        plugin: str,
        one: Offered,
        history: History,
        doubtful: tuple[str, ...],
    ) -> OfferedResource:
        """Return what is offered of a resource that is measured."""
        if not history.knows(name):
            before = self._before(node, name, one)
            if before > 0:
                history.assume(name, int(before / one.factor))
        at = (node.report.update_time if node.report else None) or 0.0
        percent = self.max_decrease_percent
        amount, reason = history.bounded(name, one.amount or 0, at, percent, doubtful)
        return _offered(plugin, one, amount, reason)

    def _zones(
        self, node: NodeFacts, merged: _Merged, history: History, doubtful: tuple[str, ...]
    ) -> Mapping[str, Mapping[str, Quantity | None]]:
        """Bound decreases of zones as those of their node: of what is measured, by one report."""
        measured = {name for name, (_, one) in merged.resources.items() if one.is_measured}
        present = {zone.name: zone for zone in node.topology.zones} if node.topology else {}
        at = (node.report.update_time if node.report else None) or 0.0
        found: dict[str, dict[str, Quantity | None]] = {}
        for zone, amounts in merged.zones.items():
            settled = found[zone] = dict(amounts)
            for name, wanted in amounts.items():
                key = f"{zone}/{name}"
                if wanted is None or name not in measured:
                    history.forget(key)
                    continue
                before = _of_zone(present.get(zone), name)
                if before > 0:
                    history.assume(key, before)
                amount, _ = history.bounded(
                    key, wanted.milli, at, self.max_decrease_percent, doubtful
                )
                if amount != wanted.milli:
                    settled[name] = _zone_quantity(name, amount)
        return found

    def _before(self, node: NodeFacts, name: str, one: Offered) -> int:
        """Return what the node has of a resource, before a part was given away; 0: nothing."""
        if one.given is None:
            return dict(node.node.allocatable).get(name, 0)
        text = node.without_report(_origins, _origins).get(name)
        try:
            return 0 if text is None else Quantity.parse(text).integer
        except (ValueError, TypeError, AttributeError):
            return 0


def _offered(plugin: str, one: Offered, amount: int | None, reason: str) -> OfferedResource:
    """Return the offer of so much, before the factor and what is given away."""
    if amount is None:
        return OfferedResource(
            plugin=plugin, amount=None, calculated=None, given=one.given, reason=reason
        )
    multiplied = scaled(amount, one.factor)
    return OfferedResource(
        plugin=plugin,
        amount=max(multiplied - (one.given or 0), 0),
        calculated=one.amount,
        original=multiplied,
        given=one.given,
        factor=one.factor,
        terms=one.terms,
        reason=reason,
    )


def _of_zone(zone: Zone | None, name: str) -> int:
    """Thousandths that a zone offers of a resource now; 0: nothing."""
    if zone is None or name not in zone.names:
        return 0
    _, allocatable, _ = zone.texts[zone.names.index(name)]
    return Quantity.parse(allocatable).milli


def _zone_quantity(name: str, milli: int) -> Quantity:
    if name.endswith("memory"):
        return Quantity.of_bytes(milli // 1000)
    return Quantity.of_milli(milli)


def scaled(amount: int, factor: float) -> int:
    """Return the product in whole units, of the product in thousandths rounded up.

    Source: Koordinator, batchresource prepareNodeForResource.
    """
    return amount if factor == 1.0 else -(-int(amount * 1000 * factor) // 1000)


def _origins(node: NodeFacts) -> Mapping[str, Any]:
    """The resources of the annotation."""
    try:
        found = json.loads(node.annotation(ORIGIN) or "{}").get("resources")
    except (ValueError, AttributeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _origin_text(present: Mapping[str, Any], given: Mapping[str, OfferedResource]) -> str:
    """The annotation: resources of others in it stay."""
    ours = {name: amount_text(name, one.original or 0) for name, one in given.items()}
    merged = {**present, **ours}
    return json.dumps({"resources": dict(sorted(merged.items()))}, separators=(",", ":"))


def amount_text(name: str, amount: int) -> str:
    """Return the quantity as it is written: bytes with binary suffixes, others with decimal ones"""
    if name.endswith("memory"):
        return str(Quantity.of_bytes(amount))
    return str(Quantity.of_milli(amount * 1000))
