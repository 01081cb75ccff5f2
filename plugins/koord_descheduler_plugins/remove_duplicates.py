"""RemoveDuplicates: pods of one owner spread over the nodes that can take them.

Source: sigs.k8s.io/descheduler, removeduplicates.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from koord.plugin.args import FieldError, takes_args
from koord_descheduler.plugin import (
    Action,
    BalancePlugin,
    ClusterNode,
    ClusterPod,
    Evictions,
    Handle,
    HypotheticalCluster,
    Mask,
    Namespaces,
    PluginRegistry,
    PodSpec,
    View,
    check_namespaces,
    is_schedulable,
    least_important,
    matches_node_affinity,
    pods_in,
    tolerates_taints,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoveDuplicatesArgs:
    """RemoveDuplicates evicts all but one of the pods that one owner has on one node."""

    namespaces: Namespaces | None = None  # pods that may go; not set: all
    exclude_owner_kinds: tuple[str, ...] = ()  # pods of such owners stay

    def validate(self) -> Iterator[FieldError]:
        """Return the faults."""
        yield from check_namespaces(("namespaces",), self.namespaces)


@dataclass(slots=True)
class Duplicates:
    """Pods of the same owners with the same images, of which some nodes have too many."""

    most: int  # pods on a node when they are spread evenly
    targets: Mask  # nodes that can take them by labels and taints; (nodes,)
    found: NDArray[np.intp]  # how many each node has; (nodes,)
    crowded: dict[int, list[ClusterPod]]  # by row, where there are more than most


@takes_args(RemoveDuplicatesArgs, strict=False)
class RemoveDuplicates(BalancePlugin):
    """Evicts what a node has beyond an even share, if nodes with fewer of them fit it."""

    def __init__(self, args: RemoveDuplicatesArgs, handle: Handle) -> None:
        self._handle = handle
        self._excluded = frozenset(args.exclude_owner_kinds)
        self._wanted = pods_in(args.namespaces)

    async def balance(self, nodes: Sequence[ClusterNode]) -> None:
        view = self._handle.view_with_migrations()
        rows = [row for node in nodes if (row := view.row(node.name)) is not None]
        groups = await asyncio.to_thread(lambda: list(self._find(view, rows)))
        with Evictions(self._handle, self.name) as evictions:
            for group in groups:
                for row, pods in group.crowded.items():
                    pods[:] = await evictions.those_that_may_go(pods, _why(group, row))
            async for pod, why, target in evictions.steps(plan(view, rows, groups)):
                if target is None:
                    reason = f"{why}, but no node with fewer of them fits it"
                    evictions.findings.pod(pod, Action.STAY, reason)
                else:
                    await evictions.evict(pod, why, (view.node(target).name,))

    def _find(self, view: View, rows: Sequence[int]) -> Iterator[Duplicates]:
        """Groups with too many on a node."""
        found: dict[object, dict[int, list[ClusterPod]]] = {}
        for row in rows:
            for pod in view.pods(row):
                if pod.finished or pod.deleting or not pod.owners or not self._counts(pod):
                    continue
                key = pod.namespace, tuple(owner.uid for owner in pod.owners), pod.spec.images
                found.setdefault(key, {}).setdefault(row, []).append(pod)
        for by_row in found.values():
            if max(map(len, by_row.values())) > 1:
                group = duplicates(view, rows, by_row)
                if group is not None:
                    yield group

    def _counts(self, pod: ClusterPod) -> bool:
        return self._wanted(pod) and not any(one.kind in self._excluded for one in pod.owners)


def duplicates(
    view: View, rows: Sequence[int], by_row: dict[int, list[ClusterPod]]
) -> Duplicates | None:
    """Return a group that is spread unevenly; None: it is not, or can only be on one node."""
    targets = np.zeros(len(view), np.bool_)
    seen: set[PodSpec] = set()
    for pods in by_row.values():
        for pod in pods:
            if pod.spec not in seen:
                seen.add(pod.spec)
                targets |= _can_take(pod, view)
    among = np.zeros(len(view), np.bool_)
    among[list(rows)] = True
    targets &= among
    places = int(targets.sum())
    if places < 2:
        return None
    counts = np.zeros(len(view), np.intp)
    for row, pods in by_row.items():
        counts[row] = len(pods)
    most = -(-int(counts.sum()) // places)
    crowded = {
        row: sorted(pods, key=lambda pod: (*least_important(pod), -(pod.created or 0), pod.key))
        for row, pods in by_row.items()
        if len(pods) > most
    }
    return Duplicates(most, targets, counts, crowded) if crowded else None


def plan(
    view: View, rows: Sequence[int], groups: Sequence[Duplicates]
) -> Iterator[tuple[ClusterPod, str, int | None]]:
    """Yield the pods that should leave, why, and the row where each could go; None: nowhere."""
    names = {row: view.node(row).name for row in rows}
    order = np.array(sorted(rows, key=lambda row: names[row]), np.intp)
    moves = HypotheticalCluster(view)
    for group in groups:
        counts = group.found.copy()
        for row in sorted(group.crowded, key=lambda row: (-counts[row], names[row])):
            for pod in group.crowded[row]:
                if counts[row] <= group.most:
                    break
                why = _why(group, row)
                allowed = (
                    moves.fits(pod)[order] & group.targets[order] & (counts[order] < group.most)
                )
                if not allowed.any():
                    yield pod, why, None
                    continue
                target = int(order[np.argmin(np.where(allowed, counts[order], counts.sum() + 1))])
                moves.move(pod, target)
                counts[target] += 1
                counts[row] -= 1
                yield pod, why, target


def _can_take(pod: ClusterPod, view: View) -> Mask:
    """Nodes that allow a pod by what they are; none if that is only one."""
    nodes = (
        is_schedulable(pod, view) & tolerates_taints(pod, view) & matches_node_affinity(pod, view)
    )
    return nodes if nodes.sum() > 1 else np.zeros(len(view), np.bool_)


def _why(group: Duplicates, row: int) -> str:
    return f"its node has {group.found[row]} pods like it, {group.most} are an even share"


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register("RemoveDuplicates", RemoveDuplicates)
