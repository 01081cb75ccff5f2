"""Whether a pod would fit another node: by the rules of the scheduler, in bounded time."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import numpy as np

from koord.api.labelselector import LabelSelector, Requirement
from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod, LabelSet, NodeTerm, PodSpec
from koord.cluster.hypothetical import without_pod
from koord.cluster.predicates import RULES, Fit, NodeRejectReason, Predicate, fits
from koord.cluster.predicates.nodes import matches_terms
from koord.cluster.view import View
from koord.util.timebudget import OutOfTime, TimeBudget

POD_SECONDS = 0.5  # of CPU for one pod
NAMESPACE_SECONDS = 2.0  # of CPU for the pods of one namespace in one cycle
FREE_SECONDS = 0.02  # of each pod that do not count: an ordinary pod takes a tenth of it


class FitTime:
    """The CPU time that NodeFit has taken in one cycle, by namespace.

    Only time far above that of an ordinary pod counts, so that many ordinary pods of a
    namespace are never cut.
    """

    def __init__(self, now: Callable[[], float] = time.thread_time) -> None:
        """now: CPU seconds of this thread."""
        self._now = now
        self._spent: dict[str, float] = {}  # beyond what is free, by namespace
        self._cut: Counter[str] = Counter()

    @property
    def cut(self) -> Mapping[str, int]:
        """How many computations were cut, by namespace."""
        return self._cut

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Bill what is computed inside, also in tasks and threads that are started there."""
        token = _TIME.set(self)
        try:
            yield
        finally:
            _TIME.reset(token)

    @contextmanager
    def of_pod_in(self, namespace: str) -> Iterator[None]:
        """Compute inside for one pod of a namespace.

        Raises:
            OutOfTime: it took longer than it may.
        """
        left = NAMESPACE_SECONDS - self._spent.get(namespace, 0.0)
        budget = TimeBudget(min(POD_SECONDS, max(left, FREE_SECONDS)), self._now)
        try:
            with budget:
                yield
        except OutOfTime:
            self._cut[namespace] += 1
            raise
        finally:
            more = budget.spent - FREE_SECONDS
            if more > 0:
                self._spent[namespace] = self._spent.get(namespace, 0.0) + more


_TIME: ContextVar[FitTime | None] = ContextVar("fit_time", default=None)


def fit_time() -> FitTime:
    """Return the account of the cycle that runs; outside of cycles one for this pod alone."""
    return _TIME.get() or FitTime()


_DEPENDS_ON_PODS = (
    NodeRejectReason.TOPOLOGY_SPREAD,
    NodeRejectReason.POD_AFFINITY,
    NodeRejectReason.POD_ANTI_AFFINITY,
)
_DEPENDS_ON_NODE = {
    misfit: rule for misfit, rule in RULES.items() if misfit not in _DEPENDS_ON_PODS
}
"""Rules by which a pod does not matter on other nodes than its own."""

MAX_NAMES = 5  # of nodes, in a text for people
CUT = "its rules, or its namespace's, take too long to compute where it fits"

_TEXTS = {
    NodeRejectReason.UNSCHEDULABLE: "unschedulable",
    NodeRejectReason.TAINTS: "a taint that it does not tolerate",
    NodeRejectReason.NODE_AFFINITY: "its node selector or affinity",
    NodeRejectReason.HOST_PORTS: "no free host port",
    NodeRejectReason.RESOURCES: "too little room",
    NodeRejectReason.VOLUMES: "its volumes out of reach",
    NodeRejectReason.TOPOLOGY_SPREAD: "its topology spread",
    NodeRejectReason.POD_AFFINITY: "its pod affinity",
    NodeRejectReason.POD_ANTI_AFFINITY: "pod anti-affinity",
    NodeRejectReason.UNREAD: "a part of the pod that cannot be read",
}


