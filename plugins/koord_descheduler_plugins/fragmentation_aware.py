"""FragmentationAware: pods leave nodes whose resources are requested unevenly.

A node that has much CPU left but no memory can take no further pod. Of each such node at most one
pod leaves in a cycle, the one without which its resources are requested the most evenly.

With freeWhole, pods leave GPUs and NUMA nodes, too, of which they alone have a part, where another
node has room for them in parts that are in use already: then a whole one is free.

Source: Koordinator, pkg/descheduler/framework/plugins/fragmentationaware.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from koord.api.labelselector import LabelSelector
from koord.plugin.args import FieldError, invalid, takes_args
from koord_descheduler.plugin import (
    PART_KINDS,
    Action,
    BalancePlugin,
    ClusterNode,
    ClusterPod,
    EvictOptions,
    Findings,
    Handle,
    HardwarePart,
    HypotheticalCluster,
    Namespaces,
    PluginRegistry,
    PodSelector,
    View,
    check_label_selector,
    check_namespaces,
    check_pod_selectors,
    check_unique,
    not_selected,
    parts_wanted,
)

_RESOURCES = ("cpu", "memory")


@dataclass(frozen=True, kw_only=True, slots=True)
class FragmentationAwareArgs:
    """Pods leave nodes whose resources are requested unevenly."""

    paused: bool = False  # do nothing
    dry_run: bool = False  # decide, but evict nothing
    node_selector: LabelSelector | None = None  # nodes that are looked at; not set: all
    evictable_namespaces: Namespaces | None = None  # pods that may go; not set: all
    pod_selectors: tuple[PodSelector, ...] = ()  # pods that may go match one of them; none: all
    node_fit: bool = True  # a pod goes only if another node can take it
    resources: tuple[str, ...] = _RESOURCES  # names of the resources that are compared
    imbalance_threshold: float = 0.15  # deviation of requested shares above which a node counts
    min_improvement_threshold: float = 0.02  # a pod goes only if the deviation shrinks by more
    free_whole: tuple[str, ...] = ()  # parts, gpu or numaNode, of which pods free whole ones

    def complete(self) -> Self:
        """Give an empty list of resources its default."""
        return replace(self, resources=self.resources or _RESOURCES)

    def validate(self) -> Iterator[FieldError]:
        """Return the faults."""
        yield from check_unique(("resources",), self.resources)
        yield from check_unique(("freeWhole",), self.free_whole)
        for one in self.free_whole:
            if one not in PART_KINDS:
                yield invalid(("freeWhole",), one, f"wanted {' or '.join(PART_KINDS)}")
        for key, value in (
            ("imbalanceThreshold", self.imbalance_threshold),
            ("minImprovementThreshold", self.min_improvement_threshold),
        ):
            if value < 0:
                yield invalid((key,), value, "wanted 0 or more")
        yield from check_namespaces(("evictableNamespaces",), self.evictable_namespaces)
        yield from check_label_selector(("nodeSelector",), self.node_selector)
        yield from check_pod_selectors(self.pod_selectors)


SHOWN = 5  # candidates of a pod
ROUNDING = 1e-9  # a deviation that differs by less is the same


@dataclass(frozen=True, slots=True)
class BestMove:
    """The pod that should leave a node."""

    pod: ClusterPod
    gain: float  # by which the node's deviation would shrink
    target: int | None  # a row on which it would do best; None: it was not asked
    candidates: tuple[str, ...]


class Shares:
    """Requested shares of the resources of some nodes, while pods move between them.

    A share is a part of a node's allocatable; a resource of which a node has nothing is left out.
    """

    def __init__(self, view: View, rows: NDArray[np.intp], resources: Sequence[str]) -> None:
        self._names = [name for name in resources if name in view.resources]
        columns = np.array([view.resources[name] for name in self._names], np.intp)
        self._places = {int(row): place for place, row in enumerate(rows)}
        self._requested = view.requested[np.ix_(rows, columns)].astype(np.float64)
        allocatable = view.allocatable[np.ix_(rows, columns)].astype(np.float64)
        self._allocatable = np.where(allocatable > 0, allocatable, np.nan)

    def deviation(self, row: int) -> float:
        """The population standard deviation of a node's shares; 0 where there are none."""
        return self._deviation(self._places[row], 0.0)

    def without(self, row: int, pod: ClusterPod) -> float:
        """The same if a pod, which is on that node, were not there."""
        return self._deviation(self._places[row], self._amounts(pod))

    def move(self, pod: ClusterPod, source: int, target: int | None) -> None:
        """Let a pod go from one row to another one; None: to a node that is none of them."""
        amounts = self._amounts(pod)
        self._requested[self._places[source]] -= amounts
        if target is not None:
            self._requested[self._places[target]] += amounts

    def after(self, pod: ClusterPod) -> NDArray[np.float64]:
        """The deviation of each node if the pod moved to it; shape (rows,)."""
        shares = (self._requested + self._amounts(pod)) / self._allocatable
        return np.array([_deviation(one) for one in shares])

    def _deviation(self, place: int, less: NDArray[np.float64] | float) -> float:
        return _deviation((self._requested[place] - less) / self._allocatable[place])

    def _amounts(self, pod: ClusterPod) -> NDArray[np.float64]:
        requests = {"pods": 1, **dict(pod.spec.requests)}
        return np.array([requests.get(name, 0) for name in self._names], np.float64)


