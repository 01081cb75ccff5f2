"""RemovePodsViolatingNodeAffinity: pods leave nodes that their node affinity does not allow.

Source: sigs.k8s.io/descheduler, removepodsviolatingnodeaffinity.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from koord_descheduler.plugin import (
    Choice,
    ClusterPod,
    Handle,
    JudgePlugin,
    Mask,
    NodeFit,
    PluginRegistry,
    PodSpec,
    View,
    kubernetes_args,
    matches_node_affinity,
    matches_terms,
    pods_in,
)

Args = kubernetes_args.RemovePodsViolatingNodeAffinityArgs
Type = kubernetes_args.NodeAffinityType


class RemovePodsViolatingNodeAffinity(JudgePlugin):
    """Names the pods whose node affinity forbids their node, or prefers another, that they fit."""

    def __init__(self, args: Args, handle: Handle) -> None:
        super().__init__(handle)
        self._types = args.node_affinity_type
        self._wanted = pods_in(args.namespaces, args.label_selector)

    def judge(self, view: View, rows: Sequence[int], now: float) -> Iterator[Choice]:
        among = np.zeros(len(view), np.bool_)
        among[list(rows)] = True
        judges = {Type.REQUIRED: self._required, Type.PREFERRED: self._preferred}
        for kind in self._types:
            yield from judges[kind](view, among)

    def _required(self, view: View, among: Mask) -> Iterator[Choice]:
        node_fit = NodeFit()
        for pods in pods_by_spec(view, among, lambda spec: spec.node_terms is not None):
            allowed = matches_node_affinity(pods[0], view)
            for pod in self._on(view, pods, ~allowed):
                fitting = node_fit.elsewhere(pod, view, among)
                why = "its required node affinity forbids its node"
                yield Choice(pod, why, but=fitting.reason)

    def _preferred(self, view: View, among: Mask) -> Iterator[Choice]:
        node_fit = NodeFit()
        for pods in pods_by_spec(view, among, lambda spec: bool(spec.preferred_nodes)):
            weights = preference(pods[0].spec, view)
            best = int(weights[among].max())
            for pod in self._on(view, pods, weights < best):
                here = int(weights[view.traits.rows[pod.node]])
                fitting = node_fit.elsewhere(pod, view, among & (weights > here))
                why = f"its preferred node affinity gives its node {here} and others up to {best}"
                yield Choice(pod, why, but=fitting.reason)

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


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register("RemovePodsViolatingNodeAffinity", RemovePodsViolatingNodeAffinity)
