"""Pods that want, or do not want, to be near others. Source: Kubernetes, InterPodAffinity."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.view import View


def matches_pod_affinity(pod: ClusterPod, view: View) -> Mask:
    """Nodes in whose domains all required affinity terms find a pod; shape (nodes,).

    A pod counts when all terms mean it. Where none does in the whole cluster, the first of a group
    may go anywhere: a pod that its own terms mean, to a node that has all the labels.
    """
    terms = pod.spec.affinity
    allowed = np.ones(len(view), np.bool_)
    if not terms:
        return allowed
    labelled = allowed.copy()
    per_node = view.pods_per_node(view.pods_matching(*terms))
    some = False
    for term in terms:
        domains = view.traits.label(term.topology_key)
        labelled &= domains.present
        some |= bool(np.any(per_node[domains.present]))
        allowed &= _near(term.topology_key, per_node > 0, view)
    if not some and all(view.means(term, pod.label_set) for term in terms):
        return labelled
    return allowed


def matches_pod_anti_affinity(pod: ClusterPod, view: View) -> Mask:
    """Nodes in whose domains is no pod that this one, or that has this one, excluded.

    Shape (nodes,). A node without the label is in no domain.
    """
    allowed = np.ones(len(view), np.bool_)
    for term in pod.spec.anti_affinity:
        there = view.pods_per_node(view.pods_matching(term)) > 0
        allowed &= ~_near(term.topology_key, there, view)
    for topology_key, specs in _excluding(pod, view).items():
        there = view.pods_per_node(specs[view.placed.spec]) > 0
        allowed &= ~_near(topology_key, there, view)
    return allowed


def is_excluded(pod: ClusterPod, view: View) -> bool:
    """Whether another pod's anti-affinity means this one, wherever that pod is."""
    return bool(_excluding(pod, view))


def _excluding(pod: ClusterPod, view: View) -> Mapping[str, NDArray[np.bool_]]:
    """Specs whose required anti-affinity means this pod, by topology key; shape (specs,)."""
    found: dict[str, NDArray[np.bool_]] = {}
    for namespace in (pod.namespace, ""):
        for number, term in view.anti_affinity.get(namespace, ()):
            if view.means(term, pod.label_set):
                key = term.topology_key
                found.setdefault(key, np.zeros(len(view.specs), np.bool_))[number] = True
    return found


def _near(topology_key: str, nodes: Mask, view: View) -> Mask:
    """Nodes in a domain to which one of these nodes belongs; shape (nodes,)."""
    domains = view.traits.label(topology_key)
    taken = np.zeros(len(domains.index) + 1, np.bool_)
    taken[domains.codes[nodes & domains.present]] = True
    return taken[domains.codes]