def _deviation(shares: NDArray[np.float64]) -> float:
    known = shares[~np.isnan(shares)]
    return float(known.std()) if known.size else 0.0


@takes_args(FragmentationAwareArgs)
class FragmentationAware(BalancePlugin):
    """Looks at nodes one after the other, each after the moves before it."""

    def __init__(self, args: FragmentationAwareArgs | None, handle: Handle) -> None:
        self._args = args or FragmentationAwareArgs()
        self._handle = handle
        self._left_out = not_selected(self._args.evictable_namespaces, self._args.pod_selectors)

    async def balance(self, nodes: Sequence[ClusterNode]) -> None:
        """Evict at most one pod of each uneven node."""
        if self._args.paused:
            return
        selector = self._args.node_selector
        chosen = [one for one in nodes if selector is None or selector.matches(one.labels)]
        view = self._handle.view_with_migrations()
        found = [row for one in chosen if (row := view.row(one.name)) is not None]
        rows = np.array(found, np.intp)
        findings = Findings(self._handle.profile, self.name)
        round_ = _Round(self._args, view, rows, findings, self._parts(view))
        for row in found:
            await asyncio.sleep(0)  # others have their turn
            gone = await self._look_at(row, round_)
            if not gone and self._args.free_whole:
                await self._look_at_parts(row, round_)
        self._handle.services.decisions.publish(findings)

    def _parts(self, view: View) -> dict[str, dict[int, dict[int, HardwarePart]]]:
        """The parts of nodes by kind and row, to be changed."""
        found = {}
        for kind in self._args.free_whole:
            every = self._handle.services.hardware.parts(kind, view) or {}
            found[kind] = {row: dict(parts) for row, parts in every.items()}
        return found

    async def _look_at(self, row: int, round_: "_Round") -> bool:
        """Evict a pod that makes a node uneven; return whether one has left."""
        node = round_.view.node(row).name
        before = round_.shares.deviation(row)
        if before <= self._args.imbalance_threshold + ROUNDING:
            round_.findings.node(
                node,
                "even",
                f"its requested shares deviate by {before:.4f}, at most "
                f"{self._args.imbalance_threshold:g} is allowed",
                facts={"deviation": before},
                hint=f"imbalanceThreshold below {before:.4f}",
            )
            return False
        round_.findings.node(
            node,
            "uneven",
            f"its requested shares deviate by {before:.4f}, more than "
            f"{self._args.imbalance_threshold:g}",
            facts={"deviation": before},
            hint=f"imbalanceThreshold of {before:.4f} or more",
        )
        chosen = self._choose(row, before, round_)
        if chosen is None:
            return False
        after = before - chosen.gain
        reason = (
            f"fragmentation reduction: stdBefore={before:.4f} "
            f"stdAfter={after:.4f} gain={chosen.gain:.4f}"
        )
        return await self._evict(row, chosen, {"gain": chosen.gain}, reason, round_)

    async def _look_at_parts(self, row: int, round_: "_Round") -> None:
        """Evict the pod whose leaving frees the most whole GPUs or NUMA nodes of a node."""
        for kind in self._args.free_whole:
            parts, alone = round_.parts[kind].get(row, {}), dict[str, list[int]]()
            for number, part in sorted(parts.items()):
                if len(part.holders) == 1 and part.is_broken:
                    alone.setdefault(next(iter(part.holders)), []).append(number)
            found = [(pod, alone[pod.key]) for pod in round_.view.pods(row) if pod.key in alone]
            found.sort(key=lambda one: (-len(one[1]), one[0].priority or 0))
            for pod, numbers in found:
                names = ", ".join(f"{_NAMES[kind]} {number}" for number in numbers)
                if await self._free(row, pod, kind, names, len(numbers), round_):
                    return

    async def _free(
        self, row: int, pod: ClusterPod, kind: str, names: str, count: int, round_: "_Round"
    ) -> bool:
        """Evict a pod so that parts are free; return whether it has left."""
        findings, facts = round_.findings, {"whole": float(count)}
        node = round_.view.node(row).name
        if reason := self._left_out(pod) or self._handle.evictor().reject_reason(pod):
            findings.pod(pod, Action.STAY, reason, facts=facts)
            return False
        targets = round_.with_used_parts(pod, row, kind)
        if not targets:
            text = (
                f"without it {names} of {node} would be free, but no other node has room for it "
                f"in a {_NAMES[kind]} that is in use already"
            )
            findings.pod(pod, Action.STAY, text, facts=facts)
            return False
        findings.node(node, "fragmented", f"{names}: {pod.key} alone has a part", facts=facts)
        shown = tuple(round_.view.node(target).name for target in targets[:SHOWN])
        chosen = BestMove(pod, 0.0, targets[0], shown)
        reason = f"fragmentation reduction: frees {names} of {node}"
        return await self._evict(row, chosen, facts, reason, round_)

    def _choose(self, row: int, before: float, round_: "_Round") -> BestMove | None:
        findings, evictor = round_.findings, self._handle.evictor()
        gains: list[tuple[ClusterPod, float]] = []
        for pod in round_.view.pods(row):
            if pod.finished:
                continue
            gain = before - round_.shares.without(row, pod)
            if reason := self._left_out(pod) or evictor.reject_reason(pod):
                findings.pod(pod, Action.STAY, reason, facts={"gain": gain})
            elif gain <= self._args.min_improvement_threshold + ROUNDING:
                findings.pod(pod, Action.STAY, self._too_little(gain), facts={"gain": gain})
            else:
                gains.append((pod, gain))
        gains.sort(key=lambda one: -one[1])  # stable: the first one on ties
        chosen = None
        for pod, gain in gains:
            if chosen is not None:
                text = f"{chosen.pod.key} leaves it in this cycle and gains as much or more"
                findings.pod(pod, Action.STAY, text, facts={"gain": gain})
                continue
            target, names = round_.targets(pod, row)
            if self._args.node_fit and target is None:
                text = f"it fits none of the other {round_.others} nodes"
                findings.pod(pod, Action.STAY, text, facts={"gain": gain})
                continue
            chosen = BestMove(pod, gain, target, names)
        return chosen

    def _too_little(self, gain: float) -> str:
        least = self._args.min_improvement_threshold
        return f"without it the deviation would shrink by {gain:.4f}, wanted more than {least:g}"

    async def _evict(
        self,
        row: int,
        chosen: BestMove,
        facts: Mapping[str, float],
        reason: str,
        round_: "_Round",
    ) -> bool:
        """Evict a pod; return whether it leaves."""
        evictor, pod = self._handle.evictor(), chosen.pod
        about: dict[str, Any] = {"candidates": chosen.candidates, "facts": facts}
        if not evictor.pre_eviction_filter(pod):
            text = "a filter does not let it be evicted now"
            round_.findings.pod(pod, Action.REFUSED, text, **about)
            return False
        done = self._args.dry_run or await evictor.evict(pod, EvictOptions(reason=reason))
        round_.findings.pod(pod, Action.EVICT if done else Action.REFUSED, reason, **about)
        if done:
            round_.move(pod, row, chosen.target)
        return done


