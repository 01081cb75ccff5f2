"""What keeps a pod from nodes, plugin by plugin, and what would help."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from koord.cluster.columns import Mask
from koord.cluster.facts import PODS, ClusterPod
from koord.cluster.view import View
from koord_scheduler.framework.results import Verdicts

MOST_ADVICE = 3  # groups of nodes that advice is given about


@dataclass(frozen=True, slots=True)
class Blocker:
    """A plugin that rejects nodes."""

    plugin: str
    nodes: int  # that it rejects
    alone: int  # of those, the ones that no other plugin rejects
    reasons: Mapping[str, int]  # nodes by reason


@dataclass(frozen=True, slots=True)
class Blockers:
    """What keeps a pod from nodes."""

    plugins: tuple[Blocker, ...] = ()  # first those that alone stand before the most nodes
    advice: tuple[str, ...] = ()  # what would help, where the least would do first


def blockers_of(verdicts: Mapping[str, Verdicts], pod: ClusterPod, nodes: View) -> Blockers:
    """Return the plugins that reject nodes.

    verdicts: of each plugin about all nodes, as if it were the only one.
    """
    rejected: dict[str, Mask] = {
        plugin: each.numbers != 0 for plugin, each in verdicts.items() if each.numbers.any()
    }
    times = np.zeros(len(nodes), np.intp)
    for mask in rejected.values():
        times += mask
    found = [
        Blocker(
            plugin,
            int(np.count_nonzero(mask)),
            int(np.count_nonzero(mask & (times == 1))),
            dict(_reasons(verdicts[plugin]).most_common()),
        )
        for plugin, mask in rejected.items()
    ]
    found.sort(key=lambda one: (-one.alone, -one.nodes, one.plugin))
    groups = _groups(rejected, times)
    advice = [text for plugins, group in groups for text in _advice(plugins, group, pod, nodes)]
    return Blockers(tuple(found), tuple(advice))


def _groups(
    rejected: Mapping[str, Mask], times: NDArray[np.intp]
) -> list[tuple[tuple[str, ...], Mask]]:
    """Nodes by the plugins that reject them: those with the fewest, the largest groups first."""
    if not times.any():
        return []
    table = np.array(list(rejected.values()))
    table &= times == times[times > 0].min()
    sets, group, counts = np.unique(table, axis=1, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    names = list(rejected)
    order = [int(at) for at in np.argsort(-counts, kind="stable") if sets[:, at].any()]
    return [
        (tuple(name for name, yes in zip(names, sets[:, at], strict=True) if yes), group == at)
        for at in order[:MOST_ADVICE]
    ]


def _reasons(verdicts: Verdicts) -> Counter[str]:
    """How many nodes have each reason."""
    counts = np.bincount(verdicts.numbers, minlength=len(verdicts.rejections) + 1)[1:]
    found: Counter[str] = Counter()
    for status, nodes in zip(verdicts.rejections, counts.tolist(), strict=True):
        for reason in status.reasons if nodes else ():
            found[reason] += nodes
    return found


def _advice(plugins: tuple[str, ...], group: Mask, pod: ClusterPod, nodes: View) -> Iterator[str]:
    """What would help with nodes that only these plugins reject."""
    count = int(np.count_nonzero(group))
    which = f"{plugins[0]} alone" if len(plugins) == 1 else f"{' and '.join(plugins)} together"
    yield f"{count} of {len(nodes)} nodes are rejected by {which}"
    for resource, wanted in ((PODS, 1), *pod.spec.requests):
        column = nodes.resources.get(resource)
        if column is None:
            yield f"no node has {resource}, of which {wanted} is requested"
            continue
        free = nodes.allocatable[:, column] - nodes.requested[:, column]
        if (free[group] < wanted).all():
            most = int(free[group].max())
            name = nodes.node(int(np.flatnonzero(group & (free == most))[0])).name
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
