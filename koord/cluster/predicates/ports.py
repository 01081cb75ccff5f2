"""Ports of nodes. Source: Kubernetes, NodePorts."""

from collections.abc import Collection, Iterable

import numpy as np

from koord.cluster.columns import Mask
from koord.cluster.facts import ClusterPod, HostPort
from koord.cluster.view import View
from koord.util.timebudget import in_time


def has_free_ports(pod: ClusterPod, view: View) -> Mask:
    """Nodes on which no pod has a host port that this one needs; shape (nodes,)."""
    wanted = pod.spec.host_ports
    if not wanted:
        return np.ones(len(view), np.bool_)
    return view.ports_where(lambda taken: not ports_conflict(wanted, taken))


def ports_conflict(some: Collection[HostPort], others: Iterable[HostPort]) -> bool:
    """Whether one of the ports cannot be had beside one of the others."""
    taken: dict[tuple[int, str], list[HostPort]] = {}
    for one in others:
        taken.setdefault((one.port, one.protocol), []).append(one)
    return any(
        one.conflicts(other)
        for one in in_time(some)
        for other in taken.get((one.port, one.protocol), ())
    )
