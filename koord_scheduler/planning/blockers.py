"""What keeps a pod from nodes, plugin by plugin, and what would help."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from koord.cluster.columns import Mask
from koord.cluster.facts import PODS, ClusterPod
from koord.cluster.view import View
from koord_scheduler.framework.results import Verdicts


@dataclass(frozen=True, slots=True)
class Blocker:
    """A plugin that rejects nodes."""

    plugin: str
    nodes: int  # that it rejects
    alone: int  # of those, the ones that no other plugin rejects
    reasons: Mapping[str, int]  # nodes by reason
    advice: tuple[str, ...] = ()  # what would help with the nodes that it rejects alone


def blockers_of(
    verdicts: Mapping[str, Verdicts], pod: ClusterPod, nodes: View
) -> tuple[Blocker, ...]:
    """Return the plugins that reject nodes; first those that alone stand before the most nodes.

    verdicts: of each plugin about all nodes, as if it were the only one.
    """
    times = np.zeros(len(nodes), np.intp)
    for each in verdicts.values():
        times += each.numbers != 0
    found = []
    for plugin, each in verdicts.items():
        rejected: Mask = each.numbers != 0
        if rejected.any():
            alone: Mask = rejected & (times == 1)
            count = int(np.count_nonzero(alone))
            found.append(
                Blocker(
                    plugin,
                    int(np.count_nonzero(rejected)),
                    count,
                    dict(_reasons(each).most_common()),
                    tuple(_advice(plugin, count, alone, pod, nodes)),
                )
            )
    return tuple(sorted(found, key=lambda one: (-one.alone, -one.nodes, one.plugin)))


def _reasons(verdicts: Verdicts) -> Counter[str]:
    """How many nodes have each reason."""
    counts = np.bincount(verdicts.numbers, minlength=len(verdicts.rejections) + 1)[1:]
    found: Counter[str] = Counter()
    for status, nodes in zip(verdicts.rejections, counts.tolist(), strict=True):
        for reason in status.reasons if nodes else ():
            found[reason] += nodes
    return found


def _advice(plugin: str, count: int, alone: Mask, pod: ClusterPod, nodes: View) -> Iterator[str]:
    if not count:
        return
    yield f"{count} of {len(nodes)} nodes are rejected by {plugin} alone"
    for resource, wanted in ((PODS, 1), *pod.spec.requests):
        column = nodes.resources.get(resource)
        if column is None:
            yield f"no node has {resource}, of which {wanted} is requested"
            continue
        free = nodes.allocatable[:, column] - nodes.requested[:, column]
        if (free[alone] < wanted).any():
            most = int(free[alone].max())
            name = nodes.node(int(np.flatnonzero(alone & (free == most))[0])).name
            yield (
                f"{resource}: {_amount(resource, wanted)} is requested, the most that such a node "
                f"has free is {_amount(resource, max(most, 0))} on {name}"
            )


def _amount(resource: str, amount: int) -> str:
    """As Kubernetes writes amounts of resources."""
    if resource == "cpu":
        return f"{amount}m" if amount % 1000 else str(amount // 1000)
    for unit, size in (("Gi", 2**30), ("Mi", 2**20)):
        if resource != PODS and amount >= size:
            return f"{amount / size:.4g}{unit}"
    return str(amount)
