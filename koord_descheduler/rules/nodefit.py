"""Whether a pod would fit a node, and why not: Kubernetes' rules without the pod itself."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from koord.api.labelselector import LabelSelector, Requirement
from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod, LabelSet, NodeTerm, PodSpec
from koord.cluster.predicates.fits import RULES, Fit, Misfit, Predicate, fits
from koord.cluster.predicates.nodes import matches_terms
from koord.cluster.view import View
from koord.util.timebudget import OutOfTime
from koord_descheduler.rules.fittime import fit_time

_BESIDE_OTHERS = (Misfit.TOPOLOGY_SPREAD, Misfit.POD_AFFINITY, Misfit.POD_ANTI_AFFINITY)
_ON_NODES = {misfit: rule for misfit, rule in RULES.items() if misfit not in _BESIDE_OTHERS}
"""Rules by which a pod does not matter on other nodes than its own."""

MOST_NAMES = 5  # of nodes, in a text for people
CUT = "its rules, or its namespace's, take too long to compute where it fits"

_TEXTS = {
    Misfit.UNSCHEDULABLE: "unschedulable",
    Misfit.TAINTS: "a taint that it does not tolerate",
    Misfit.NODE_AFFINITY: "its node selector or affinity",
    Misfit.HOST_PORTS: "no free host port",
    Misfit.RESOURCES: "too little room",
    Misfit.VOLUMES: "its volumes out of reach",
    Misfit.TOPOLOGY_SPREAD: "its topology spread",
    Misfit.POD_AFFINITY: "its pod affinity",
    Misfit.POD_ANTI_AFFINITY: "pod anti-affinity",
    Misfit.UNREAD: "a part of the pod that cannot be read",
}


@dataclass(frozen=True, slots=True)
class Fitting:
    """The nodes that a pod fits, of those that were asked for."""

    mask: Mask  # nodes that fit
    among: Mask  # nodes that were asked for
    fit: Fit  # of all nodes; where it was cut, by no rule
    cut: bool = False  # its rules took longer to compute than they may: it counts as fitting none

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return bool(self.mask.any())

    @property
    def reason(self) -> str:
        """Why none fits, with the number of nodes for each rule; "": one does."""
        if self.any:
            return ""
        if self.cut:
            return CUT
        rules = Counter(Misfit(code) for code in self.fit.misfits[self.among].tolist())
        if not rules:
            return "there is no other node"
        parts = [f"{count} {_TEXTS[rule]}" for rule, count in sorted(rules.items())]
        return f"none of {rules.total()} nodes fits: {', '.join(parts)}"

    def names(self, view: View, most: int = MOST_NAMES) -> tuple[str, ...]:
        """Names of the first nodes that fit, by name."""
        return tuple(sorted(view.node(int(row)).name for row in np.flatnonzero(self.mask))[:most])


class NodeFit:
    """Asks for one pod after the other; equal ones in the same view share the answer."""

    def __init__(self) -> None:
        self._view: View | None = None
        self._fits: dict[tuple[PodSpec, LabelSet, tuple[str, ...]], Fit | None] = {}  # None: cut

    def elsewhere(self, pod: ClusterPod, view: View, among: Mask) -> Fitting:
        """Where a pod fits among these nodes but its own."""
        spec = pod.spec
        counts_itself = spec.spread or spec.affinity or spec.anti_affinity
        own = view.row(pod.node)
        if own is not None and among[own]:
            among = among.copy()
            among[own] = False
        fit = self._shared(pod, view, _ON_NODES if counts_itself else RULES)
        if fit is not None and counts_itself and (fit.mask & among).any():
            fit = _fits_in_time(pod, without(pod, view))
        return _fitting(fit, view, among)

    def anywhere(self, pod: ClusterPod, view: View, among: Mask) -> Fitting:
        """Where a pod fits among these nodes, which may have its own: there it does not count."""
        return _fitting(_fits_in_time(pod, without(pod, view)), view, among)

    def _shared(self, pod: ClusterPod, view: View, rules: Mapping[Misfit, Predicate]) -> Fit | None:
        if view is not self._view:
            self._view, self._fits = view, {}
        key = pod.spec, pod.label_set, pod.claims  # the label set has the namespace, too
        if key not in self._fits:
            self._fits[key] = _fits_in_time(pod, view, rules)
        return self._fits[key]


def _fits_in_time(
    pod: ClusterPod, view: View, rules: Mapping[Misfit, Predicate] = RULES
) -> Fit | None:
    """Return where a pod fits; None: that takes longer than it may."""
    try:
        with fit_time().of_pod_in(pod.namespace):
            return fits(pod, view, rules)
    except OutOfTime:
        return None


def _fitting(fit: Fit | None, view: View, among: Mask) -> Fitting:
    if fit is None:
        nodes = len(view)
        unknown = Fit(np.zeros(nodes, np.bool_), np.zeros(nodes, np.int8))
        return Fitting(unknown.mask, among, unknown, cut=True)
    return Fitting(fit.mask & among, among, fit)


def without(pod: ClusterPod, view: View) -> View:
    """The cluster without a pod; the same view if the pod is not on its node there."""
    row = view.row(pod.node)
    if row is None or all(one.key != pod.key for one in view.pods(row)):
        return view
    what_if = view.what_if()
    what_if.remove(pod.key, pod.node)
    return what_if.view()


def nodes_matching(view: View, selector: LabelSelector | None) -> Mask:
    """Ready nodes that a selector matches; None matches all; shape (nodes,)."""
    ready = view.traits.ready
    if selector is None:
        return ready
    labels = (
        *(Requirement(key, "In", (text,)) for key, text in selector.match_labels.items()),
        *selector.match_expressions,
    )
    return ready & matches_terms((NodeTerm(labels),), view)


def nodes_named(view: View, names: Iterable[str]) -> Mask:
    """Nodes of these names; shape (nodes,)."""
    return view.traits.names.among(names)