@dataclass(frozen=True, slots=True)
class NodeFitResult:
    """The nodes that a pod fits, of those that were asked for."""

    mask: Mask  # nodes that fit
    among: Mask  # nodes that were asked for
    fit: Fit  # of all nodes; where it was cut, by no rule
    cut: bool = False  # its rules took longer to compute than they may: it counts as fitting none
    bare: int = 0  # nodes of among that fit but for devices or CPUs that the pod has

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
        rules = Counter(NodeRejectReason(code) for code in self.fit.misfits[self.among].tolist())
        if not rules:
            return "there is no other node"
        rules.pop(NodeRejectReason.NONE, None)
        parts = [f"{count} {_TEXTS[rule]}" for rule, count in sorted(rules.items())]
        if self.bare:
            parts.append(f"{self.bare} no such devices or CPUs free as it has")
        return f"none of {rules.total() + self.bare} nodes fits: {', '.join(parts)}"

    def names(self, view: View, most: int = MAX_NAMES) -> tuple[str, ...]:
        """Names of the first nodes that fit, by name."""
        return tuple(sorted(view.node(int(row)).name for row in np.flatnonzero(self.mask))[:most])


HardwareFits = Callable[[ClusterPod, View], Mask | None]


class NodeFit:
    """Asks for one pod after the other; equal ones in the same view share the response."""

    def __init__(self, hardware: HardwareFits | None = None) -> None:
        """hardware returns the nodes with the devices and CPUs that a pod needs; None: all."""
        self._hardware = hardware
        self._view: View | None = None
        self._fits: dict[tuple[PodSpec, LabelSet, tuple[str, ...]], Fit | None] = {}  # None: cut

    def elsewhere(self, pod: ClusterPod, view: View, among: Mask) -> NodeFitResult:
        """Return the nodes of `among`, except the pod's own, that the pod fits."""
        spec = pod.spec
        counts_itself = spec.spread or spec.affinity or spec.anti_affinity
        own = view.row(pod.node)
        if own is not None and among[own]:
            among = among.copy()
            among[own] = False
        fit = self._shared(pod, view, _DEPENDS_ON_NODE if counts_itself else RULES)
        if fit is not None and counts_itself and (fit.mask & among).any():
            fit = _fits_in_time(pod, without_pod(pod, view))
        found = _fitting(fit, view, among)
        has = self._hardware(pod, view) if self._hardware is not None and found.any else None
        if has is None:
            return found
        mask = found.mask & has
        return replace(found, mask=mask, bare=int((found.mask & ~has).sum()))

    def anywhere(self, pod: ClusterPod, view: View, among: Mask) -> NodeFitResult:
        """Return the nodes of `among` that a pod fits; on its own node it does not count itself."""
        return _fitting(_fits_in_time(pod, without_pod(pod, view)), view, among)

    def _shared(
        self, pod: ClusterPod, view: View, rules: Mapping[NodeRejectReason, Predicate]
    ) -> Fit | None:
        if view is not self._view:
            self._view, self._fits = view, {}
        key = pod.spec, pod.label_set, pod.claims  # the label set has the namespace, too
        if key not in self._fits:
            self._fits[key] = _fits_in_time(pod, view, rules)
        return self._fits[key]


def _fits_in_time(
    pod: ClusterPod, view: View, rules: Mapping[NodeRejectReason, Predicate] = RULES
) -> Fit | None:
    """Return where a pod fits; None: that takes longer than it may."""
    try:
        with fit_time().of_pod_in(pod.namespace):
            return fits(pod, view, rules)
    except OutOfTime:
        return None


def _fitting(fit: Fit | None, view: View, among: Mask) -> NodeFitResult:
    if fit is None:
        nodes = len(view)
        unknown = Fit(np.zeros(nodes, np.bool_), np.zeros(nodes, np.int8))
        return NodeFitResult(unknown.mask, among, unknown, cut=True)
    return NodeFitResult(fit.mask & among, among, fit)


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