class _Round:
    """The cluster while the pods of one round move."""

    def __init__(
        self,
        args: FragmentationAwareArgs,
        view: View,
        rows: NDArray[np.intp],
        findings: Findings,
        parts: dict[str, dict[int, dict[int, HardwarePart]]],
    ) -> None:
        """parts: of nodes, by kind and row."""
        self.view = view
        self.parts = parts
        self.findings = findings
        self.shares = Shares(view, rows, args.resources)
        self.others = max(len(rows) - 1, 0)
        self._rows = rows
        self._cluster = HypotheticalCluster(view) if args.node_fit else None

    def targets(self, pod: ClusterPod, source: int) -> tuple[int | None, tuple[str, ...]]:
        """The node on which the pod would do best, and names of others; None: it is not asked."""
        if self._cluster is None:
            return None, ()
        places = np.flatnonzero(self._cluster.fits(pod)[self._rows] & (self._rows != source))
        if not places.size:
            return None, ()
        best = places[np.argsort(self.shares.after(pod)[places], kind="stable")]
        rows = self._rows[best]
        names = tuple(self.view.node(int(row)).name for row in rows[:SHOWN])
        return int(rows[0]), names

    def with_used_parts(self, pod: ClusterPod, source: int, kind: str) -> list[int]:
        """Rows with room for a pod in parts that are in use already, the fullest first."""
        wanted = parts_wanted(pod, kind)
        if wanted is None:
            return []
        fitting = None if self._cluster is None else self._cluster.fits(pod)
        found = []
        for row in self._rows.tolist():
            if row == source or (fitting is not None and not fitting[row]):
                continue
            used = _used_parts(self.parts[kind].get(row, {}), *wanted)
            if used:
                found.append((sum(part.free[0] for _, part in used), row))
        return [row for _, row in sorted(found)]

    def move(self, pod: ClusterPod, source: int, target: int | None) -> None:
        """Let a pod leave: what is decided after it counts with that."""
        self.shares.move(pod, source, target)
        for kind, of_rows in self.parts.items():
            wanted = parts_wanted(pod, kind)
            of_source = of_rows.get(source, {})
            for number, part in list(of_source.items()):
                if pod.key in part.holders:  # what it leaves is not given to others in this cycle
                    of_source[number] = HardwarePart(part.free, part.holders - {pod.key})
            of_target = {} if target is None else of_rows.get(target, {})
            for number, part in _used_parts(of_target, *wanted) if wanted else ():
                of_target[number] = part.with_pod(pod.key, wanted[1] if wanted else ())
        if self._cluster is not None:
            self._cluster.move(pod, target)


_NAMES = {"gpu": "GPU", "numaNode": "NUMA node"}


def _used_parts(
    parts: Mapping[int, HardwarePart], count: int, each: tuple[int, ...]
) -> list[tuple[int, HardwarePart]]:
    """The fullest parts in use that have room, as many as are wanted; none: there are fewer."""
    used = [(number, part) for number, part in parts.items() if part.holders and part.fits(each)]
    used.sort(key=lambda one: (one[1].free, one[0]))
    return used[:count] if len(used) >= count else []


def register(registry: PluginRegistry) -> None:
    """Register the plugin; called through the entry point."""
    registry.register("FragmentationAware", FragmentationAware)
