"""How many nodes are looked at, and in which order, when it need not be all."""

import numpy as np

from koord.cluster.view import View
from koord_scheduler.framework.nodes.forms import Rows

FEWEST = 100  # nodes below which all are looked at, and feasible nodes that are enough
_ZONES = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")


def nodes_to_find(nodes: int, percentage: int | None, *, scored: bool) -> int:
    """How many feasible nodes are enough.

    percentage is percentageOfNodesToScore; None: all nodes, 0: fewer percent, the more nodes there
    are. scored: whether any plugin scores nodes; if not, one is enough.

    Source: Kubernetes, pkg/scheduler/schedule_one.go numFeasibleNodesToFind.
    """
    if not scored:
        return min(nodes, 1)
    if nodes < FEWEST or percentage is None or percentage >= 100:
        return nodes
    share = percentage or max(5, 50 - nodes // 125)
    return max(nodes * share // 100, FEWEST)


def round_robin(nodes: View) -> Rows:
    """All rows in turns: one node of each zone, then the next one of each.

    Source: Kubernetes, pkg/scheduler/backend/cache/node_tree.go.
    """
    zones = np.zeros(len(nodes), np.intp)
    for key in _ZONES:
        column = nodes.traits.label(key)
        zones = zones * (len(column.index) + 1) + column.codes + 1
    by_zone = np.argsort(zones, kind="stable")
    begins = np.flatnonzero(np.diff(zones[by_zone], prepend=-1))
    sizes = np.diff(np.append(begins, len(nodes)))
    turn = np.empty(len(nodes), np.intp)
    turn[by_zone] = np.arange(len(nodes)) - np.repeat(begins, sizes)
    return np.lexsort((zones, turn))
