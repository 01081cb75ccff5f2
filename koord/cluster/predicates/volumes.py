"""Volumes that only some nodes can reach. Source: Kubernetes, VolumeBinding (bound claims)."""

import numpy as np

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod
from koord.cluster.predicates.nodes import matches_terms
from koord.cluster.view import View
from koord.util.timebudget import in_time


def reaches_volumes(pod: ClusterPod, view: View) -> Mask:
    """Nodes that can reach all volumes to which the pod's claims are bound; shape (nodes,).

    A claim, or a volume of one, that is not known is out of reach of all nodes. A claim that is
    not bound yet allows all of them.
    """
    allowed = np.ones(len(view), np.bool_)
    for name in in_time(pod.claims):
        claim = view.claim(pod.namespace, name)
        if claim is None:
            return np.zeros(len(view), np.bool_)
        if not claim.volume:
            continue
        volume = view.volume(claim.volume)
        if volume is None:
            return np.zeros(len(view), np.bool_)
        if volume.node_terms is not None:
            allowed &= matches_terms(volume.node_terms, view)
    return allowed
