"""RemovePodsViolatingInterPodAntiAffinity: pods leave domains with pods that they exclude.

Source: sigs.k8s.io/descheduler, removepodsviolatinginterpodantiaffinity.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from koord.api.labelselector import LabelSelector
from koord.plugin.args import FieldError, takes_args
from koord_descheduler.plugin import (
    AffinityTerm,
    ClusterNode,
    ClusterPod,
    DeschedulePlugin,
    Evictions,
    Handle,
    Namespaces,
    PluginRegistry,
    View,
    check_pods,
    least_important,
    pods_in,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovePodsViolatingInterPodAntiAffinityArgs:
    """Pods leave nodes where another pod's anti-affinity forbids them."""

    namespaces: Namespaces | None = None  # pods that may go; not set: all
    label_selector: LabelSelector | None = None  # pods that may go; not set: all

    def validate(self) -> Iterator[FieldError]:
        """Return the faults."""
        yield from check_pods(self.namespaces, self.label_selector)


@dataclass(frozen=True, slots=True)
class Excluded:
    """The pods that a term excludes."""

    topology_key: str
    domains: NDArray[np.intp]  # (nodes,), -1 where the label is absent
    matched: frozenset[int]  # numbers of pods in placed
    counts: NDArray[np.intp]  # (domains,), of those that are there; goes down as pods leave


class Exclusions:
    """Pods with required anti-affinity, and the pods that are near them all the same.

    Pods that are being deleted exclude nothing and are not excluded any more.
    """

    def __init__(self, view: View, rows: Sequence[int]) -> None:
        self._row = view.placed.row
        self._terms: dict[AffinityTerm, Excluded] = {}
        self._numbers: dict[str, int] = {}  # in placed, by key of the pod
        self.pods = [pod for pod in self._candidates(view, rows) if self._is_violated(pod, view)]

    def violated(self, pod: ClusterPod) -> str:
        """Return the topology key of a term that is violated now; "": none is."""
        number = self._numbers[pod.key]
        row = self._row[number]
        for term in pod.spec.anti_affinity:
            excluded = self._terms[term]
            domain = excluded.domains[row]
            if domain >= 0 and excluded.counts[domain] > (number in excluded.matched):
                return excluded.topology_key
        return ""

    def leaves(self, pod: ClusterPod) -> None:
        """Count a pod no more."""
        number = self._numbers[pod.key]
        for excluded in self._terms.values():
            domain = excluded.domains[self._row[number]]
            if domain >= 0 and number in excluded.matched:
                excluded.counts[domain] -= 1

    def _candidates(self, view: View, rows: Sequence[int]) -> Iterator[ClusterPod]:
        """Pods with anti-affinity, node by node as given, the least important ones first."""
        place = np.full(len(view), -1)
        place[list(rows)] = np.arange(len(rows))
        has = np.fromiter((bool(spec and spec.anti_affinity) for spec in view.specs), np.bool_)
        placed = view.placed
        chosen = has[placed.spec] & (place[placed.row] >= 0) & ~placed.deleting
        found = list(zip(np.flatnonzero(chosen).tolist(), view.pods_chosen(chosen), strict=True))
        found.sort(
            key=lambda each: (place[self._row[each[0]]], least_important(each[1]), each[1].key)
        )
        for number, pod in found:
            self._numbers[pod.key] = number
            yield pod

    def _is_violated(self, pod: ClusterPod, view: View) -> bool:
        for term in pod.spec.anti_affinity:
            if term not in self._terms:
                self._terms[term] = _excluded(term, view)
        return bool(self.violated(pod))


def _excluded(term: AffinityTerm, view: View) -> Excluded:
    domains = view.traits.label(term.topology_key)
    matched = view.pods_matching(term) & ~view.placed.deleting
    at = domains.codes[view.placed.row[matched]]
    return Excluded(
        topology_key=term.topology_key,
        domains=domains.codes,
        matched=frozenset(np.flatnonzero(matched).tolist()),
        counts=np.bincount(at[at >= 0], minlength=len(domains.index)),
    )


@takes_args(RemovePodsViolatingInterPodAntiAffinityArgs, strict=False)
class RemovePodsViolatingInterPodAntiAffinity(DeschedulePlugin):
    """Evicts pods whose own anti-affinity is violated, until none is."""

    def __init__(self, args: RemovePodsViolatingInterPodAntiAffinityArgs, handle: Handle) -> None:
        self._handle = handle
        self._wanted = pods_in(args.namespaces, args.label_selector)

    async def deschedule(self, nodes: Sequence[ClusterNode]) -> None:
        view = self._handle.view_with_migrations()
        rows = [row for node in nodes if (row := view.row(node.name)) is not None]
        found = await asyncio.to_thread(Exclusions, view, rows)
        with Evictions(self._handle, self.name) as evictions:
            for pod in found.pods:
                key = found.violated(pod) if self._wanted(pod) else ""
                if not key:
                    continue
                why = f"its anti-affinity excludes another pod in its {key}"
                if evictions.may_go(pod, why) and await evictions.evict(pod, why):
                    found.leaves(pod)


def register(registry: PluginRegistry) -> None:
    """Entry point."""
    registry.register(
        "RemovePodsViolatingInterPodAntiAffinity", RemovePodsViolatingInterPodAntiAffinity
    )
