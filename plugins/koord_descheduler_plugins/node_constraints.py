"""RemovePodsViolatingNodeAffinity and -NodeTaints: pods leave unsuitable nodes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from koord.api.labelselector import LabelSelector
from koord.plugin.args import FieldError, invalid, required, takes_args
from koord_descheduler.plugin import (
    ClusterPod,
    EvictionCandidate,
    Handle,
    Mask,
    Namespaces,
    NodeFit,
    PluginRegistry,
    PodSpec,
    PureDeschedulePlugin,
    Taint,
    View,
    check_pods,
    matches_node_affinity,
    matches_terms,
    pods_in,
)


class NodeAffinityType(StrEnum):
    """The kind of a node affinity that pods may violate."""

    REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
    PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovePodsViolatingNodeAffinityArgs:
    """Pods leave nodes that their node affinity no longer allows."""

    namespaces: Namespaces | None = None  # pods that may go; not set: all
    label_selector: LabelSelector | None = None  # pods that may go; not set: all
    node_affinity_type: tuple[NodeAffinityType, ...] = ()  # kinds that count; must be set

    def validate(self) -> Iterator[FieldError]:
        """Return the faults."""
        yield from check_pods(self.namespaces, self.label_selector)
        if not self.node_affinity_type:
            yield required(("nodeAffinityType",), f"for example {NodeAffinityType.REQUIRED}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovePodsViolatingNodeTaintsArgs:
    """Pods leave nodes with taints that they do not tolerate."""

    namespaces: Namespaces | None = None  # pods that may go; not set: all
    label_selector: LabelSelector | None = None  # pods that may go; not set: all
    include_prefer_no_schedule: bool = False  # taints of effect PreferNoSchedule count, too
    excluded_taints: tuple[str, ...] = ()  # "key" or "key=value"; do not count
    included_taints: tuple[str, ...] = ()  # "key" or "key=value"; only these count; none: all

    def validate(self) -> Iterator[FieldError]:
        """Return the faults."""
        yield from check_pods(self.namespaces, self.label_selector)
        if self.excluded_taints and self.included_taints:
            wanted = "only one of excludedTaints and includedTaints can be set"
            yield invalid(("includedTaints",), self.included_taints, wanted)


@takes_args(RemovePodsViolatingNodeAffinityArgs, strict=False)
class RemovePodsViolatingNodeAffinity(PureDeschedulePlugin):
    """Names the pods whose node affinity forbids their node, or prefers another, that they fit."""

    def __init__(self, args: RemovePodsViolatingNodeAffinityArgs, handle: Handle) -> None:
        super().__init__(handle)
        self._hardware = handle.services.hardware
        self._types = args.node_affinity_type
        self._wanted = pods_in(args.namespaces, args.label_selector)

    def pods_to_evict(
        self, view: View, rows: Sequence[int], now: float
    ) -> Iterator[EvictionCandidate]:
        among = np.zeros(len(view), np.bool_)
        among[list(rows)] = True
        judges = {
            NodeAffinityType.REQUIRED: self._required,
            NodeAffinityType.PREFERRED: self._preferred,
        }
        for kind in self._types:
            yield from judges[kind](view, among)

    def _required(self, view: View, among: Mask) -> Iterator[EvictionCandidate]:
        node_fit = NodeFit(self._hardware.fits)
        for pods in pods_by_spec(view, among, lambda spec: spec.node_terms is not None):
            allowed = matches_node_affinity(pods[0], view)
            for pod in self._on(view, pods, ~allowed):
                fitting = node_fit.elsewhere(pod, view, among)
                why = "its required node affinity forbids its node"
                yield EvictionCandidate(pod, why, but=fitting.reason)

    def _preferred(self, view: View, among: Mask) -> Iterator[EvictionCandidate]:
        node_fit = NodeFit(self._hardware.fits)
        for pods in pods_by_spec(view, among, lambda spec: bool(spec.preferred_nodes)):
            weights = preference(pods[0].spec, view)
            best = int(weights[among].max())
            for pod in self._on(view, pods, weights < best):
                here = int(weights[view.traits.rows[pod.node]])
                fitting = node_fit.elsewhere(pod, view, among & (weights > here))
                why = f"its preferred node affinity gives its node {here} and others up to {best}"
                yield EvictionCandidate(pod, why, but=fitting.reason)

    def _on(self, view: View, pods: Sequence[ClusterPod], nodes: Mask) -> Iterator[ClusterPod]:
        """Those of the pods that are wanted, on these nodes."""
        for pod in pods:
            if nodes[view.traits.rows[pod.node]] and self._wanted(pod):
                yield pod


def pods_by_spec(
    view: View, among: Mask, holds: Callable[[PodSpec], bool]
) -> Iterable[list[ClusterPod]]:
    """Return the pods on some nodes, grouped by their spec, of specs for which that holds."""
    wanted = np.fromiter((spec is not None and holds(spec) for spec in view.specs), np.bool_)
    groups: dict[PodSpec, list[ClusterPod]] = {}
    for pod in view.pods_chosen(wanted[view.placed.spec] & among[view.placed.row]):
        groups.setdefault(pod.spec, []).append(pod)
    return groups.values()


def preference(spec: PodSpec, view: View) -> NDArray[np.intp]:
    """Sum of the weights of the preferred terms that match each node; shape (nodes,)."""
    weights = np.zeros(len(view), np.intp)
    for one in spec.preferred_nodes:
        weights += one.weight * matches_terms((one.term,), view)
    return weights


def register_node_affinity(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register("RemovePodsViolatingNodeAffinity", RemovePodsViolatingNodeAffinity)


@takes_args(RemovePodsViolatingNodeTaintsArgs, strict=False)
class RemovePodsViolatingNodeTaints(PureDeschedulePlugin):
    """Names the pods that do not tolerate a taint of their node, node by node.

    NoExecute is left to Kubernetes itself, which evicts by it. A pod that could not be read in full
    stays: its tolerations may be what is missing.
    """

    def __init__(self, args: RemovePodsViolatingNodeTaintsArgs, handle: Handle) -> None:
        super().__init__(handle)
        self._wanted = pods_in(args.namespaces, args.label_selector)
        self._counts = counting(args)

    def pods_to_evict(
        self, view: View, rows: Sequence[int], now: float
    ) -> Iterator[EvictionCandidate]:
        known: dict[tuple[tuple[Taint, ...], PodSpec], Taint | None] = {}
        for row in rows:
            taints = tuple(filter(self._counts, view.node(row).taints))
            if not taints:
                continue
            for pod in view.pods(row):
                if pod.finished or pod.spec.unread or not self._wanted(pod):
                    continue
                key = taints, pod.spec
                if key not in known:
                    known[key] = untolerated(taints, pod.spec)
                taint = known[key]
                if taint is not None:
                    text = f"{taint.key}={taint.value}:{taint.effect}"
                    yield EvictionCandidate(
                        pod, f"it does not tolerate the taint {text} of its node"
                    )


def untolerated(taints: Sequence[Taint], spec: PodSpec) -> Taint | None:
    """Return the first taint that a pod does not tolerate; None: it tolerates all."""
    for taint in taints:
        if not any(one.tolerates(taint) for one in spec.tolerations):
            return taint
    return None


def counting(args: RemovePodsViolatingNodeTaintsArgs) -> Callable[[Taint], bool]:
    """Return which taints count."""
    effects = {"NoSchedule"}
    if args.include_prefer_no_schedule:
        effects.add("PreferNoSchedule")

    def counts(taint: Taint) -> bool:
        names = {taint.key, f"{taint.key}={taint.value}"}
        return (
            taint.effect in effects
            and not names & set(args.excluded_taints)
            and (not args.included_taints or bool(names & set(args.included_taints)))
        )

    return counts


def register_node_taints(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register("RemovePodsViolatingNodeTaints", RemovePodsViolatingNodeTaints)
